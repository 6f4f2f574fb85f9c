"""Operations of loaders and of `Rows` that are interrupted, and compared with undisturbed ones.

    with open_subject(folder, "best_fit", has_lengths=True) as subject:
        for operation in subject.operations:
            check(subject, operation, visits)

A subject keeps marks and tables of tiny data in files, as loaders do for large data.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudload import Batch, CloudLoader, Rows, Stream, count_tokens
from cloudload.loading.delivery.description import Setting
from cloudload.run.lengths import best_fit_simulation, lane_tables
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.interrupts import count_visits, interrupt, list_edges, run_at
from testkit.loaders import SEQ_LEN, make_loader

KINDS = [
    *((packing, False) for packing in ("concat", "one_per_row", "best_fit")),
    *((packing, True) for packing in ("concat", "one_per_row", "best_fit")),
    ("concat in a mixture", True),
    ("best_fit in a mixture", True),
]
"""The kinds of subjects, and whether they have token lengths."""
BATCH, FURTHER = 4, 96


@dataclass(frozen=True)
class Operation:
    """A call that changes or reads a loader, and its effect."""

    name: str
    prepare: Callable[[], object]
    """Makes each run do the same work."""
    run: Callable[[], object]
    effect: Callable[[], object]
    """The effect of `run`."""
    is_whole: bool = False
    """Whether an interrupted run has no effect, or the same effect as a complete one."""


class Subject:
    """A loader and, with token lengths, a `Rows` of the same run and cache folder."""

    def __init__(self, data: Any, cache: Path, packing: str, lengths: str) -> None:
        options: dict[str, Any] = {"packing": packing, "num_lanes": 4, "epochs": 1, "local": cache}
        self._cache = cache
        self.loader, self._other = (make_loader(data, lengths=lengths, **options) for _ in "ab")
        self.start = self.loader.state_dict()
        self._saved = self._save_later()
        self.rows: Rows | None = None
        if lengths != "off":
            tokens: dict[str, Any] = {"tokenizer": byte_tokenizer(), "eos": EOS}
            self.rows = Rows(data, seq_len=SEQ_LEN, **tokens, **options)

    def _save_later(self) -> Any:
        list(self.loader.take(6))
        return self.loader.state_dict()

    def close(self) -> None:
        """Stop workers, and close files."""
        for each in (self.loader, self._other, self.rows):
            if each is not None:
                each.close()

    def restart(self) -> None:
        """Return the loader to its first row, and remove all marks."""
        for folder in self._cache.glob("lengths/*/best_fit-*"):
            shutil.rmtree(folder)
        self.loader.load_state_dict(self.start)
        self.loader.set_world(0, 1, batch_size=BATCH)

    def read_batches(self) -> list[Batch]:
        """Return the loader to its first row, and read some batches."""
        self.restart()
        return list(self.loader.take(5))

    def seek_elsewhere(self) -> Any:
        """The state at a later row, according to another loader that uses the same cache folder."""
        self._other.load_state_dict(self.start)
        self._other.seek(FURTHER)
        return self._other.state_dict()

    @property
    def operations(self) -> list[Operation]:
        """The operations that the subject supports."""
        loader, rows = self.loader, self.rows
        see = partial(observe, loader)
        found = [
            Operation("seek", self.restart, lambda: loader.seek(FURTHER), see, True),
            Operation(
                "load_state_dict",
                self.restart,
                lambda: loader.load_state_dict(self._saved),
                see,
                True,
            ),
            Operation(
                "set_world",
                self.read_batches,
                lambda: loader.set_world(0, 2, rows=12, batch_size=3),
                see,
                True,
            ),
            Operation("state_dict", self.read_batches, loader.state_dict, see),
            Operation("stats", self.read_batches, loader.stats, see),
            Operation("describe", self.restart, loader.describe, see),
        ]
        if rows is not None:
            read, save = partial(read_rows, rows), partial(rows.state_dict, FURTHER)
            found += [
                Operation("len", self.restart, loader.__len__, loader.__len__),
                Operation("rows[]", partial(read_rows, rows, 2), read, read),
                Operation("rows.state_dict", self.restart, save, save),
            ]
        return found


def list_reads(subject: Subject, batch: Batch) -> dict[str, Callable[[], object]]:
    """List the public reads of a subject by name. Each returns a value, or the text of an error."""
    loader, rows = subject.loader, subject.rows
    reads: dict[str, Callable[[], object]] = {
        "stats": loader.stats,
        "state_dict": loader.state_dict,
        "state_dict, lag": partial(loader.state_dict, lag=1),
        "is_at_stop": lambda: loader.is_at_stop,
        "is_endless": lambda: loader.is_endless,
        "rows": lambda: (loader.rows, loader.recipe.mixture),
        "len": loader.__len__,
        "count_batches": loader.count_batches,
        "describe": partial(_describe, loader),
        "trace": partial(loader.trace, batch),
    }
    if rows is not None:
        reads |= {
            "rows[]": partial(read_rows, rows),
            "rows.state_dict": partial(rows.state_dict, FURTHER),
            "rows.trace": partial(rows.trace, FURTHER),
        }
    return {name: partial(_value_or_error, read) for name, read in reads.items()}


def _describe(loader: CloudLoader) -> list[Setting]:
    """The settings of a description, except the measured speed."""
    return [each for each in loader.describe().settings if each.name != "tokens_per_s"]


def _value_or_error(read: Callable[[], object]) -> object:
    try:
        return read()
    except (ValueError, TypeError) as error:
        return str(error)


def read_rows(rows: Rows, row: int = FURTHER) -> list[int]:
    """The tokens of a row."""
    tokens: list[int] = rows[row]["input_ids"].tolist()
    return tokens


def observe(loader: CloudLoader) -> dict[str, Any]:
    """Everything that determines the next batches of a loader."""
    return {
        "state": loader.state_dict(),
        "stats": loader.stats(),
        "world": (loader.world_size, loader.batch_size),
        "mixture": loader.recipe.mixture,
    }


@contextmanager
def open_subject(folder: Path, kind: str, has_lengths: bool) -> Iterator[Subject]:
    """Write small data into a folder, and open a subject of one of `KINDS`."""
    data = [
        write_mds(folder / name, random_documents(seed, 150, max_words=6), shard_bytes=2_000)
        for seed, name in enumerate("ab")
    ]
    for dataset in data if has_lengths else ():
        count_tokens(dataset, tokenizer=byte_tokenizer(), processes=1, progress=False)
    packing, _, mixture = kind.partition(" ")
    streams: Any = [Stream(data[0], proportion=2), Stream(data[1], proportion=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit_simulation, "DOCUMENTS_OF_MARK", 8)
        patch.setattr(lane_tables, "KEPT_FROM_POSITIONS", 1)
        lengths = "require" if has_lengths else "off"
        subject = Subject(streams if mixture else data, folder / "cache", packing, lengths)
        try:
            yield subject
        finally:
            subject.close()


class Check:
    """Interrupts one operation of a subject, and compares its effect with the undisturbed one."""

    def __init__(self, subject: Subject, operation: Operation) -> None:
        self._subject, self._operation = subject, operation
        operation.prepare()
        self.visits = count_visits(operation.run)
        self._edges = list_edges(self.visits)
        self._expected, self._elsewhere = operation.effect(), subject.seek_elsewhere()

    def choose(self, choices: random.Random) -> int:
        """Choose a visit: half of the time by bytecode, so that loops do not crowd out the rest."""
        if choices.random() < 0.5:
            return choices.choice(self._edges)
        return choices.randrange(len(self.visits))

    def find_fault(self, visit: int) -> str | None:
        """Interrupt the operation before a visit, and repeat it. Returns what is wrong, if any."""
        operation = self._operation
        operation.prepare()
        before = operation.effect() if operation.is_whole else None
        if interrupt(operation.run, visit):
            if operation.is_whole and operation.effect() not in (before, self._expected):
                return self._describe(visit, "left half of a change")
            if self._subject.seek_elsewhere() != self._elsewhere:
                return self._describe(visit, "made another loader wrong")
            operation.run()
        if operation.effect() != self._expected:
            return self._describe(visit, "was wrong when it was repeated")
        if self._subject.seek_elsewhere() != self._elsewhere:
            return self._describe(visit, "made another loader wrong after it was repeated")
        return None

    def find_fault_of_handler(self, visit: int) -> str | None:
        """Before a visit, run a signal handler that reads the loader. Returns what is wrong."""
        operation, loader, seen = self._operation, self._subject.loader, list[object]()
        operation.prepare()
        before = observe(loader)
        run_at(operation.run, visit, lambda: seen.append(observe(loader)))
        effect, after = operation.effect(), observe(loader)
        if effect != self._expected:
            return self._describe(visit, "was wrong after a handler")
        if any(each not in (before, after) for each in seen):
            return self._describe(visit, "showed a handler half of a change")
        return None

    def _describe(self, visit: int, what: str) -> str:
        code, place = self.visits[visit]
        line = [line for start, end, line in code.co_lines() if start <= place < end]
        return f"{self._operation.name} {what}: interrupted in {code.co_name}, line {line}"
