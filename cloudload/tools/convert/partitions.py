"""The fields in the names of a file's folders, which Hive, Spark, and DuckDB write as `name=value`.

corpus/lang=en/year=2024/a.parquet             lang "en", year "2024"
corpus/note=a%2Fb/a.jsonl                      note "a/b"
corpus/lang=__HIVE_DEFAULT_PARTITION__/a.csv   lang null
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

from cloudload.data.storage.urls import scheme_of, utf8_name
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.records import Record

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_fields(record: Record) -> Mapping[str, str | None]:
    """Return the fields in the path of a record's file, as text. Rows of datasets have none."""
    return _read_path(record.source.url) if isinstance(record.source, InputFile) else {}


@lru_cache(1024)
def _read_path(url: str) -> Mapping[str, str | None]:
    if scheme_of(url) in ("http", "https"):
        url = url.partition("?")[0]
    pairs = (folder.partition("=") for folder in url.split("/")[:-1] if "=" in folder)
    return {
        _decode(name): None if value == _NULL else _decode(value)
        for name, _, value in pairs
        if name
    }


def _decode(text: str) -> str:
    try:
        return unquote(utf8_name(text), errors="strict")
    except UnicodeDecodeError:
        return utf8_name(text)
