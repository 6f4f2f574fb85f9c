"""All targets, by name."""

from stress.fuzz.data import DECOMPRESS, INDEX, SHARD, SHARD_STRUCTURED
from stress.fuzz.state import STATE
from stress.fuzz.tokenizer import TOKENIZER_TEXT

TARGETS = {
    "index": INDEX,
    "shard": SHARD,
    "shard-structured": SHARD_STRUCTURED,
    "decompress": DECOMPRESS,
    "state": STATE,
    "tokenizer-text": TOKENIZER_TEXT,
}
