"""Throw hostile input at what reads data and states: nothing may come of it but cloudload's own
errors.

    python scripts/fuzz.py                                         # every target for a minute
    python scripts/fuzz.py state index --seconds 600 --findings f  # some of them for longer

    index              bytes of an index.json           parse_index, and all that follows from it alone
    shard              bytes of a shard                 Shard, and every sample of it
    shard-structured   sound shards, some bytes changed
    decompress         bytes under each codec           never more than one byte beyond what the index says
    state              sound states of all packings, fields changed     load_state_dict, and two batches; merge_state_dicts
    tokenizer-text     texts with the names of control tokens in them   never a control id, both backends alike

A finding is any other error, an input that takes seconds, or one that takes hundreds of megabytes.
Its input is written to the folder of findings, from which `--replay FILE` runs it again; the exit
status is then 1. Guided by coverage where `atheris` is installed (pip install atheris), else by a
loop of its own; `--engine` says which.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import json
import os
import random
import re
import resource
import signal
import string
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]

T = TypeVar("T")

MOST_SECONDS, MOST_GROWTH_MB = 10, 600
_MOST_INPUT_BYTES = 4096


class Choices:
    """Decisions out of bytes: the same bytes, the same decisions; 0 when they run out."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, number: int) -> bytes:
        """The next bytes, or as many as there are."""
        start, self._place = self._place, self._place + number
        return self._data[start : self._place]

    def number(self, below: int) -> int:
        """A number from 0 on."""
        return (
            int.from_bytes(self.take(max(1, (below - 1).bit_length() + 7 >> 3)), "little") % below
        )

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.number(len(items))]


class Finding(Exception):
    """What an input must not bring about."""


def expect(is_so: bool, what: str) -> None:
    """Raise a finding where something is not so."""
    if not is_so:
        raise Finding(what)


# ---------------------------------------------------------------- index


def index_seeds() -> list[bytes]:
    """Indexes of several kinds."""
    shard = {
        "column_encodings": ["str", "int", "bytes"],
        "column_names": ["a", "b", "text"],
        "column_sizes": [None, 8, None],
        "compression": None,
        "format": "mds",
        "hashes": ["xxh64"],
        "raw_data": {
            "basename": "shard.00000.mds",
            "bytes": 4000,
            "hashes": {"xxh64": "0123456789abcdef"},
        },
        "samples": 20,
        "size_limit": 67108864,
        "version": 2,
        "zip_data": None,
    }
    zipped = {
        **shard,
        "compression": "zstd:7",
        "raw_data": {"basename": "b/shard.00001.mds", "bytes": 4000, "hashes": {}},
        "zip_data": {"basename": "b/shard.00001.mds.zstd", "bytes": 400, "hashes": {"sha1": "a"}},
    }
    lists: list[list[Any]] = [[], [shard], [shard, zipped], [zipped]]
    return [json.dumps({"version": 2, "shards": shards}).encode() for shards in lists]


def run_index(data: bytes) -> None:
    """Parse an index, and ask all that only it decides."""
    from cloudload.cache.folder import dataset_folder
    from cloudload.mds.codecs import compression_extension
    from cloudload.mds.dataset import Corpus, Dataset, check_text_column
    from cloudload.mds.hashes import fastest_hash
    from cloudload.mds.index import parse_index

    dataset = Dataset("s3://bucket/folder", parse_index(data, "s3://bucket/folder"), "0" * 64)
    root = Path("/cache")
    folder = dataset_folder(root, dataset)
    files = [
        folder / file.name
        for shard in dataset.shards
        for file in (shard.raw, shard.zipped)
        if file is not None
    ]
    for path in files:
        inside = os.path.normpath(path)
        expect(inside == str(path) and inside.startswith(f"{folder}/"), f"{path} leaves the cache")
        expect(not inside.endswith((".part", ".lock")), f"{path} is the cache's own")
    expect(len(set(files)) == len(files), "two files fall together")
    for shard in dataset.shards:
        expect(4 * (shard.samples + 2) <= shard.raw.bytes < 1 << 32, "a size that no shard has")
        fastest_hash(shard.stored.hashes)
        if shard.compression:
            compression_extension(shard.compression)
    corpus = Corpus((dataset, dataset))
    expect(
        corpus.num_samples == 2 * sum(shard.samples for shard in dataset.shards),
        "samples do not add up",
    )
    corpus.fingerprint(range(2))
    check_text_column(corpus, "text")


# ---------------------------------------------------------------- shards


_COLUMNS = (("id", "str"), ("meta", "json"), ("n", "int"), ("text", "str"), ("z", "bytes"))


@functools.cache
def sound_shards() -> list[tuple[bytes, int, Any]]:
    """(raw bytes, samples, columns) of shards with one column, and with several."""
    from cloudload.mds.index import Column
    from cloudload.mds.writer import ShardFormat, encode_sample
    from tests.support.corpora import encode_shard

    several = tuple(Column.of(name, encoding) for name, encoding in _COLUMNS)
    values = [
        {"id": f"d{i}", "n": i, "meta": {"i": [i]}, "text": "aé狐"[: i % 4], "z": bytes([i])}
        for i in range(4)
    ]
    shards = []
    for columns in ((Column.of("text", "str"),), several):
        for count in (0, 1, 4):
            samples = [encode_sample(columns, sample) for sample in values[:count]]
            shards.append((encode_shard(ShardFormat(columns, None, ()), samples), count, columns))
    return shards


@functools.cache
def shard_path() -> Path:
    """One file, in memory where the machine has a place for that, which every input is written
    to."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="cloudload-fuzz-", dir=folder)) / "shard.mds"


def read_shard(raw: bytes, samples: int, columns: Any) -> None:
    """Open bytes as a shard, and read all of it in every way; a sample that cannot be read does not
    end it."""
    from cloudload.errors import DatasetError
    from cloudload.mds.index import FileInfo, ShardInfo
    from cloudload.mds.shard import Shard

    shard_path().write_bytes(raw)
    shard = Shard(
        shard_path(), ShardInfo(samples, columns, FileInfo("shard.mds", len(raw), {}), None, None)
    )
    text = shard.column_index("text")
    for sample in range(min(samples, 64)):
        with contextlib.suppress(DatasetError):
            shard.read(sample)
        with contextlib.suppress(DatasetError):
            [found] = shard.read_texts([sample], text)
            expect(found.encode() == shard.read_bytes(sample, text), "a text of other bytes")
        shard.where(sample)


def shard_seeds() -> list[bytes]:
    """Whole shards behind a byte that says which columns they have."""
    return [bytes([number]) + raw for number, (raw, _, _) in enumerate(sound_shards())]


def run_shard(data: bytes) -> None:
    """Any bytes as a shard of as many samples as it says itself."""
    choices = Choices(data)
    _, _, columns = choices.pick(sound_shards())
    raw = choices.take(len(data))
    told = int.from_bytes(raw[:4], "little")
    read_shard(raw, told if 4 * (told + 2) <= len(raw) else 0, columns)


_WORDS = (0, 1, 4, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def run_shard_structured(data: bytes) -> None:
    """A sound shard of which some numbers or bytes are others."""
    choices = Choices(data)
    raw, samples, columns = choices.pick(sound_shards())
    spoiled = bytearray(raw)
    while choices:
        place = choices.number(len(spoiled))
        if choices.number(2):
            place = min(place - place % 4, len(spoiled) - 4)
            now = int.from_bytes(spoiled[place : place + 4], "little")
            word = choices.pick([*_WORDS, now + 1, now - 1, len(raw), len(raw) - 1])
            struct.pack_into("<I", spoiled, place, word % (1 << 32))
        else:
            spoiled[place] = choices.number(256)
    read_shard(bytes(spoiled), samples, columns)


# ---------------------------------------------------------------- codecs


_RAW = b"the quick brown fox " * 40
_CODECS = ("zstd", "gz", "bz2", "br", "snappy")


def decompress_seeds() -> list[bytes]:
    """Sound streams, and bombs, each behind a byte that names its codec."""
    import brotli
    import snappy

    from cloudload.mds.codecs import compress

    packers: list[Callable[[bytes], bytes]] = [
        functools.partial(compress, name) for name in ("zstd", "gz", "bz2")
    ]
    packers += [brotli.compress, snappy.compress]
    return [
        bytes([number]) + pack(raw)
        for number, pack in enumerate(packers)
        for raw in (_RAW, b"", bytes(1 << 20))
    ]


def run_decompress(data: bytes) -> None:
    """Any bytes under any codec. The cache takes every `Exception` for a damaged file."""
    from cloudload.mds.codecs import decompress

    choices = Choices(data)
    codec = choices.pick(_CODECS)
    try:
        raw = decompress(codec, choices.take(len(data)), len(_RAW))
    except (
        MemoryError,
        RecursionError,
        AssertionError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
    ):
        raise
    except Exception:
        return
    expect(len(raw) <= len(_RAW) + 1, f"{codec} gave {len(raw)} bytes")


# ---------------------------------------------------------------- states


_NUMBERS = (
    0,
    1,
    -1,
    2,
    5,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    1 << 48,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "0",
        "-1",
        "x",
        1.5,
        float("nan"),
        float("inf"),
        [],
        {},
        b"",
        (),
        "é",
        "\0",
        "\ud800",
    ),
    *(
        "1:1",
        "0:1",
        "16:4",
        "1,1",
        "0",
        "7,7",
        "AAAA",
        "[]",
        "[[]]",
        "null",
        "[" * 2000,
        "9" * 5000,
        "1" * 19,
        "1e9",
    ),
    "[[0,0,0,0,0,0]]",
    "[[0,0,0,0,0,0],[0,0,0,0,0,0]]",
    '{"names": ["a"], "schedule": [[0, [NaN]]]}',
    '{"names": ["a"], "schedule": [[0, [1e308]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1, 2]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1e308, 5e-324]], [3, [0, 1]]]}',
    *_NUMBERS,
)


@functools.cache
def sound_states() -> list[tuple[Any, dict[str, Any]]]:
    """Loaders over a tiny corpus, of every packing, and states of each: early, late, between
    exchanges, in a tail."""
    from cloudload import CloudLoader, Stream
    from tests.support.awkward import EOS, byte_tokenizer
    from tests.support.corpora import write_mds

    folder = tempfile.mkdtemp(prefix="cloudload-fuzz-")
    texts = ["ab" * (number * 7 % 13) for number in range(40)]
    urls = [
        write_mds(f"{folder}/{part}", texts[part::2], shard_samples=[7, 0, 13]) for part in range(2)
    ]
    mixed = [Stream(url, proportion=1.0, name=f"s{number}") for number, url in enumerate(urls)]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (urls, {"packing": "concat"}),
        (urls, {"packing": "concat", "epochs": 1}),
        (urls, {"packing": "concat", "exchange_every": 3}),
        (urls, {"packing": "best_fit", "open_rows": 2}),
        (urls, {"packing": "best_fit", "open_rows": 2, "epochs": 2}),
        (urls, {"packing": "one_per_row"}),
        (urls, {"packing": "one_per_row", "overflow": "rows", "epochs": 1}),
        (urls, {"packing": "concat", "shuffle_algo": "seekable"}),
        (mixed, {"packing": "best_fit", "open_rows": 2}),
        (mixed, {"packing": "concat", "shuffle_algo": "py1br"}),
    ]
    found = []
    for data, settings in cases:
        options: dict[str, Any] = {
            "tokenizer": byte_tokenizer(),
            "eos": EOS,
            "seq_len": 8,
            "num_lanes": 4,
            "num_workers": 0,
        }
        loader = CloudLoader(
            data,
            local=f"{folder}/cache",
            batch_size=4,
            tokenizer_backend="hf",
            **options,
            **settings,
        )
        states = [loader.state_dict()] + [loader.state_dict() for _ in loader.take(14)]
        found += [
            (loader, states[place]) for place in sorted({0, 1, 4, len(states) - 2, len(states) - 1})
        ]
    return found


# a change of the others is mostly refused at once
_TELLING_FIELDS = [
    "cursors",
    "residues",
    "rows",
    "table_rows",
    "tail",
    "skipped",
    "counts",
    "seq_len",
    "mixture",
]
_TELLING_FIELDS += ["num_canonical_nodes", "shuffle_block_size"]


def mutate_state(choices: Choices, state: dict[str, Any]) -> dict[str, Any]:
    """The state with some of its fields otherwise."""
    state = dict(state)
    names = [*sorted(state), *_TELLING_FIELDS * 3]
    for _ in range(1 + choices.number(3)):
        name = choices.pick(names)
        kind = choices.number(24)
        value = state.get(name)
        if kind == 0:
            state.pop(name, None)
        elif kind == 1:
            state[choices.pick(["more", name, 7, "", None])] = choices.pick(_VALUES)
        elif kind < 4:
            state[name] = choices.pick(_VALUES)
        elif kind < 7:
            other = choices.pick(sound_states())[1]
            state[name] = other[name]
        elif name in ("cursors", "residues") and isinstance(value, str):
            with contextlib.suppress(ValueError, zlib.error):
                state[name] = _change_packed(choices, name, value)
        elif isinstance(value, bool) or not isinstance(value, int | str):
            state[name] = choices.pick(_VALUES)
        elif isinstance(value, int):
            state[name] = choices.pick([value + 1, value - 1, -value, value * 2, *_NUMBERS])
        else:
            state[name] = _change_text(choices, value)
    return state


def _change_packed(choices: Choices, name: str, value: str) -> str:
    """Base64 of numbers, of which some are others."""
    data = base64.b64decode(value)
    if name == "residues":
        planes = zlib.decompress(data)
        data = bytes(
            planes[start + plane * (len(planes) // 4)]
            for start in range(len(planes) // 4)
            for plane in range(4)
        )
    numbers = [number for (number,) in struct.iter_unpack("<i", data[: len(data) // 4 * 4])]
    wide = choices.number(4) == 0 and name == "cursors"
    for _ in range(1 + choices.number(3)):
        place = choices.number(max(1, len(numbers)))
        kind = choices.number(4)
        if kind == 0 and numbers:
            del numbers[place]
        elif kind == 1:
            numbers.insert(place, choices.number(6))
        elif numbers:
            numbers[place] = choices.pick(
                [*_NUMBERS, numbers[place] + 1, numbers[place] - 1, choices.number(30)]
            )
    code, bits = ("q", 63) if wide else ("i", 31)
    clipped = [max(-(1 << bits), min((1 << bits) - 1, number)) for number in numbers]
    data = struct.pack(f"<{len(clipped)}{code}", *clipped)
    if name == "residues":
        data = zlib.compress(
            bytes(data[start + plane] for plane in range(4) for start in range(0, len(data), 4))
        )
    return base64.b64encode(data).decode()


def _change_text(choices: Choices, text: str) -> str:
    """Another number in the text, or another character, or a part of it."""
    numbers = list(re.finditer(r"\d+", text))
    if numbers and choices.number(2):
        found = choices.pick(numbers)
        now = int(found[0]) if len(found[0]) < 30 else 0
        return (
            text[: found.start()]
            + str(choices.pick([now + 1, now - 1, *_NUMBERS]))
            + text[found.end() :]
        )
    place = choices.number(len(text) + 1)
    inserted = choices.pick(["", "0", "-", ",", ":", "[", "]", '"', "\0", "\ud800", "1e9", "NaN"])
    return text[:place] + inserted + text[place + choices.number(3) :]


def run_state(data: bytes) -> None:
    """Load a changed state and take two batches; or merge changed parts."""
    from cloudload import merge_state_dicts

    choices = Choices(data)
    loader, sound = choices.pick(sound_states())
    if choices.number(5) == 0:
        parts = [_part_of(sound, choices.number(3) or rank, 2) for rank in range(2)]
        merged = merge_state_dicts(
            [mutate_state(choices, part) if choices.number(2) else part for part in parts]
        )
        loader.load_state_dict(merged)
        return
    state = mutate_state(choices, sound)
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        expect(str(error).startswith("cannot share"), f"ValueError: {error}")
        return
    # rows between the table's and the state's are read again: as many as `seek` was asked for
    if state["rows"] - state["table_rows"] < 2_000:
        for _ in loader.take(2):
            loader.state_dict()
        loader.stats()


def _part_of(state: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """What `rank` of `size` would save, of a state of four lanes."""
    import numpy as np

    cursors = np.frombuffer(base64.b64decode(state["cursors"]), "<i4").reshape(-1, 4, 2).copy()
    cursors[:, [lane for lane in range(4) if lane % size != rank % size]] = -1
    return {
        **state,
        "part": f"{rank}/{size}",
        "cursors": base64.b64encode(cursors.tobytes()).decode(),
    }


def state_seeds() -> list[bytes]:
    """Choices at random: no bytes are better than others to begin with."""
    return [random.Random(seed).randbytes(40) for seed in range(64)]


# ---------------------------------------------------------------- texts


@functools.cache
def tokenizers() -> list[tuple[Any, Any, set[int], list[str]]]:
    """(hf, fastokens, control ids, their names) of small tokenizers."""
    from tokenizers import Tokenizer, decoders

    from cloudload.config.choices import FASTOKENS, HF
    from cloudload.tokenization.tokenizer import DocumentTokenizer, load_tokenizer
    from scripts.train_tokenizer import END_OF_TEXT, train_tokenizer
    from tests.support.awkward import EOS, byte_tokenizer

    texts = [
        "the quick brown fox jumps over the lazy dog",
        "one two three",
        "Grüße an die Füchse",
        "狐 🦊",
    ]
    trained = train_tokenizer(texts * 3, 400, (END_OF_TEXT, "<|pad|>"))
    found = []
    with_bytes = Tokenizer.from_str(byte_tokenizer().to_str())
    with_bytes.decoder = decoders.ByteLevel()
    for tokenizer in (with_bytes, trained):
        spec = load_tokenizer(tokenizer, [(None, None)])
        added = {
            token["id"]: token["content"]
            for token in json.loads(spec.json)["added_tokens"]
            if token["special"]
        }
        backends = [DocumentTokenizer(spec, backend) for backend in (HF, FASTOKENS)]
        found.append((*backends, set(added), [*added.values(), EOS, END_OF_TEXT]))
    return found


_SIGNS = (
    "",
    " ",
    "\0",
    "\n\n",
    "é",
    "狐",
    "🦊",
    "e\u0301",
    "\u200d",
    "\ufeff",
    "the",
    "<|",
    "|>",
    "<",
    "\ud800",
    "\udfff",
    "\U0010ffff",
)


def run_tokenizer_text(data: bytes) -> None:
    """A text in which names of control tokens stand gives no control id, and its own text back."""
    choices = Choices(data)
    hf, fast, control, names = choices.pick(tokenizers())
    text = ""
    while choices:
        text += choices.pick(
            choices.pick([names, _SIGNS, string.printable, chr(choices.number(0x3000))])
        )
    ids, _ = hf.encode_flat([text])
    expect(not control & set(ids.tolist()), f"a control id in {text!r}")
    expect(ids.tolist() == fast.encode_flat([text])[0].tolist(), f"backends differ on {text!r}")
    expect(hf.decode(ids) == text, f"{text!r} is {hf.decode(ids)!r} when decoded")


# ---------------------------------------------------------------- the targets


@dataclass(frozen=True)
class Target:
    """What is thrown at, and inputs to begin with."""

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], None]


TARGETS = {
    "index": Target(index_seeds, run_index),
    "shard": Target(shard_seeds, run_shard),
    "shard-structured": Target(state_seeds, run_shard_structured),
    "decompress": Target(decompress_seeds, run_decompress),
    "state": Target(state_seeds, run_state),
    "tokenizer-text": Target(state_seeds, run_tokenizer_text),
}


def check(target: Target, data: bytes) -> None:
    """Run an input. Raises what is a finding, and nothing else."""
    from cloudload.errors import CloudloadError

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(CloudloadError):
        target.run(data)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10
    expect(grown_mb <= MOST_GROWTH_MB, f"memory grew by {grown_mb:,} MB")


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise a finding where the block takes longer."""

    def stop(*_: object) -> None:
        raise Finding(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_TOKENS = (
    b"[",
    b"]",
    b'"',
    b",",
    b"{",
    b"0",
    b"-",
    b"9" * 30,
    b"../",
    b"\0",
    b"\xff\xff\xff\xff",
    b"null",
)


def mutations(seeds: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """The seeds, and then without end changes of what came before."""
    yield from seeds
    pool = list(seeds)
    while True:
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            _mutate(data, pool, rng)
        del data[_MOST_INPUT_BYTES:]
        pool[rng.randrange(len(seeds), len(pool) + 1) :] = (
            [bytes(data)] if len(pool) < 4 * len(seeds) else []
        )
        yield bytes(data)


def _mutate(data: bytearray, pool: list[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        data[place:place] = rng.randbytes(rng.choice((1, 2, 8)))
    elif kind == 1:
        del data[place : place + rng.choice((1, 2, 8, 64))]
    elif kind == 2:
        data[place:place] = rng.choice(_TOKENS)
    elif kind == 3:
        other = rng.choice(pool)
        start = rng.randrange(len(other) + 1)
        data[place:place] = other[start : start + rng.choice((4, 16, 64))]
    elif place < len(data):
        data[place] = rng.randrange(256) if kind == 4 else data[place] ^ 1 << rng.randrange(8)


def fuzz(
    name: str, *, seconds: float, inputs: int | None = None, seed: int = 0
) -> tuple[int, bytes | None, str]:
    """Run a target on our own mutations: the inputs tried, the one that is a finding, and why."""
    target, tried, stop = TARGETS[name], 0, time.monotonic() + seconds
    with time_limit(300):
        seeds = target.seeds()
        target_ready(name)
    for data in mutations(seeds, random.Random(seed)):
        try:
            with time_limit(MOST_SECONDS):
                check(target, data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return tried + 1, data, f"{type(error).__name__}: {error}"
        tried += 1
        if time.monotonic() > stop or tried == inputs:
            break
    return tried, None, ""


def target_ready(name: str) -> None:
    """Make what a target makes once, so that no input is charged for it."""
    once = {
        "state": sound_states,
        "tokenizer-text": tokenizers,
        "shard": sound_shards,
        "shard-structured": sound_shards,
    }
    once.get(name, list)()


# ---------------------------------------------------------------- the command


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}"
    )
    parser.add_argument("--seconds", type=int, default=60, help="of each target (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the own engine (default: 0)")
    parser.add_argument("--engine", choices=["auto", "atheris", "own"], default="auto")
    parser.add_argument(
        "--findings",
        type=Path,
        default=Path("fuzz-findings"),
        help="a folder (default: fuzz-findings)",
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="run one input of the one target named, and show its error",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.replay:
        check(TARGETS[names[0]], options.replay.read_bytes())
        print("no finding")
        return 0
    if options.inside:
        _run_atheris(names[0], options.seconds, options.inside)
    engine = _engine(options.engine)
    print(f"engine {engine}, {options.seconds} s for each of {', '.join(names)}", flush=True)
    summary = [_fuzz_and_report(name, engine, options) for name in names]
    print("\n".join(["", *(line for line, _ in summary)]))
    return int(any(is_finding for _, is_finding in summary))


def _engine(asked: str) -> str:
    from importlib.util import find_spec

    return ("atheris" if find_spec("atheris") else "own") if asked == "auto" else asked


def _fuzz_and_report(name: str, engine: str, options: argparse.Namespace) -> tuple[str, bool]:
    options.findings.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if engine == "atheris":
        tried, found, why = _start_atheris(name, options.seconds, options.findings)
    else:
        tried, data, why = fuzz(name, seconds=options.seconds, seed=options.seed)
        found = options.findings / f"{name}-{zlib.crc32(data or b''):08x}"
        if data is not None:
            found.write_bytes(data)
    verdict = f"FINDING {found}: {why}" if why else "no finding"
    line = f"{name:18} {tried:>12,} inputs in {time.monotonic() - started:.0f} s  {verdict}"
    print(line, flush=True)
    return line, bool(why)


def _start_atheris(name: str, seconds: int, findings: Path) -> tuple[int, Path, str]:
    """In a process of its own, which libFuzzer ends."""
    corpus = findings / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, __file__, name, "--seconds", str(seconds), "--inside", str(findings)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    tried = re.findall(r"number_of_executed_units: (\d+)", done.stdout) or re.findall(
        r"^#(\d+)", done.stdout, re.MULTILINE
    )
    written = re.findall(r"Test unit written to (\S+)", done.stdout)
    reasons = re.findall(
        r"^(?:\S*(?:Error|Exception|Finding).*|=+ ?ERROR.*|ALARM.*)$", done.stdout, re.MULTILINE
    )
    failed = done.returncode or written
    why = (reasons[-1] if reasons else done.stdout[-500:]) if failed else ""
    return int(tried[-1]) if tried else 0, Path(written[-1]) if written else findings, why


def _run_atheris(name: str, seconds: int, findings: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["cloudload"]):
        import cloudload.cli
        import cloudload.loader
        import cloudload.provenance  # noqa: F401 - all of it, so that all of it is watched
    target_ready(name)
    target = TARGETS[name]
    arguments = [
        *(
            f"-max_total_time={seconds}",
            f"-timeout={MOST_SECONDS}",
            "-rss_limit_mb=6000",
            f"-max_len={_MOST_INPUT_BYTES}",
        ),
        *(
            "-print_final_stats=1",
            f"-artifact_prefix={findings}/{name}-",
            str(findings / "corpus" / name),
        ),
    ]
    atheris.Setup([sys.argv[0], *arguments], lambda data: check(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
