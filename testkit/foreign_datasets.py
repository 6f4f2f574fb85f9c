"""Small datasets as other libraries write them: Megatron-LM's, LitData's, and WebDataset's.

Each function writes the documents it is given, in their order. Megatron-LM and LitData are not
installed here, so their files are written as their source code does it (megatron-core 0.16 and
litdata 0.2.76).
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Documents = Sequence[Sequence[int]]


def write_megatron(prefix: Path, documents: Documents, *, sequences: int = 1) -> None:
    """Write an indexed dataset of uint16, in which a document has up to this many sequences."""
    parts = [
        [each for each in np.array_split(np.array(document, "<u2"), sequences) if len(each)]
        for document in documents
    ]
    flat = [each for document in parts for each in document]
    lengths = [len(each) for each in flat]
    starts = 2 * np.cumsum([0, *lengths])[:-1]
    prefix.with_suffix(".bin").write_bytes(b"".join(each.tobytes() for each in flat))
    firsts = np.cumsum([0, *map(len, parts)])
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, len(flat), len(firsts))
        + np.array(lengths, "<i4").tobytes()
        + starts.astype("<i8").tobytes()
        + firsts.astype("<i8").tobytes()
    )


def write_litdata_tokens(folder: Path, documents: Documents, *, per_chunk: int = 20) -> None:
    """Write the chunks of a `TokensLoader`, with IDs of int64."""
    folder.mkdir()
    chunks: list[dict[str, Any]] = []
    for first in range(0, len(documents), per_chunk):
        items = [np.array(each, "<i8").tobytes() for each in documents[first : first + per_chunk]]
        offsets = np.cumsum([0, *map(len, items)]) + 4 + 4 * (len(items) + 1)
        name = f"chunk-0-{len(chunks)}.bin"
        header = struct.pack("<I", len(items)) + offsets.astype("<u4").tobytes()
        (folder / name).write_bytes(header + b"".join(items))
        chunks.append({"filename": name, "chunk_size": len(items)})
    config = {"item_loader": "TokensLoader", "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))


def write_webdataset(path: Path, texts: Sequence[str]) -> None:
    """Write an archive with a `.txt` and a `.json` for each text."""
    import webdataset

    with webdataset.TarWriter(str(path)) as archive:
        for number, text in enumerate(texts):
            fields = {"__key__": f"{path.stem}-{number:04d}", "txt": text}
            archive.write({**fields, "json": {"source": "a test"}})


def write_webdataset_ids(path: Path, documents: Documents) -> None:
    """Write an archive with an `.ids.npy` for each document."""
    import webdataset

    with webdataset.TarWriter(str(path), encoder=False) as archive:
        for number, document in enumerate(documents):
            buffer = io.BytesIO()
            np.save(buffer, np.array(document))
            archive.write({"__key__": f"{number:04d}", "ids.npy": buffer.getvalue()})
