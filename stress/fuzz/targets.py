"""All targets, by name."""

from stress.fuzz.decompress import DECOMPRESS
from stress.fuzz.index import INDEX
from stress.fuzz.shard import SHARD, STRUCTURED
from stress.fuzz.state import STATE
from stress.fuzz.tokenizer import TOKENIZER_TEXT

TARGETS = {
    "index": INDEX,
    "shard": SHARD,
    "shard-structured": STRUCTURED,
    "decompress": DECOMPRESS,
    "state": STATE,
    "tokenizer-text": TOKENIZER_TEXT,
}
