"""A run with lengths="learn" writes the files of `cloudload count`, despite any interruption."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader, Stream
from cloudload.count import count_tokens
from cloudload.count import learn as learn_module
from cloudload.count.group import write_group
from cloudload.lengths import index as lengths_index
from cloudload.lengths.learned import find_node
from cloudload.testing import Leg, _run_members, run_leg
from tests.promises.test_counting import word_tokenizer
from tests.promises.test_lengths import fail_on_some, keep_most
from tests.support.corpora import EOS, random_documents, write_mds
from tests.support.loaders import make_loader
from tests.support.warm_start import stand_in

NUM_DOCUMENTS = 300


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_index, "_GROUP_BYTES", 8_000)


def write_corpus(folder: Path, seed: int = 0, documents: int = NUM_DOCUMENTS) -> str:
    texts = random_documents(seed, documents)
    texts[7] = texts[60] = ""
    return write_mds(folder, texts, shard_bytes=2_000)


def learn(data: Any, local: Path, **options: Any) -> CloudLoader:
    return make_loader(data, lengths="learn", local=local, tokenizer=word_tokenizer(), **options)


def files_of(dataset: str | Path) -> dict[str, bytes]:
    """Map the name of each of a dataset's length files to its bytes."""
    found = Path(dataset).glob("lengths/**/*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


def count_apart(dataset: str, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    """Count a copy of the dataset, and return the length files."""
    copy = tmp_path / "counted"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns("lengths"))
    count_tokens(copy, tokenizer=word_tokenizer(), processes=1, progress=False, **options)
    return files_of(copy)


@pytest.mark.parametrize(
    ("options", "documents"),
    [
        ({}, {}),
        ({"num_workers": 2, "min_tokens": 12}, {}),
        ({"packing": "best_fit", "bos": EOS}, {}),
        ({"packing": "one_per_row"}, {"transform": keep_most}),
        ({"tail": "drop"}, {"transform": fail_on_some, "on_error": "skip"}),
    ],
    ids=["concat", "workers", "best_fit", "filtered", "failed"],
)
def test_an_epoch_writes_the_files_that_counting_writes(
    tmp_path: Path, options: dict[str, Any], documents: dict[str, Any]
) -> None:
    data = write_corpus(tmp_path / "data")
    expected = count_apart(data, tmp_path, **documents)
    assert len(expected) > 4
    settings = {"epochs": 1, **options, **documents}
    with make_loader(data, lengths="off", tokenizer=word_tokenizer(), **settings) as loader:
        rows = [batch["input_ids"].tolist() for batch in loader]
    with learn(data, tmp_path / "cache", **settings) as loader:
        assert [batch["input_ids"].tolist() for batch in loader] == rows
        wait_until(lambda: files_of(data) == expected)  # even before the loader is closed
    assert not list((tmp_path / "cache" / "lengths").glob("*.learned"))
    with learn(data, tmp_path / "cache", **settings) as loader:
        assert loader.describe()["lengths"] is not None
        assert [batch["input_ids"].tolist() for batch in loader] == rows


def test_streams_of_text_and_of_tokens_learn_theirs(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text")
    ids = [np.arange(n % 9, dtype=np.uint16).tobytes() for n in range(80)]
    tokens = write_mds(tmp_path / "tokens", ids, column="ids", encoding="bytes", shard_bytes=500)
    options: dict[str, Any] = {"tokens_key": "ids", "tokens_dtype": "uint16"}
    count_tokens(tokens, out=tmp_path / "out", progress=False, processes=1, **options)
    streams = [Stream(text), Stream(tokens, **options)]
    with learn(streams, tmp_path / "cache", epochs=1) as loader:
        list(loader)
    assert files_of(text) == count_apart(text, tmp_path)
    counted = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*/*")}
    assert files_of(tokens) == counted


def test_a_part_of_an_epoch_writes_only_groups_that_it_has_read_whole(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    expected = count_apart(data, tmp_path)
    state, sizes = None, []
    for _ in range(20):
        loader = learn(data, tmp_path / "cache", shuffle=False, num_lanes=1, num_canonical_nodes=1)
        if state is not None:
            loader.load_state_dict(state)
        list(loader.take(10))
        state = loader.state_dict()
        loader.close()
        found = files_of(data)
        assert found.items() <= expected.items()
        sizes.append(len(found))
    assert sizes == sorted(sizes)
    assert sizes[0] < len(expected) == sizes[-1]
    assert len(set(sizes)) > 3


def leg_maker(data: str, tmp_path: Path, leg: Leg, **options: Any) -> Callable[..., CloudLoader]:
    """Return a function that makes a rank's loader. The ranks of a node share a cache."""

    def make(**rank: Any) -> CloudLoader:
        node = rank["dp_rank"] // (leg.ranks_per_node or leg.ranks)
        return learn(data, tmp_path / f"node-{node}", epochs=1, **{**options, **rank})

    return make


@pytest.mark.parametrize("shuffle_algo", ["py1e", "seekable"])
def test_nodes_of_changing_worlds_join_what_each_has_read(
    tmp_path: Path, shuffle_algo: str
) -> None:
    data = write_corpus(tmp_path / "data")
    expected = count_apart(data, tmp_path)
    options = {"shuffle_algo": shuffle_algo}
    legs = [
        Leg(ranks=4, ranks_per_node=2, batch_size=2, batches=5),
        Leg(ranks=3, ranks_per_node=1, batch_size=1, batches=9),
        Leg(ranks=2, ranks_per_node=1, batch_size=6, batches=4),
        Leg(ranks=4, ranks_per_node=2, batch_size=2, batches=None),
    ]
    state = None
    for leg in legs:
        before = files_of(data)
        _, states = run_leg(leg_maker(data, tmp_path, leg, **options), leg, state)
        state, found = states[-1], files_of(data)
        assert {
            name: content for name, content in found.items() if not name.endswith(".part")
        }.items() <= expected.items()
        assert found != before
    assert found == expected  # this also shows that the parts were deleted


@pytest.mark.parametrize(
    "legs",
    [
        [Leg(ranks=2, batch_size=2, batches=5), Leg(batch_size=2, batches=None)],
        [Leg(batch_size=2, batches=5), Leg(2, batch_size=2, batches=None, ranks_per_node=1)],
    ],
    ids=["the publisher leaves", "a node joins"],
)
def test_ranks_that_leave_and_join_write_what_all_have_read(
    tmp_path: Path, legs: list[Leg]
) -> None:
    data = write_corpus(tmp_path / "data")
    widest = max(legs, key=lambda leg: leg.ranks)
    _run_members(leg_maker(data, tmp_path, widest), legs)
    assert files_of(data) == count_apart(data, tmp_path)


def test_a_damaged_part_of_another_node_is_not_used(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    leg = Leg(ranks=2, ranks_per_node=1, batch_size=2, batches=25)
    options = {"num_canonical_nodes": 4}  # so each node reads some groups alone
    _, states = run_leg(leg_maker(data, tmp_path, leg, **options), leg)
    parts = sorted(Path(data).glob("lengths/*/*.part"))
    assert parts
    for place, part in enumerate(parts):
        content = part.read_bytes()
        part.write_bytes(content[:40] if place % 2 else content[:-1] + bytes([content[-1] ^ 1]))
    run_leg(
        leg_maker(data, tmp_path, leg, **options),
        Leg(2, batch_size=2, batches=None, ranks_per_node=1),
        states[-1],
    )
    # each node replaced its damaged parts while it read the rest of the epoch
    assert files_of(data) == count_apart(data, tmp_path)


@pytest.mark.parametrize("damaged", [b"", b"0123", b"\xff" * 12, b"../../../../x"])
def test_a_damaged_name_of_a_node_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    name = find_node(tmp_path)
    assert find_node(tmp_path) == name
    (tmp_path / "lengths" / "node").write_bytes(damaged)
    replaced = find_node(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", replaced)
    assert find_node(tmp_path) == replaced


def test_lengths_are_written_while_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_module, "_EVERY_S", 0.05)
    data = write_corpus(tmp_path / "data")
    expected, before = count_apart(data, tmp_path), set(threading.enumerate())
    loader = learn(data, tmp_path / "cache")
    for _ in loader.take(count_steps_of_two_epochs(data)):
        pass
    wait_until(lambda: files_of(data) == expected)
    del loader
    gc.collect()
    wait_until(lambda: set(threading.enumerate()) <= before)


def count_steps_of_two_epochs(data: str) -> int:
    """The number of batches in two epochs, in which each lane reads at least one whole epoch."""
    with make_loader(data, lengths="off", tokenizer=word_tokenizer(), epochs=2) as loader:
        return len(list(loader))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


KILLED = """
import json, os, signal, sys
from pathlib import Path
from cloudload.lengths import index
index._GROUP_BYTES = 8_000
from tests.promises.test_learned_lengths import learn
data, cache, path, batches = sys.argv[1:]
with learn(data, Path(cache), epochs=1, num_workers=2) as loader:
    if os.path.exists(path):
        loader.load_state_dict(json.loads(Path(path).read_text()))
    for number, _ in enumerate(loader):
        if number == int(batches):
            Path(path).write_text(json.dumps(loader.state_dict()))
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_loses_no_length(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    arguments = [data, str(tmp_path / "cache"), str(tmp_path / "state.json")]
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    for batches in (20, 30, 10_000):
        command = [*stand_in(), "tests.support.warm_script", str(script), *arguments, str(batches)]
        ended = subprocess.run(command, check=False, env=os.environ).returncode
        assert ended == (0 if batches == 10_000 else -signal.SIGKILL)
    assert files_of(data) == count_apart(data, tmp_path)
    assert json.loads(Path(arguments[2]).read_text())["rows"]


def test_a_dataset_that_cannot_be_written_to_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_corpus(tmp_path / "data")
    (Path(data) / "lengths").write_text("a file, where a folder would be")
    with learn(data, tmp_path / "cache", epochs=1) as loader:
        rows = [batch["input_ids"].tolist() for batch in loader]
    [record] = [each for each in caplog.records if "that this run learns" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert "cloudload count --out" in record.getMessage()
    with make_loader(data, lengths="off", tokenizer=word_tokenizer(), epochs=1) as loader:
        assert [batch["input_ids"].tolist() for batch in loader] == rows


def test_the_end_of_the_data_does_not_wait_for_a_slow_store_and_closing_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_fast = threading.Event()

    def write_slowly(*arguments: Any) -> None:
        assert is_fast.wait(60)
        write_group(*arguments)

    monkeypatch.setattr(learn_module, "write_group", write_slowly)
    monkeypatch.setattr(learn_module, "_MOST_WAIT_S", 0.05)
    data = write_corpus(tmp_path / "data")
    expected = count_apart(data, tmp_path)
    with learn(data, tmp_path / "cache", epochs=1) as loader:
        list(loader)
    assert "does not wait any longer" in caplog.text
    assert not files_of(data)
    is_fast.set()
    wait_until(lambda: files_of(data) == expected)


NOT_CLOSED = """
import sys
from pathlib import Path
from cloudload.lengths import index
index._GROUP_BYTES = 8_000
from tests.promises.test_learned_lengths import learn
data, cache = sys.argv[1:]
loader = learn(data, Path(cache), epochs=1)
list(loader)
"""


def test_a_program_that_does_not_close_its_loader_writes_what_it_has_read(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    command = [sys.executable, "-c", NOT_CLOSED, data, str(tmp_path / "cache")]
    subprocess.run(command, check=True, env=os.environ)
    if (3, 12) <= sys.version_info < (3, 12, 3):  # these versions cannot start threads at exit
        for _ in range(5):  # a short run may exit before it has written what an earlier one learned
            subprocess.run(command, check=True, env=os.environ)
            if files_of(data) == count_apart(data, tmp_path):
                break
    assert files_of(data) == count_apart(data, tmp_path)
