"""List the shards of an MDS dataset as input files, in the order of its index."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cloudload.data.mds.codecs import check_codec
from cloudload.data.mds.index import INDEX_NAME, MOST_INDEX_BYTES, ShardInfo
from cloudload.data.mds.index_parser import parse_index
from cloudload.data.storage.objects import read_object
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import join_url
from cloudload.errors import ConvertError, DatasetError
from cloudload.tools.convert.found_files import FoundFile
from cloudload.tools.convert.input_files import InputFile


def refuse_index(location: str, files: Sequence[FoundFile]) -> None:
    """Raise `ConvertError` if a location is the `index.json` of an MDS dataset, not a document."""
    if [file.name for file in files] != [INDEX_NAME] or not location.endswith(INDEX_NAME):
        return
    with suppress(DatasetError):
        parse_index(read_object(files[0].url, most_bytes=MOST_INDEX_BYTES), redact(location))
        raise ConvertError(
            f"{redact(location)} is the index of an MDS dataset. Pass the folder that contains it"
        )


def is_mds_folder(files: Sequence[FoundFile]) -> bool:
    """Whether a folder's file names look like an MDS dataset."""
    has_index = any(file.name == INDEX_NAME for file in files)
    return has_index and any(".mds" in file.name for file in files)


def list_shards(folder: str, files: Sequence[FoundFile]) -> list[InputFile]:
    """List the stored shards of the dataset in a folder, each with its entry in the index.

    Raises `ConvertError` if the index is missing or invalid, if a shard is missing or has the wrong
    size, or if a package that decompresses shards is not installed.
    """
    found = {file.name: file for file in files}
    if INDEX_NAME not in found:
        raise ConvertError(
            f"{redact(folder)} has no {INDEX_NAME}. Pass the folder of an MDS dataset, or omit "
            "format (--format)"
        )
    try:
        data = read_object(found[INDEX_NAME].url, most_bytes=MOST_INDEX_BYTES)
        shards = [shard for shard in parse_index(data, redact(folder)) if shard.samples]
        for compression in {shard.compression for shard in shards}:
            check_codec(compression or "")
    except DatasetError as error:
        raise ConvertError(str(error)) from error
    return [_input_file(folder, shard, found.get(shard.stored.name)) for shard in shards]


def _input_file(folder: str, shard: ShardInfo, found: FoundFile | None) -> InputFile:
    stored = shard.stored
    if found is None or found.bytes != stored.bytes:
        fault = f"has {found.bytes:,} bytes" if found else "is missing"
        raise ConvertError(
            f"{redact(join_url(folder, stored.name))} {fault}, but the index lists it with "
            f"{stored.bytes:,} bytes. Copy the dataset again"
        )
    return InputFile(found.url, stored.name, found.bytes, "mds", None, shard, found.tag)
