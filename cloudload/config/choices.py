"""Named values of options, and the accepted values of options with a fixed set of choices."""

from __future__ import annotations

from typing import Literal, get_args

from cloudload.data import ALWAYS as ALWAYS
from cloudload.data import OFF as OFF
from cloudload.data import ONCE as ONCE
from cloudload.data import Verification as Verification
from cloudload.data import document_columns

SEEKABLE = "seekable"
EPOCH = "epoch"
AUTO = "auto"
REQUIRE = "require"
HF = "hf"
CSV_QUOTING = "csv"
STRICT, REPLACE = "strict", "replace"
FASTOKENS = "fastokens"
SAME = "same"
TOKENIZER = "tokenizer"
NO_BACKEND = "none"
RAISE, SKIP = "raise", "skip"
FIRST, ALL = "first", "all"
MOST_IDS = (1 << 31) - 1
"""All token IDs are below this number, which is in no document because it stands for padding."""

ShuffleAlgorithm = Literal["py1e", "py1br", "py1s", "py2s", "naive", "seekable"]
PackingName = Literal["concat", "best_fit", "one_per_row"]
Overflow = Literal["cut", "rows"]
Stopping = Literal["first", "all"]
TailMode = Literal["pad", "drop"]
StartMethod = Literal["fork", "spawn", "forkserver"]
TokenizerBackend = Literal["auto", "hf", "fastokens"]
TrainedTurns = Literal["assistant", "last", "completion", "all"]
Overlong = Literal["drop", "truncate", "split"]
OnError = Literal["raise", "skip"]
Quoting = Literal["csv", "none"]
TextErrors = Literal["strict", "replace"]
TokenDtype = document_columns.TokenDtype
InputFormat = Literal[
    "auto",
    "jsonl",
    "json",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "webdataset",
    "wet",
    "mds",
    "text",
    "lines",
]

ON_ERROR = get_args(OnError)
STOPPINGS = get_args(Stopping)
TOKEN_DTYPES = document_columns.TOKEN_DTYPES
INPUT_FORMATS = get_args(InputFormat)
