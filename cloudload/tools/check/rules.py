"""Every kind of finding: which readers it affects, how severe it is, and what to do.

An `error` means that a reader refuses the dataset, reads wrong samples, or misses some. A `warning`
means that a reader refuses the dataset with some settings or cannot verify it, or that a document
looks wrong. A `note` affects no reader.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
CLOUDLOAD, STREAMING = "cloudload", "Streaming"
BOTH = (CLOUDLOAD, STREAMING)


@dataclass(frozen=True)
class Rule:
    """A kind of finding: what it means, which readers it affects, and what to do."""

    meaning: str
    severity: str
    readers: tuple[str, ...]
    advice: str


_REWRITE_INDEX = "Convert the corpus again, or repair the entry in index.json"
_COPY_AGAIN = (
    "Copy the shard again from its source, or delete it and run the same cloudload convert again, "
    "which rebuilds missing shards"
)

RULES: dict[str, Rule] = {
    # the index
    "index-missing": Rule(
        "There is no `index.json`.",
        ERROR,
        BOTH,
        "Check the location and the split. A conversion writes index.json last. For folders that "
        "each have an index, run streaming.base.util.merge_index",
    ),
    "index-invalid": Rule(
        "The index is not JSON, has an unsupported version, or is too large.",
        ERROR,
        BOTH,
        "Convert the corpus again, or copy index.json again",
    ),
    "empty": Rule(
        "The dataset has no samples.",
        ERROR,
        BOTH,
        "Convert a corpus, or remove this stream from the run",
    ),
    "few-samples": Rule(
        "The dataset has at most 64 samples.",
        WARNING,
        (STREAMING,),
        "Set num_canonical_nodes below the number of samples. cloudload reads each sample once",
    ),
    # an entry of the index
    "format": Rule(
        "A shard is JSON, CSV, or TSV, not MDS.",
        ERROR,
        (CLOUDLOAD,),
        "Convert the corpus to MDS with `cloudload convert`",
    ),
    "entry-invalid": Rule(
        "A field of a shard's entry has a wrong type or an impossible value.",
        ERROR,
        (CLOUDLOAD,),
        _REWRITE_INDEX,
    ),
    "entry-fields": Rule(
        "A shard's entry has an unknown field, or lacks a field that Streaming requires.",
        ERROR,
        (STREAMING,),
        "Add the missing fields to index.json, and remove the others",
    ),
    "too-large": Rule(
        "A shard is larger than 4 GiB, the limit of its offsets.",
        ERROR,
        BOTH,
        "Convert the corpus again with a size limit below 4 GiB",
    ),
    "name-escapes": Rule(
        "A file name points outside the dataset's folder.",
        ERROR,
        BOTH,
        "Do not open this dataset with Streaming unless you trust its author",
    ),
    "name-refused": Rule(
        "A file name has a wildcard, control character, or reserved suffix, or is too long.",
        ERROR,
        (CLOUDLOAD,),
        "Rename the object, and its basename in index.json",
    ),
    "name-repeated": Rule(
        "Two files in the index have the same name.",
        ERROR,
        BOTH,
        "Remove one of the entries from index.json",
    ),
    "name-clash": Rule(
        "Two file names differ only in case, or one is also a folder.",
        ERROR,
        (CLOUDLOAD,),
        "Rename one of the objects, and its basename in index.json",
    ),
    "url": Rule(
        "Streaming's downloaders cannot request an object's name or location.",
        ERROR,
        (STREAMING,),
        "Rename the object or folder without these characters",
    ),
    "compression-unknown": Rule(
        "Neither reader supports the compression.", ERROR, BOTH, _REWRITE_INDEX
    ),
    "compression-level": Rule(
        "Streaming does not support the compression level.",
        ERROR,
        (STREAMING,),
        "Remove the level from `compression` in index.json",
    ),
    "codec-missing": Rule(
        "A package that decompresses the shards is not installed here.",
        ERROR,
        (CLOUDLOAD,),
        "Install the package",
    ),
    "compression-unused": Rule(
        "An entry names a compression, but no compressed file.",
        WARNING,
        (STREAMING,),
        "Set `compression` to null in index.json. Until then, never pass the only copy as local= "
        "without remote=",
    ),
    "hash-absent": Rule(
        "A shard has no hash that can be checked.",
        WARNING,
        BOTH,
        "Convert the corpus again with hashes",
    ),
    "hash-unknown": Rule(
        "Streaming cannot compute a hash.",
        WARNING,
        (STREAMING,),
        "Set validate_hash to a different hash, or omit it",
    ),
    "hash-partial": Rule(
        "Only some shards have a hash.",
        WARNING,
        (STREAMING,),
        "Set validate_hash to a hash that all shards have, or omit it",
    ),
    # columns
    "pickle": Rule(
        "A column has pickled values.",
        WARNING,
        BOTH,
        "Streaming requires allow_unsafe_types=True, which runs code from the data. cloudload "
        "reads the text only without a transform, because a transform receives every column",
    ),
    "encoding-unknown": Rule(
        "Streaming does not support the encoding of a column.",
        ERROR,
        (STREAMING,),
        "Convert the corpus again without this column",
    ),
    "encoding-unread": Rule(
        "cloudload does not decode the encoding of a column.",
        WARNING,
        (CLOUDLOAD,),
        "Read the text without a transform, because a transform receives every column",
    ),
    "columns-differ": Rule(
        "Shards have different columns.",
        WARNING,
        (STREAMING,),
        "Convert the corpus again with the same columns in all shards",
    ),
    "text-column": Rule(
        "A shard has no column of text, or of token IDs, with the given name.",
        ERROR,
        (CLOUDLOAD,),
        "Pass the name of the text column as text_key= (--text-key). For a column of token IDs, "
        "pass tokens_key= (--tokens-key) instead. For data without a text, pass "
        "None (none), or set chat of the run",
    ),
    # objects
    "shard-missing": Rule("A shard's object does not exist.", ERROR, BOTH, _COPY_AGAIN),
    "shard-unreachable": Rule(
        "A shard's object cannot be read.",
        ERROR,
        BOTH,
        "Correct the cause that the store reports, then run the check again",
    ),
    "raw-alone": Rule(
        "The folder has only the raw file of a compressed shard.",
        WARNING,
        (STREAMING,),
        "Copy the compressed shard again. Until then, do not pass this folder as local= without "
        "remote=",
    ),
    "raw-unverified": Rule(
        "The folder has both the raw file and the compressed file of a shard.",
        WARNING,
        (STREAMING,),
        "Remove the raw file, or open the folder as remote= with a different local=",
    ),
    "unlisted": Rule(
        "Objects look like shards, but are not in the index.",
        WARNING,
        BOTH,
        "Remove the shards, or add them with streaming.base.util.merge_index",
    ),
    "not-listed": Rule(
        "The store cannot list the folder.",
        NOTE,
        (),
        "Do not set sample, because missing objects can be found only by reading all shards",
    ),
    "unfinished": Rule(
        "A conversion or an append to the dataset has not finished.",
        NOTE,
        (),
        "Keep the objects, and run the same cloudload convert again to finish",
    ),
    "lengths-damaged": Rule(
        "Token lengths are damaged, or some are missing.",
        ERROR,
        (CLOUDLOAD,),
        "Remove the file, and run cloudload count again",
    ),
    "lengths-old": Rule(
        "There are token lengths of other data, such as before an append, or of an unfinished "
        "count.",
        NOTE,
        (),
        "Run cloudload count for lengths of the present data. Keep the old lengths if a run that "
        "began before an append will resume",
    ),
    "leftover": Rule(
        "The folder has other objects that no reader needs.",
        NOTE,
        (),
        "Remove the objects unless something else needs them",
    ),
    # the bytes of a shard
    "size": Rule("A file's size differs from the index.", ERROR, BOTH, _COPY_AGAIN),
    "hash-mismatch": Rule("A file's hash differs from the index.", ERROR, BOTH, _COPY_AGAIN),
    "decompress": Rule("A shard cannot be decompressed.", ERROR, BOTH, _COPY_AGAIN),
    "sample-count": Rule(
        "A shard's number of samples differs from the index.", ERROR, BOTH, _COPY_AGAIN
    ),
    "offsets": Rule("A shard's offsets descend, or point outside of it.", ERROR, BOTH, _COPY_AGAIN),
    "header": Rule(
        "A shard's header and the index list different columns.",
        ERROR,
        (CLOUDLOAD,),
        _REWRITE_INDEX,
    ),
    "sample-layout": Rule(
        "A sample's columns do not add up to its size.", ERROR, BOTH, _COPY_AGAIN
    ),
    "not-utf8": Rule("A text is not UTF-8.", ERROR, BOTH, "Convert the corpus again"),
    "value": Rule(
        "A JSON or number column has a value that cannot be parsed.",
        ERROR,
        (STREAMING,),
        "Convert the corpus again",
    ),
    # documents
    "text-empty": Rule(
        "A text is empty or only white space.",
        WARNING,
        (),
        "Leave out such documents when you convert the corpus. A run counts them as empty",
    ),
    "text-long": Rule(
        "A text has more bytes than `max_bytes`.",
        WARNING,
        (),
        "Split such documents when you convert the corpus. A worker tokenizes a document whole, "
        "which can take a second and 100 MB of memory for each MB of text",
    ),
    "text-special": Rule(
        "A text has the name of a special token.",
        WARNING,
        (),
        "cloudload encodes the name as text. Remove it if another tool may encode it as the token",
    ),
    "text-framed": Rule(
        "A text begins with the bos, or ends with the eos, that the loader adds.",
        WARNING,
        (),
        "Remove the token from the text, or pass bos=None or eos=None to the loader",
    ),
    "text-repeated": Rule(
        "A text is the same as an earlier one.",
        WARNING,
        (),
        "Remove the duplicates before you convert the corpus",
    ),
    "id-repeated": Rule(
        "An ID is the same as an earlier one.",
        WARNING,
        (),
        "Give each document a unique ID. `cloudload where --id` finds all documents with an ID",
    ),
    "chat-missing": Rule(
        "A sample has no messages.",
        WARNING,
        (),
        "Leave out such rows when you convert the corpus",
    ),
    "chat-invalid": Rule(
        "The messages of a sample are not the JSON of a conversation.",
        WARNING,
        (),
        "Repair or leave out such rows when you convert the corpus. If another column has the "
        "messages, or roles have other names, set messages_key or roles of Chat",
    ),
    "chat-unanswered": Rule(
        "A conversation has no assistant message, so nothing in it can be trained.",
        WARNING,
        (),
        "Leave out such rows when you convert the corpus",
    ),
    "chat-roles": Rule(
        "The roles of a conversation do not alternate between user and assistant, after an "
        "optional system message, with tools after an assistant.",
        WARNING,
        (),
        "Merge or remove messages. Many chat templates refuse such a conversation, or render it as "
        "the model never sees it",
    ),
    "chat-empty": Rule(
        "A message has no content.",
        WARNING,
        (),
        "Remove the message, or the row, when you convert the corpus",
    ),
    "chat-refused": Rule(
        "The chat template fails on a conversation, or does not show which of its tokens the model "
        "generates.",
        WARNING,
        (),
        "Repair or leave out such rows, use another template, or pass on_error='skip' to the "
        "loader, which then leaves them out",
    ),
    "chat-untrained": Rule(
        "A conversation has no trained token.",
        WARNING,
        (),
        "Change train of Chat, or leave out such rows when you convert the corpus. A run counts "
        "them as filtered",
    ),
    "chat-long": Rule(
        "A conversation has more tokens than `max_tokens` of `Chat`.",
        WARNING,
        (),
        "Increase max_tokens of Chat, or truncate or split such conversations with overlong of "
        "Chat",
    ),
    "framing-differs": Rule(
        "The tokenizer gives documents a different bos or eos than expected.",
        ERROR,
        (CLOUDLOAD,),
        "Pass bos= and eos= to the loader, or repair the tokenizer's files",
    ),
}
