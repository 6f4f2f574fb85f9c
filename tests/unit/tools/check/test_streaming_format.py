"""The tables in `check.index` match the installed version of Streaming."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from cloudload.tools.check import index_entries


@pytest.fixture(scope="module")
def formats() -> Any:
    return pytest.importorskip("streaming.base.format")


def test_the_fields_of_an_entry_are_the_arguments_of_its_reader(formats: Any) -> None:
    arguments = inspect.signature(formats.MDSReader.__init__).parameters.keys()
    expected = {*arguments, "version", "format"} - {"self", "dirname", "split"}
    assert expected == index_entries.ENTRY_FIELDS
    fields = {field.name for field in dataclasses.fields(formats.FileInfo)}
    assert fields == index_entries.FILE_FIELDS
    assert {*index_entries.OTHER_FORMATS, "mds"} == formats._readers.keys()


@pytest.mark.usefixtures("formats")
def test_encodings_compressions_and_hashes_are_those_of_its_registries() -> None:
    from streaming.base.compression import get_compressions
    from streaming.base.format.mds.encodings import get_mds_encodings, is_mds_encoding_safe
    from streaming.base.hashing import get_hashes, is_hash

    assert get_mds_encodings() == index_entries.ENCODINGS
    unsafe = {name for name in get_mds_encodings() if not is_mds_encoding_safe(name)}
    assert unsafe == index_entries.UNSAFE_ENCODINGS
    assert get_compressions() == index_entries.STREAMING_COMPRESSIONS
    for name in [*get_hashes(), "shake_128", "crc32c", "xxh3", "sha512_256"]:
        assert index_entries.knows_hash(name) == is_hash(name), name
