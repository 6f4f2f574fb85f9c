"""The steps of a run are traced from several states, even if options changed between them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream
from cloudload.errors import StreamChangedError
from cloudload.loading.workers.trace import TracedSpan
from cloudload.provenance import Run, find_document, open_runs, split_steps, trace_steps
from testkit.corpora import random_documents, write_mds
from testkit.traced_runs import TEXTS, TracedRuns


@pytest.fixture(scope="module")
def more(module_folder: Path) -> Path:
    """A third stream, beside those of `traced`."""
    write_mds(module_folder / "more", random_documents(5, 40), shard_bytes=2_000)
    return module_folder / "more"


class ChangingRun:
    """A run that is saved every four steps and resumed with different options."""

    def __init__(self, traced: TracedRuns, more: Path) -> None:
        self._traced, self._more = traced, more
        self.local = traced.folder / "cache"
        self.states: list[dict[str, Any]] = []
        self.spans: list[list[TracedSpan]] = []
        """The spans of each step, from the first."""

    def mix(self, **shares: float) -> list[Stream]:
        folders = {name: self._traced.folder / name for name in TEXTS} | {"more": self._more}
        return [
            Stream(str(folders[name]), name=name, proportion=share)
            for name, share in shares.items()
        ]

    def leg(self, data: Any, *, on_change: Mapping[str, str] | None = None, **options: Any) -> None:
        with self._traced.make(data, **options) as loader:
            if self.states:
                loader.load_state_dict(self.states[-1], on_change=on_change)
            for number, batch in enumerate(loader.take(8)):
                self.spans.append(loader.trace(batch))
                if number % 4 == 3:
                    self.states.append(json.loads(json.dumps(loader.state_dict())))


def trace(runs: list[Run], steps: range, local: Path, row: int | None = None) -> list[Any]:
    return [
        spans
        for run, own in split_steps(runs, steps)
        for _, spans in trace_steps(run, own, row, local=local, num_workers=0)
    ]


def run_mixture(traced: TracedRuns, more: Path) -> ChangingRun:
    run = ChangingRun(traced, more)
    two = run.mix(web=0.8, books=0.2)
    run.leg(two, seq_len=48, batch_size=6)
    run.leg(two, seq_len=32, batch_size=6)
    schedule = [(0, {"web": 1.0}), (80, {"web": 0.5, "books": 0.5})]
    run.leg(two, seq_len=32, batch_size=4, schedule=schedule)
    run.leg(run.mix(web=0.3, books=0.3, more=0.4), seq_len=64, batch_size=4)
    return run


def run_with_accepted_changes(traced: TracedRuns, more: Path) -> ChangingRun:
    run, web = ChangingRun(traced, more), str(traced.folder / "web")
    form: dict[str, Any] = {"packing": "best_fit", "seq_len": 32, "batch_size": 4}
    run.leg(web, **form)
    run.leg(web, **form, open_rows=3, on_change={"open_rows": "accept"})
    last = {**form, "open_rows": 3, "min_tokens": 20, "eos": None}
    run.leg(web, **last, on_change={"min_tokens": "accept", "bos_eos": "accept"})
    return run


@pytest.fixture(scope="module")
def mixture(traced: TracedRuns, more: Path) -> ChangingRun:
    return run_mixture(traced, more)


@pytest.mark.parametrize("make", [run_mixture, run_with_accepted_changes])
def test_every_step_is_traced_with_the_options_that_it_had(
    traced: TracedRuns, more: Path, make: Any
) -> None:
    run = make(traced, more)
    last = len(run.spans)
    runs = open_runs(list(reversed(run.states)))
    assert trace(runs, range(5, last + 1), run.local) == run.spans[4:]
    # the states before each change, and one state after the last change
    few = [state for state in run.states if state["batches"] % 8 == 0] + run.states[-2:-1]
    assert trace(open_runs(few), range(9, last + 1), run.local) == run.spans[8:]
    of_row = trace(open_runs(few), range(14, 20), run.local, row=2)
    assert of_row == [
        [span for span in run.spans[step - 1] if span.row == min(found.row for found in spans)]
        for step, spans in zip(range(14, 20), of_row, strict=True)
    ]
    if make is run_mixture:
        first = trace(open_runs(run.states[:1]), range(5, 12), run.local)
        assert first[:4] == run.spans[4:8]
        assert first != run.spans[4:11], "an early state must not show a later change"


def test_a_document_is_found_across_changes(mixture: ChangingRun) -> None:
    run = mixture
    last = len(run.spans)
    runs = open_runs(run.states)
    places: defaultdict[tuple[str, int], set[tuple[int, ...]]] = defaultdict(set)
    for step, spans in enumerate(run.spans[4:], 5):
        for span in spans:
            places[span.stream, span.sample].add((step, span.epoch, span.start, span.stop))
    spread = sorted(places, key=lambda one: -len({(step - 1) // 8 for step, *_ in places[one]}))
    for stream, sample in spread[:2]:
        index = list(TEXTS).index(stream)
        found = {
            (each.step, each.epoch, each.start, each.stop)
            for part, own in split_steps(runs, range(5, last + 1))
            for each in find_document(part, index, sample, own[-1], local=run.local, num_workers=0)
        }
        assert found == places[stream, sample]
        assert len({(step - 1) // 8 for step, *_ in found}) > 1, (
            "the document must be in several parts of the run"
        )


def test_the_command_line_takes_several_states(
    mixture: ChangingRun, tmp_path: Path, cli: Any
) -> None:
    run = mixture
    paths = [tmp_path / f"{number}.json" for number in range(len(run.states))]
    for path, state in zip(paths, run.states, strict=True):
        path.write_text(json.dumps(state))
    flags = ["--json", "--local", run.local, "--workers", "0"]
    printed = cli("trace", *paths, "--steps", "7:31", *flags).out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line["step"], line["sample"], line["text"]) for line in lines] == [
        (step, span.sample, span.text) for step in range(7, 31) for span in run.spans[step - 1]
    ]
    assert all(0 <= line["row"] < 6 for line in lines)
    # `more` is only in the last part of the run
    printed = cli("where", *paths, "--sample", "2:3", "--until", "32", *flags).out
    assert {json.loads(line)["step"] for line in printed.splitlines()} == {
        step
        for step, spans in enumerate(run.spans, 1)
        if any((span.stream, span.sample) == ("more", 3) for span in spans)
    }


def test_states_between_which_the_rows_per_step_are_not_known_are_refused(
    mixture: ChangingRun,
) -> None:
    [first, *_, last] = mixture.states
    apart = "after steps 4 and 32 are 136 rows apart, but 28 steps of 4 rows have 112"
    with pytest.raises(ValueError, match=apart):
        open_runs([first, last])
    with pytest.raises(ValueError, match="no states"):
        open_runs([])


def test_states_of_different_runs_are_refused(traced: TracedRuns, more: Path) -> None:
    one, other = (ChangingRun(traced, more) for _ in "ab")
    for run, seed in ((one, 17), (other, 5)):
        run.leg(str(traced.folder / "web"), seq_len=48, batch_size=6, seed=seed)
    runs = open_runs([one.states[0], other.states[1]])
    with pytest.raises(StreamChangedError, match="seed: saved 17, found 5"):
        trace(runs, range(5, 6), one.local)
