"""What is seen of damaged caches, data and states: the sections `cache`, `data` and `state` of
`fault_table.py`.

Each read is a process of its own with 2 workers, from the making of the loader to the end of its
epoch, or to the error. The datasets of `cache` lie on S3, those of `data` and `state` in a folder.

seen        the error's class and message; or how many rows came, compared with those of sound data; and warnings, if any
seconds     from the making of the loader to that
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cloudload import CloudLoader
from tests.support.corpora import EOS, byte_tokenizer, encode_shard, random_documents, write_mds
from tests.support.fault_rows import left_overs, orphans, shared_memory, shorten, table
from tests.support.servers import start_s3

HEADS = ("fault", "seconds:", "seen")
MOST_S = 200.0
DOCUMENTS = random_documents(3, 300)
OTHERS = random_documents(4, 300)
_BOMB_BYTES = 1 << 30
State = dict[str, Any]


def nothing() -> None:
    """No fault."""


@dataclass
class Bench:
    """Folders, datasets and reads of one section."""

    folder: Path
    root: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self, kind: str = "cache") -> Path:
        """A new name in the folder."""
        return self.folder / f"{kind}-{next(self.numbers)}"

    def data(self, documents: list[str] = DOCUMENTS, **settings: Any) -> str:
        """A new dataset, in the section's store."""
        return write_mds(
            f"{self.root}/mds-{next(self.numbers)}",
            documents,
            **{"shard_bytes": 4_000, "compression": "zstd", **settings},
        )

    def read(
        self,
        data: Any,
        cache: Path | None = None,
        *,
        meanwhile: Callable[[], None] = nothing,
        **settings: Any,
    ) -> Seen:
        """All rows of an epoch, by another process; `meanwhile` is called when its loader is
        made."""
        before, cache = shared_memory(), cache or self.place()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        log = self.place("log")
        process = context.Process(
            target=_read, args=(theirs, log, meanwhile, {"data": data, "local": cache, **settings})
        )
        process.start()
        theirs.close()
        seen = Seen(MOST_S, "it hangs", "")
        if ours.poll(MOST_S):
            with contextlib.suppress(EOFError):
                seconds, message = ours.recv()
                seen = Seen(seconds, message, log.read_text())
        process.join(10)
        process.kill()
        left = [
            *sorted(orphans(before)),
            *(path.name for path in left_overs(cache) if not cache.is_mount()),
        ]
        return Seen(
            seen.seconds, f"{seen.message}{f'. LEFT: {left}' if left else ''}", seen.warnings
        )

    def state(self, data: str, **settings: Any) -> State:
        """A state of a few batches."""
        loader = _make_loader({"data": data, "local": self.place(), "num_workers": 0, **settings})
        with loader:
            list(loader.take(3))
            return dict(loader.state_dict())


@dataclass(frozen=True)
class Seen:
    """What one read came to."""

    seconds: float
    message: str
    warnings: str


def _make_loader(settings: Mapping[str, Any]) -> CloudLoader:
    defaults = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": 64,
        "batch_size": 4,
        "num_workers": 2,
        "num_lanes": 12,
    }
    given = {**defaults, "epochs": 1, **settings}
    return CloudLoader(given.pop("data"), **given)


def _read(
    answer: Connection, log: Path, meanwhile: Callable[[], None], settings: dict[str, Any]
) -> None:
    """In a process of its own."""
    logging.basicConfig(filename=log, format="%(levelname)s %(message)s", level=logging.WARNING)
    log.touch()
    state, began, digest, rows = settings.pop("state", None), time.monotonic(), hashlib.sha256(), 0
    try:
        with _make_loader(settings) as loader:
            if state is not None:
                loader.load_state_dict(state)
            meanwhile()
            for batch in loader:
                digest.update(batch["input_ids"].numpy().tobytes())
                rows += len(batch["input_ids"])
        message = f"{rows} rows #{digest.hexdigest()[:8]}"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    answer.send((time.monotonic() - began, message))


def measure(section: str, names: list[str], folder: Path) -> str:
    """The table of one section: the faults with these names, or all."""
    cases = SECTIONS[section]
    with contextlib.ExitStack() as running:
        root = str(folder / "store")
        if section == "cache":
            server = running.enter_context(start_s3())
            os.environ.update(server.environment())
            root = "s3://cloudload/files"
        bench = Bench(folder, root)
        bench.state(bench.data())  # so that reads, which are forked, need not import
        sound = {
            bench.read(bench.data(documents)).message: kind
            for documents, kind in ((DOCUMENTS, ""), (OTHERS, "new "))
        }
        rows = [
            (name, *_show(act(bench), sound))
            for name, act in cases.items()
            if not names or name in names
        ]
    return table(section.capitalize(), HEADS, rows)


def _show(seen: Seen, sound: Mapping[str, str]) -> tuple[str, str]:
    message = seen.message
    if message in sound:
        message = f"every {sound[message]}row, as of sound data"
    warnings = "".join(
        f". Log: {shorten(line)}" for line in sorted(set(seen.warnings.splitlines()))
    )
    return f"{seen.seconds:.1f}", f"{shorten(message)}{warnings}"


# ---------------------------------------------------------------- cache


def cached_shard(damage: Callable[[bytes], bytes]) -> Callable[[Bench], Seen]:
    """A cached shard that was written to."""

    def act(bench: Bench) -> Seen:
        data, cache = bench.data(), bench.place()
        bench.read(data, cache)
        _change(next(cache.rglob("shard.00002.mds")), damage)
        return bench.read(data, cache)

    return act


def cached_order(damage: Callable[[bytes], bytes]) -> Callable[[Bench], Seen]:
    """A cached order that was written to."""

    def act(bench: Bench) -> Seen:
        data, cache = bench.data(), bench.place()
        bench.read(data, cache)
        orders = [path for path in (cache / "orders").rglob("*") if path.is_file()]
        assert orders
        for path in orders:
            _change(path, damage)
        return bench.read(data, cache)

    return act


def _change(path: Path, damage: Callable[[bytes], bytes]) -> None:
    path.write_bytes(damage(path.read_bytes()))


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _index(url: str) -> dict[str, Any]:
    from cloudload.storage.objects import read_object

    return dict(json.loads(read_object(f"{url}/index.json")))


def _write(url: str, data: bytes) -> None:
    from cloudload.storage.objects import write_object

    write_object(url, data)


def _zipped_name(url: str, number: int) -> str:
    return str(_index(url)["shards"][number]["zip_data"]["basename"])


def corrupt_in_store(bench: Bench) -> Seen:
    """The store gives the same wrong bytes each time."""
    from cloudload.storage.objects import read_object

    data = bench.data()
    url = f"{data}/{_zipped_name(data, 2)}"
    _write(url, _flip(read_object(url)))
    return bench.read(data)


def missing_in_store(bench: Bench) -> Seen:
    """The index lists a shard that is not there."""
    from cloudload.storage.objects import delete_object

    data = bench.data()
    delete_object(f"{data}/{_zipped_name(data, 2)}")
    return bench.read(data)


def other_header(bench: Bench) -> Seen:
    """The index says another encoding of the column than the shard."""
    data = bench.data()
    index = _index(data)
    index["shards"][2]["column_encodings"] = ["bytes"]
    _write(f"{data}/index.json", json.dumps(index).encode())
    return bench.read(data)


def republished(bench: Bench) -> Seen:
    """The dataset of a full cache is another one now."""
    data, cache = bench.data(), bench.place()
    bench.read(data, cache)
    _republish(data)
    return bench.read(data, cache)


def _republish(data: str) -> None:
    write_mds(data, OTHERS, shard_bytes=4_000, compression="zstd")


def republished_while_read(bench: Bench) -> Seen:
    """The dataset is replaced after a loader has read its index."""
    data = bench.data()
    return bench.read(data, meanwhile=lambda: _republish(data))


def full_disk(bench: Bench) -> Seen:
    """A file system that holds less than a shard."""
    with _small_disk(bench, "32k") as cache:
        return bench.read(bench.data(shard_bytes=80_000), cache)


@contextlib.contextmanager
def _small_disk(bench: Bench, size: str) -> Iterator[Path]:
    folder = bench.place("small")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only(*, is_filled: bool) -> Callable[[Bench], Seen]:
    """A file system that may not be written to (root may write to any folder, whatever its
    mode)."""

    def act(bench: Bench) -> Seen:
        data = bench.data()
        with _small_disk(bench, "1m") as cache:
            if is_filled:
                bench.read(data, cache)
            subprocess.run(["mount", "-o", "remount,ro", str(cache)], check=True)
            return bench.read(data, cache)

    return act


def small_limit(bench: Bench) -> Seen:
    """Less than what the workers have in use at a time."""
    return bench.read(bench.data(), cache_limit=9_000)


def cache_in_dataset(bench: Bench) -> Seen:
    """`local` names a folder of the dataset."""
    folder = bench.place("local")
    write_mds(folder, DOCUMENTS, shard_bytes=4_000)
    return bench.read(str(folder), folder / "cache")


# ---------------------------------------------------------------- data


def streams(
    column: str = "text", encoding: str = "str", values: tuple[Any, ...] = ("a",)
) -> Callable[[Bench], Seen]:
    """Two streams, of which the second is of that one column."""

    def act(bench: Bench) -> Seen:
        return bench.read(
            [bench.data(compression=None), _write_raw(bench.place("two"), column, encoding, values)]
        )

    return act


def _write_raw(folder: Path, column: str, encoding: str, values: tuple[Any, ...]) -> str:
    """A dataset of one raw shard with one column of any encoding."""
    from cloudload.mds.index import Column
    from cloudload.mds.writer import ShardFormat, encode_sample

    columns = (Column.of(column, encoding),)
    form = ShardFormat(columns, None, ())
    raw = encode_shard(form, [encode_sample(columns, {column: value}) for value in values])
    folder.mkdir(parents=True)
    (folder / "shard.mds").write_bytes(raw)
    entry = {**form.config(), "samples": len(values), "zip_data": None}
    entry["raw_data"] = {"basename": "shard.mds", "bytes": len(raw), "hashes": {}}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return str(folder)


def pickle_column(bench: Bench) -> Seen:
    """The index says that the text column is pickled."""
    folder = Path(_write_raw(bench.place("pickle"), "text", "bytes", (b"abc",)))
    _change(folder / "index.json", lambda data: data.replace(b'["bytes"]', b'["pkl"]'))
    return bench.read(str(folder))


def empty_stream(bench: Bench) -> Seen:
    """A stream without shards beside a full one."""
    return bench.read([write_mds(bench.place("empty"), []), bench.data()])


def no_documents(sizes: list[int] | None) -> Callable[[Bench], Seen]:
    """Nothing to read at all."""
    return lambda bench: bench.read(write_mds(bench.place("empty"), [], shard_samples=sizes))


def half_a_pair(sample: dict[str, Any]) -> str:
    """A transform that gives what is no text."""
    return "half a pair: \ud83e" if sample["text"].startswith("77:") else str(sample["text"])


def changed_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Bench], Seen]:
    """An index in which one thing is not so."""

    def act(bench: Bench) -> Seen:
        data = bench.data(compression=None)
        index = _index(data)
        change(index["shards"][2])
        _write(f"{data}/index.json", json.dumps(index).encode())
        return bench.read(data)

    return act


def index_of(data: bytes) -> Callable[[Bench], Seen]:
    """An index of other bytes."""

    def act(bench: Bench) -> Seen:
        url = bench.data()
        _write(f"{url}/index.json", data)
        return bench.read(url)

    return act


def wrong_offset(bench: Bench) -> Seen:
    """A sample of a shard, without a hash, ends beyond it."""
    data = bench.data(compression=None, hashes=())
    _change(
        Path(data, "shard.00002.mds"), lambda raw: raw[:8] + struct.pack("<I", 1 << 31) + raw[12:]
    )
    return bench.read(data)


def bomb(bench: Bench) -> Seen:
    """A shard of a few bytes that unpack to a gigabyte."""
    from cloudload.mds.codecs import compress

    data = bench.data(hashes=())
    zipped = compress("zstd", bytes(_BOMB_BYTES))
    index = _index(data)
    index["shards"][2]["zip_data"]["bytes"] = len(zipped)
    _write(f"{data}/{_zipped_name(data, 2)}", zipped)
    _write(f"{data}/index.json", json.dumps(index).encode())
    return bench.read(data)


def fifo(name: str) -> Callable[[Bench], Seen]:
    """A pipe, which whoever opens it waits for."""

    def act(bench: Bench) -> Seen:
        data = bench.data(compression=None)
        Path(data, name).unlink()
        os.mkfifo(Path(data, name))
        return bench.read(data)

    return act


# ---------------------------------------------------------------- state


def changed_state(change: Callable[[State], State], **settings: Any) -> Callable[[Bench], Seen]:
    """A state in which some fields are others."""

    def act(bench: Bench) -> Seen:
        data = bench.data()
        state = bench.state(data, **settings)
        return bench.read(data, state={**state, **change(state)}, **settings)

    return act


def other_dataset(bench: Bench) -> Seen:
    """The state of a run over other data."""
    return bench.read(bench.data(), state=bench.state(bench.data(OTHERS)))


def _cursors(ordinal: int, offset: int, width: str = "<i4") -> str:
    return base64.b64encode(np.array([(ordinal, offset)] * 12, width).tobytes()).decode()


SECTIONS: dict[str, dict[str, Callable[[Bench], Seen]]] = {
    "cache": {
        "cached shard cut short": cached_shard(lambda data: data[:100]),
        "byte flipped in a cached shard": cached_shard(_flip),
        "cached shard emptied": cached_shard(lambda _: b""),
        "shard corrupt in the store": corrupt_in_store,
        "shard missing in the store": missing_in_store,
        "shard's header disagrees with the index": other_header,
        "dataset republished, same cache": republished,
        "dataset republished while it is read": republished_while_read,
        "disk full": full_disk,
        "cache_limit below the working set": small_limit,
        "cache read-only, empty": read_only(is_filled=False),
        "cache read-only, filled": read_only(is_filled=True),
        "cache within a local dataset": cache_in_dataset,
        "order file cut short": cached_order(lambda data: data[:-100]),
        "byte flipped in the order file": cached_order(_flip),
        "order file emptied": cached_order(lambda _: b""),
    },
    "data": {
        "text column missing in one stream of two": streams("body"),
        "text column of type int": streams("text", "int", (1,)),
        "empty stream beside a full one": empty_stream,
        "no shards at all": no_documents(None),
        "shards without samples": no_documents([0, 0]),
        "invalid UTF-8 in a bytes column": streams("text", "bytes", (b"fine", b"caf\xe9")),
        "lone surrogate from a transform": lambda bench: bench.read(
            bench.data(), transform=half_a_pair
        ),
        "pickle column": pickle_column,
        "`..` in a name of the index": changed_index(
            lambda shard: shard["raw_data"].update(basename="../../secret.mds")
        ),
        "index says more bytes than the shard has": changed_index(
            lambda shard: shard["raw_data"].update(bytes=9_999)
        ),
        "index says more samples than the shard has": changed_index(
            lambda shard: shard.update(samples=shard["samples"] + 1)
        ),
        "index says more samples than any shard has": changed_index(
            lambda shard: shard.update(samples=1 << 40)
        ),
        "offset outside the shard": wrong_offset,
        "zstd bomb": bomb,
        "index of random bytes": index_of(bytes(range(256))),
        "index `null`": index_of(b"null"),
        "index without shards' list": index_of(b'{"version": 2}'),
        "index nested 100,000 deep": index_of(b"[" * 100_000),
        "FIFO as index": fifo("index.json"),
        "FIFO as shard": fifo("shard.00002.mds"),
    },
    "state": {
        "truncated base64": changed_state(lambda state: {"cursors": state["cursors"][:-3]}),
        "cut to whole base64": changed_state(lambda state: {"cursors": state["cursors"][:-32]}),
        "edited field (seed)": changed_state(lambda _: {"seed": 18}),
        "edited field (rows: -4)": changed_state(lambda _: {"rows": -4}),
        "field missing": lambda bench: bench.read(
            data := bench.data(), state={"version": bench.state(data)["version"]}
        ),
        "newer version": changed_state(
            lambda state: {"version": state["version"] + 1, "cloudload": "9.0"}
        ),
        "another dataset": other_dataset,
        "cursor beyond any run": changed_state(lambda _: {"cursors": _cursors(1 << 39, 0, "<i8")}),
        "cursor beyond its document": changed_state(lambda _: {"cursors": _cursors(0, 10**6)}),
        "zlib bomb in residues": changed_state(
            lambda _: {"residues": base64.b64encode(zlib.compress(bytes(1 << 26))).decode()},
            packing="best_fit",
        ),
    },
}
