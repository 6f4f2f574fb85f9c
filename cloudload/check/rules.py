"""Every kind of finding: who stumbles, how badly, and what to do.

An `error` is a dataset that a reader refuses, or of which it reads wrong or missing samples. A
`warning` is one that it refuses with some settings, or that it cannot verify. A `note` stops
nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
CLOUDLOAD, STREAMING = "cloudload", "Streaming"
BOTH = (CLOUDLOAD, STREAMING)


@dataclass(frozen=True)
class Rule:
    """A kind of finding. `readers` are those who stumble, and `advice` says what to do."""

    severity: str
    readers: tuple[str, ...]
    advice: str


_REWRITE_INDEX = "Convert the corpus again, or repair the entry in index.json"
_COPY_AGAIN = "Copy the shard again from its source, or convert the corpus again"

RULES: dict[str, Rule] = {
    # the index
    "index-missing": Rule(
        ERROR,
        BOTH,
        "Check the location and the split. A conversion writes index.json last. For folders that "
        "each have an index, run streaming.base.util.merge_index",
    ),
    "index-invalid": Rule(ERROR, BOTH, "Convert the corpus again, or copy index.json again"),
    "empty": Rule(ERROR, BOTH, "Convert a corpus, or remove this stream from the run"),
    "few-samples": Rule(
        WARNING,
        (STREAMING,),
        "Set num_canonical_nodes below the number of samples; cloudload reads each sample once",
    ),
    # an entry of the index
    "format": Rule(ERROR, (CLOUDLOAD,), "Convert the corpus to MDS with `cloudload convert`"),
    "entry-invalid": Rule(ERROR, (CLOUDLOAD,), _REWRITE_INDEX),
    "entry-fields": Rule(
        ERROR, (STREAMING,), "Add the missing fields to index.json, and remove the others"
    ),
    "too-large": Rule(ERROR, BOTH, "Convert the corpus again with a size limit below 4 GiB"),
    "name-escapes": Rule(
        ERROR, BOTH, "Do not open this dataset with Streaming unless you trust its author"
    ),
    "name-refused": Rule(ERROR, (CLOUDLOAD,), "Rename the object, and its basename in index.json"),
    "name-repeated": Rule(ERROR, BOTH, "Remove one of the entries from index.json"),
    "name-clash": Rule(
        ERROR, (CLOUDLOAD,), "Rename one of the objects, and its basename in index.json"
    ),
    "url": Rule(ERROR, (STREAMING,), "Rename the object or folder without these characters"),
    "compression-unknown": Rule(ERROR, BOTH, _REWRITE_INDEX),
    "compression-level": Rule(
        ERROR, (STREAMING,), "Remove the level from `compression` in index.json"
    ),
    "codec-missing": Rule(ERROR, (CLOUDLOAD,), "Install the package"),
    "compression-unused": Rule(
        WARNING,
        (STREAMING,),
        "Set `compression` to null in index.json. Until then, never pass the only copy as local= "
        "without remote=",
    ),
    "hash-absent": Rule(WARNING, BOTH, "Convert the corpus again with hashes"),
    "hash-unknown": Rule(WARNING, (STREAMING,), "Use another hash as validate_hash"),
    "hash-partial": Rule(
        WARNING, (STREAMING,), "Use as validate_hash only a hash that all shards have"
    ),
    # columns
    "pickle": Rule(
        WARNING,
        BOTH,
        "Streaming needs allow_unsafe_types=True, which runs code from the data; cloudload reads "
        "the other columns",
    ),
    "encoding-unknown": Rule(ERROR, (STREAMING,), "Convert the corpus again without this column"),
    "encoding-unread": Rule(
        NOTE, (CLOUDLOAD,), "Nothing to do, unless a transform needs this column"
    ),
    "columns-differ": Rule(
        WARNING, (STREAMING,), "Convert the corpus again, with the same columns in all shards"
    ),
    "text-column": Rule(
        ERROR, (CLOUDLOAD,), "Pass the name of the text column: text_key= (--text-key)"
    ),
    # objects
    "shard-missing": Rule(ERROR, BOTH, _COPY_AGAIN),
    "shard-unreachable": Rule(ERROR, BOTH, "Correct the cause, and check again"),
    "raw-alone": Rule(
        WARNING,
        (STREAMING,),
        "Copy the compressed shard again. Until then, do not pass this folder as local= without "
        "remote=",
    ),
    "raw-unverified": Rule(
        WARNING,
        (STREAMING,),
        "Remove the raw file, or open the folder as remote= with a different local=",
    ),
    "unlisted": Rule(
        WARNING, BOTH, "Remove the shards, or add them with streaming.base.util.merge_index"
    ),
    "not-listed": Rule(
        NOTE, (), "Missing objects are found only by reading all shards, so do not set sample"
    ),
    "leftover": Rule(NOTE, (), "Remove the objects unless something else needs them"),
    # the bytes of a shard
    "size": Rule(ERROR, BOTH, _COPY_AGAIN),
    "hash-mismatch": Rule(ERROR, BOTH, _COPY_AGAIN),
    "decompress": Rule(ERROR, BOTH, _COPY_AGAIN),
    "sample-count": Rule(ERROR, BOTH, _COPY_AGAIN),
    "offsets": Rule(ERROR, BOTH, _COPY_AGAIN),
    "header": Rule(ERROR, (CLOUDLOAD,), _REWRITE_INDEX),
    "sample-layout": Rule(ERROR, BOTH, _COPY_AGAIN),
    "not-utf8": Rule(ERROR, BOTH, "Convert the corpus again"),
    "value": Rule(ERROR, (STREAMING,), "Convert the corpus again"),
}
