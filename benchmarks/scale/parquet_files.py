"""Measure the index of very many large Parquet files, and a loader that starts from it.

    python -m benchmarks.scale.parquet_files [--files 50000] [--groups 470]

The files are in a simulated store. Each has --groups row groups of 1,000 documents with nine
columns, as FineWeb has, and about 2 GB of text. All row groups have the same bytes, and all files
the same footer, so the store needs little disk space.

index   `cloudload index` reads the footers of --footers of the files, and stores their index
open    a loader with one worker opens the index of all files, and gives its first batch, with an
        empty cache, and again

CPU seconds are those of the process and its worker. Memory is in MB of 10^6 bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, family_cpu, memory_of, run_child
from benchmarks.options import Options
from benchmarks.scale.simulated_store import ReadOnlyStore, loader_options, short_texts
from cloudload.data.storage import locations
from cloudload.data.storage.base import ObjectStream, StoredObject

URL = "s3://simulated/files"
_ROWS = 1_000
_MARK = b"PAR1"


def main() -> None:
    options = Options(__doc__)
    options.add_amount("files", 50_000, 20, "number of files")
    options.add_amount("footers", 5_000, 20, "number of files whose footers are read in `index`")
    options.add_amount("groups", 470, 8, "number of row groups in each file")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the index, and that of the loader's starts."""
    write_group_and_footer(folder, args.groups)
    request = {"folder": str(folder), "groups": args.groups}
    yield "index", [run_child(index_all, ONE_THREAD, files=args.footers, **request)]
    list_more(folder / "index" / "index.json", args.files)
    request["files"] = args.files
    starts = [run_child(open_index, ONE_THREAD, **request) for _ in range(2)]
    yield (
        "open",
        [{"cache": name} | row for name, row in zip(("empty", "kept"), starts, strict=True)],
    )


# ---------------------------------------------------------------- the store


def write_group_and_footer(folder: Path, groups: int) -> None:
    """Write the bytes of a row group, and the footer of a file with `groups` of them."""
    import pyarrow
    import pyarrow.parquet

    draw, texts = random.Random(0), list(short_texts(600 * _ROWS))
    rows = [
        {
            "text": " ".join(texts[draw.randrange(len(texts))] for _ in range(draw.randrange(320))),
            "id": f"<urn:uuid:{draw.getrandbits(128):032x}>",
            "dump": "CC-MAIN-2024-10",
            "url": f"https://example.org/{number}/{draw.getrandbits(40)}",
            "date": f"2024-02-{number % 28 + 1:02}T12:00:00Z",
            "file_path": f"s3://commoncrawl/crawl-data/CC-MAIN-2024-10/{number}.warc.gz",
            "language": "en",
            "language_score": draw.random(),
            "token_count": draw.randrange(1_000),
        }
        for number in range(_ROWS)
    ]
    table, sink = pyarrow.Table.from_pylist(rows), _Ends()
    with pyarrow.parquet.ParquetWriter(sink, table.schema, use_dictionary=False) as writer:
        for _ in range(groups):
            writer.write_table(table)
    end = sink.end()
    footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
    (folder / "footer").write_bytes(end[-footer_bytes:])
    group_bytes, rest = divmod(sink.size - footer_bytes - len(_MARK), groups)
    assert rest == 0
    (folder / "group").write_bytes(sink.first[len(_MARK) :][:group_bytes])


class _Ends(io.RawIOBase):
    """A file of which only the first and the last 16 MiB are kept."""

    _KEPT = 1 << 24

    def __init__(self) -> None:
        self.size, self.first = 0, bytearray()
        self._last, self._last_bytes = deque[bytes](), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.size += len(part)
        if len(self.first) < self._KEPT:
            self.first += part
        self._last.append(part)
        self._last_bytes += len(part)
        while self._last_bytes - len(self._last[0]) > self._KEPT:
            self._last_bytes -= len(self._last.popleft())
        return len(part)

    def end(self) -> bytes:
        """The last bytes of the file."""
        return b"".join(self._last)


class ParquetStore(ReadOnlyStore):
    """A store of `files` Parquet files, which counts what is read from them."""

    def __init__(self, folder: Path, files: int, groups: int) -> None:
        super().__init__(timeout_s=1)
        self._group, self._footer = ((folder / name).read_bytes() for name in ("group", "footer"))
        self._files, self._groups_bytes = files, groups * len(self._group)
        self.requests = self.bytes = 0

    def list(self, url: str) -> Iterator[StoredObject]:
        for number in range(self._files):
            yield StoredObject(f"{URL}/part-{number:05}.parquet", self._size, _tag(number))

    @property
    def _size(self) -> int:
        return len(_MARK) + self._groups_bytes + len(self._footer)

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        if not url.startswith(f"{URL}/part-"):
            raise FileNotFoundError(url)
        data = self._read(start, stop or self._size)
        self.requests, self.bytes = self.requests + 1, self.bytes + len(data)
        return ObjectStream(cast(io.RawIOBase, io.BytesIO(data)))

    def _read(self, start: int, stop: int) -> bytes:
        """The bytes of a range, which has a part of the row groups, of the footer, or of both."""
        first = len(_MARK)
        end = first + self._groups_bytes
        data = b""
        if start < end:
            skip = (start - first) % len(self._group)
            wanted = min(stop, end) - start
            data = (self._group * (2 + wanted // len(self._group)))[skip : skip + wanted]
        if stop > end:
            data += self._footer[max(0, start - end) : stop - end]
        return data


def _tag(number: int) -> str:
    return hashlib.md5(str(number).encode()).hexdigest()


def use_files(folder: Path, files: int, groups: int) -> ParquetStore:
    """Make this process and its forks read s3:// URLs from simulated files."""
    store = ParquetStore(folder, files, groups)
    locations.BACKENDS["s3"] = lambda _: store
    return store


# ---------------------------------------------------------------- the parts


def index_all(folder: str, files: int, groups: int) -> Row:
    """Index the files, and return the cost and the size of the index."""
    from cloudload.convert import index_files

    store, before = use_files(Path(folder), files, groups), memory_of("VmHWM")
    began_s, cpu_s = time.monotonic(), time.process_time()
    report = index_files(URL, f"{folder}/index")
    return {
        "files": files,
        "shards": report.shards,
        "samples": report.samples,
        "stored TB": report.stored_bytes / 1e12,
        "s": time.monotonic() - began_s,
        "CPU s": time.process_time() - cpu_s,
        "requests": store.requests,
        "MB read": store.bytes / 1e6,
        "MB of the index": Path(folder, "index", "index.json").stat().st_size / 1e6,
        "peak before, MB": before / 1e6,
        "peak, MB": memory_of("VmHWM") / 1e6,
    }


def list_more(index: Path, files: int) -> None:
    """Replace an index by one that lists `files` files, each with the shards of the first one."""
    stored = json.loads(index.read_bytes())
    template = stored["files"][0]
    stored["files"] = [
        template | {"name": f"part-{number:05}.parquet", "tag": _tag(number)}
        for number in range(files)
    ]
    index.write_text(json.dumps(stored))


def open_index(folder: str, files: int, groups: int) -> Row:
    """Open the stored index, read a batch, and return the cost."""
    from cloudload import CloudLoader

    use_files(Path(folder), files, groups)
    index = Path(folder, "index", "index.json")
    before, began_s, cpu_s = memory_of("VmHWM"), time.monotonic(), family_cpu()
    with CloudLoader(f"{folder}/index", **loader_options(Path(folder))) as loader:
        opened_s, opened_cpu_s = time.monotonic(), family_cpu()
        peak = memory_of("VmHWM")
        next(iter(loader))
        kept = sum(each.stat().st_size for each in Path(folder, "cache").glob("indexes/*"))
        return {
            "files": files,
            "shards": len(loader.worker_plan().recipe.corpus.shard_sizes),
            "MB of the index": index.stat().st_size / 1e6,
            "s to open": opened_s - began_s,
            "CPU s to open": opened_cpu_s - cpu_s,
            "s to the first batch": time.monotonic() - opened_s,
            "CPU s to the first batch": family_cpu() - opened_cpu_s,
            "peak before, MB": before / 1e6,
            "peak, MB": peak / 1e6,
            "PSS, MB": memory_of("Pss") / 1e6,
            "MB of the index in the cache": kept / 1e6,
        }


if __name__ == "__main__":
    main()
