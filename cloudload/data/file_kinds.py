"""Classify input files by name or by their first bytes, for the converter.

name                   how the file is read
.jsonl .parquet …      with the reader of its format
.xlsx .zip .png …      not at all, because its bytes are not text
_temporary/ .git/ …    not at all, because it is hidden or not committed
README.md SHA256SUMS … not at all beside records, because it is about the data
_delta_log/ …          refused, because its table also has files with deleted rows
anything else          as text
"""

from __future__ import annotations

import codecs
import re
from pathlib import PurePosixPath

COMPRESSIONS = {".gz": "gz", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
_TAR_SHORT_FORMS = {".tgz": "gz", ".tbz": "bz2", ".tbz2": "bz2", ".txz": "xz", ".tzst": "zstd"}
FORMATS_BY_EXTENSION = {
    **dict.fromkeys([".jsonl", ".ndjson"], "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    **dict.fromkeys([".parquet", ".pq"], "parquet"),
    **dict.fromkeys([".arrow", ".feather", ".ipc"], "arrow"),
    ".tar": "webdataset",
    ".wet": "wet",
}

_TABLE = "a table. Convert it to JSON Lines or Parquet"
_ARCHIVE = "an archive. Unpack it"
_CRAWL = "a crawl of web pages without their text. Use the WET files of the crawl"
_PACKED = "compressed in an unsupported way. Use gz, zstd, bz2 or xz"
_DOCUMENT = "a formatted document. Extract its text"
_BINARY = "not text"
_MDS = "a shard of an MDS dataset. Pass the folder that contains its index.json"

_ADVICE = {
    _TABLE: "xls xlsx ods orc avro h5 hdf5 db sqlite sqlite3 dbf lance duckdb",
    _ARCHIVE: "zip 7z rar cpio iso dmg jar whl deb rpm zim",
    _CRAWL: "warc wat arc",
    _PACKED: "z lz lz4 lzma lzo br sz snappy",
    _DOCUMENT: "pdf doc docx ppt pptx odt odp epub mobi azw3 djvu",
    _BINARY: "png jpg jpeg gif bmp tif tiff webp ico heic avif psd mp3 wav flac ogg opus m4a aac "
    "mp4 mkv avi mov webm wmv woff woff2 ttf otf eot exe dll so dylib o a class pyc wasm bin "
    "npy npz pkl pickle pt pth ckpt safetensors gguf onnx tflite pb tfrecord tfrecords rds mat",
    _MDS: "mds",
}
_REFUSED = {f".{name}": advice for advice, names in _ADVICE.items() for name in names.split()}

_STARTS = {"gz": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""Maps each compression to the first bytes of its files."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_SHOWN_BYTES = 32

_KINDS_BY_CONTENT = {
    b"\xff\xfe": "UTF-16. Convert it with iconv",
    b"\xfe\xff": "UTF-16. Convert it with iconv",
    _STARTS["gz"]: "gz. Rename the file to end in .gz",
    _STARTS["zstd"]: "zstd. Rename the file to end in .zst",
    _STARTS["bz2"]: "bz2. Rename the file to end in .bz2",
    _STARTS["xz"]: "xz. Rename the file to end in .xz",
    b"PAR1": "Parquet. Rename the file to end in .parquet, or set the format",
    b"ARROW1": "Arrow. Rename the file to end in .arrow, or set the format",
    b"PK\x03\x04": "zip. Unpack it",
    b"%PDF": "PDF. Extract its text",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a SQLite database. Convert it to JSON Lines or Parquet",
}
"""Maps the first bytes of a file that is not UTF-8 text to its format, with advice."""


def split_name(name: str) -> tuple[str, str | None]:
    """Return a file name's extension and compression (or None), such as `.jsonl` and `gz`."""
    path = PurePosixPath(name.lower())
    if short := _TAR_SHORT_FORMS.get(path.suffix):
        return ".tar", short
    compression = COMPRESSIONS.get(path.suffix)
    return path.with_suffix("").suffix if compression else path.suffix, compression


def reason_to_refuse(name: str) -> str | None:
    """Return why a file with this name is refused, with advice; None if it can be read."""
    extension, _ = split_name(name)
    return _REFUSED.get(extension)


def starts_compressed(content: bytes) -> bool:
    """Whether a file begins like one in a compressed format."""
    return content.startswith(tuple(_STARTS.values()))


def describe_misnamed(content: bytes, compression: str | None) -> str | None:
    """Describe why a file that starts with `content` is not what its name says; None if it is.

    `compression` is the one in its name.
    """
    if content.startswith(_LFS_POINTER):
        return (
            "the file is a Git LFS pointer, not the data. Fetch the data with git lfs pull, or "
            "leave the file out"
        )
    if compression is None or content.startswith(_STARTS[compression]) or not content.strip(b"\0"):
        return None
    if kind := recognize(content):
        return f"the file is not {compression} data. It starts like {kind}"
    if (start := _decode_start(content)) is None:
        return None
    return (
        f"the file is not {compression} data. It starts with the text {start!r}. Rename it without "
        "the extension of the compression"
    )


def _decode_start(content: bytes) -> str | None:
    """Return the first characters of a text, or None if `content` does not start like text."""
    try:
        start = codecs.getincrementaldecoder("utf-8")().decode(content[:_SHOWN_BYTES])
    except UnicodeDecodeError:
        return None
    is_text = start and all(sign.isprintable() or sign.isspace() for sign in start)
    return start if is_text else None


def describe_utf_16(content: bytes) -> str | None:
    """Describe text in UTF-16 without a byte order mark; None if the content is different."""
    for codec, zeros in (("UTF-16LE", content[1:8:2]), ("UTF-16BE", content[0:8:2])):
        if len(content) >= 4 and not zeros.strip(b"\0") and content[:8].strip(b"\0"):
            return f"the file is UTF-16 without a byte order mark. Convert it with iconv -f {codec}"
    return None


def recognize(content: bytes) -> str | None:
    """Return the format of a file that starts with `content`, with advice; None if unknown."""
    kinds = (kind for start, kind in _KINDS_BY_CONTENT.items() if content.startswith(start))
    return next(kinds, None)


def describe_not_utf8(error: UnicodeDecodeError) -> str:
    """Describe the problem of a record that is not valid UTF-8."""
    fault = f"not UTF-8 (byte 0x{error.object[error.start]:02x} at offset {error.start})"
    kind = recognize(error.object)
    return f"{fault}. The data starts like {kind}" if kind else fault


# ---------------------------------------------------------------- hidden files, tables

_UNCOMMITTED = ("._COPYING_", "_$folder$")  # a copy in progress, and a marker of a folder


def hidden_part(name: str) -> str:
    """The start of a file's path up to its first hidden file or folder, or "" if it has none.

    `a/_temporary/0/b.jsonl` has `a/_temporary/`. Names that begin with a dot or an underscore are
    hidden, as in Spark. `_x=1` is not, because it is the value of a partition.
    """
    end = 0
    for part in name.split("/"):
        end += len(part) + 1
        is_underscored = part.startswith("_") and "=" not in part
        if part.startswith(".") or is_underscored or part.endswith(_UNCOMMITTED):
            return name[:end]
    return ""


_ABOUT_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|citation|authors)([._-].*)?"
    r"|(md5|sha\d+|b2)(sums?)?(\.txt)?|checksums?(\.\w+)*|manifest([._-].*)?"
    r"|(dataset_infos?|dataset_dict|state|croissant)\.json"
    r"|.*\.(md5|sha\d+|md5sums?|sha\d+sums?|crc|crc32|asc|sig)|.*\.paths"
)


def is_about_data(name: str) -> bool:
    """Whether a file's name is that of a file about the data beside it, not of data.

    Such are `README.md`, `LICENSE`, `SHA256SUMS`, `a.md5`, `wet.paths.gz`, and
    `dataset_infos.json`.
    """
    base = name.lower().rpartition("/")[2]
    if split_name(base)[1]:
        base = base.rpartition(".")[0]
    return _ABOUT_DATA.fullmatch(base) is not None


def find_table(name: str) -> tuple[str, str] | None:
    """The folder and the kind of the table to whose log an object belongs, or None.

    `t/_delta_log/00.json` belongs to the Delta table in `t/`.
    """
    for mark, kind in (("_delta_log/", "Delta"), (".hoodie/", "Hudi")):
        start = f"/{name}".find(f"/{mark}")
        if start >= 0:
            return name[:start], kind
    folder, found, base = f"/{name}".rpartition("/metadata/")
    is_metadata = found and "/" not in base and ".metadata.json" in base
    return (f"{folder}/"[1:], "Iceberg") if is_metadata else None


def is_table_data(name: str) -> bool:
    """Whether a file's name is one that the data files of tables have."""
    return split_name(name)[0] in (".parquet", ".pq", ".orc")


def refuse_table(location: str, kind: str) -> str:
    """Say why the folder of a table is refused, and what to pass instead."""
    files = {
        "Delta": f"the files of its current version (deltalake.DeltaTable({location!r})"
        ".file_uris())",
        "Iceberg": "the files of its current version (pyiceberg's table.scan().plan_files())",
    }
    instead = f"Pass {files[kind]}, or write" if kind in files else "Write"
    return (
        f"{location} is {'an' if kind == 'Iceberg' else 'a'} {kind} table. Its folder also has "
        f"files with deleted and replaced rows. {instead} a copy of the table as plain Parquet"
    )
