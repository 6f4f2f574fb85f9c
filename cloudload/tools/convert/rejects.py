"""Rejects: the bad records that a conversion leaves out, as JSON Lines.

    {"file": "a.jsonl", "place": "12", "error": "invalid JSON (…)", "record": "{text: …}"}

    .convert/00003.rejects.jsonl   of segment 3 ─┐
    .convert/00007.rejects.jsonl   of segment 7 ─┴─► one file, in the order of the segments

The lines are a pure function of the plan and the segment, like shards. `record` has the bytes of
the record as text, or, if the format does not store records as bytes, the fields as JSON. Records
are cut off after 65,536 characters. A record that is not UTF-8 is in `record_base64`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.data import JOURNAL_FOLDER, Location, urls
from cloudload.system import temp_files
from cloudload.tools.convert import input_records

MOST_CHARACTERS = 1 << 16


def encode_reject(record: input_records.Record, error: str) -> bytes:
    """Encode a bad record as one line, including the newline."""
    line = {"file": record.source.name, "place": record.place, "error": error}
    raw = record.raw if record.raw is not None else _encode_fields(record.fields)
    if raw is not None:
        line |= _describe(raw)
    return json.dumps(line).encode() + b"\n"


def _describe(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        shown = base64.b64encode(raw[:MOST_CHARACTERS]).decode()
        return {"record_base64": shown, **_note_size(len(raw), "bytes")}
    return {"record": text[:MOST_CHARACTERS], **_note_size(len(text), "characters")}


def _note_size(size: int, unit: str) -> dict[str, int]:
    """Return a field with the full size of a record that is cut off. The unit is its name."""
    return {unit: size} if size > MOST_CHARACTERS else {}


def _encode_fields(fields: Mapping[str, Any] | None) -> bytes | None:
    try:
        return None if fields is None else json.dumps(dict(fields), default=str).encode()
    except (TypeError, ValueError, RecursionError):  # keys or cycles that JSON cannot express
        return None


def rejects_name(number: int) -> str:
    """Return the name of the object that stores a segment's rejects."""
    return f"{JOURNAL_FOLDER}/{number:05}.rejects.jsonl"


def store_rejects(file: BinaryIO, url: str) -> None:
    """Store a scratch file of rejects as an object."""
    file.flush()
    Location(url).upload(Path(file.name))


def join_rejects(location: str, numbers: Iterable[int], url: str) -> None:
    """Concatenate the rejects of segments, in order, and store them as one object.

    Raises `StoreError` if a segment's rejects are missing.
    """
    with temp_files.scratch_file() as file:
        for number in numbers:
            Location(urls.join_url(location, rejects_name(number))).download(file)
        store_rejects(file, url)
