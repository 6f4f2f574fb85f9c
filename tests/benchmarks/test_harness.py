"""The harness measures tokens and times correctly, and names a side that fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.figures import Spread, print_tables, spread_of, table
from benchmarks.harness import Child, Side, SideFailedError, descendants, family_cpu, run_child
from benchmarks.options import Options
from testkit.patience import soon

COUNTING = """
from benchmarks.harness import UnavailableError, serve

def start(request):
    print("what libraries print is not an answer")
    if request["start"] < 0:
        raise UnavailableError("there is no such start")
    count = request["start"]
    def take(question):
        nonlocal count
        count += question["step"]
        return {"count": count}
    return take

serve(start, ["pytest"])
"""


@pytest.fixture
def counting(tmp_path: Path) -> Side:
    (tmp_path / "counting.py").write_text(COUNTING)
    return Side("counting", folders=[tmp_path], scratch=tmp_path, log=tmp_path / "counting.log")


def test_a_side_answers_turn_by_turn_and_is_stopped_between(counting: Side) -> None:
    with counting as side:
        assert side.start({"start": 5}) == {"pytest": pytest.__version__}
        assert [side.take_turn({"step": step})["count"] for step in (1, 2)] == [6, 8]
        [pid] = [
            pid
            for pid in descendants(os.getpid())
            if b"counting" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert soon(lambda: state_of(pid) == "T")


def state_of(pid: int) -> str:
    """Return the state letter of a process from /proc, such as `T` for stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_side_that_fails_is_reported_with_its_last_line(counting: Side) -> None:
    with counting as side:
        side.start({"start": 0})
        with pytest.raises(SideFailedError, match="the side exited: KeyError: 'step'"):
            side.take_turn({"stride": 1})


def test_a_side_that_cannot_run_says_why(counting: Side) -> None:
    with counting as side, pytest.raises(SideFailedError, match="there is no such start"):
        side.start({"start": -1})


def add(one: int, other: int) -> int:
    print("what libraries print is not an answer")
    return one + other


def note_when_closed(path: str) -> Iterator[str]:
    yield "ready"
    Path(path).write_text("closed")


def fail() -> None:
    raise ValueError


def test_a_child_answers_with_what_its_function_returns() -> None:
    assert run_child(add, one=2, other=3) == 5


def test_a_child_that_yields_continues_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "note"
    with Child(note_when_closed, path=str(path)) as child:
        assert child.answer() == "ready"
        assert not path.exists()
    assert path.read_text() == "closed"


def test_a_child_that_fails_is_named() -> None:
    with pytest.raises(SystemExit, match=r"test_harness\.fail exited with status 1 before"):
        run_child(fail)


def test_a_spread_has_deciles_of_ten_values_and_extremes_of_fewer() -> None:
    assert spread_of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread_of([float(value) for value in range(101)]) == Spread(50.0, 10.0, 90.0)


def test_a_table_shows_medians_and_numbers_by_form(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table([{"side": "a", "s": [1.0, 2.0, 4.0], "n": 12_345, "fill": 0.5}], {"fill": ".1%"})
    assert shown == (
        "| side | s | n | fill |\n| --- | ---: | ---: | ---: |\n| a | 2 (1 to 4) | 12,345 | 50.0% |"
    )
    print_tables([("one", [{"s": [1.0]}])], as_json=True)
    assert capsys.readouterr().out == '{"one": [{"s": [1.0]}]}\n'


def test_quick_changes_only_the_amounts_that_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options("a benchmark")
    options.add_amount("repeats", 5, 1, "repeats")
    options.add_amount("shard-mb", 64.0, 0.5, "text of a shard")
    monkeypatch.setattr("sys.argv", ["benchmark", "--quick", "--repeats", "3"])
    args = options.parse()
    assert (args.repeats, args.shard_mb) == (3, 0.5)
    monkeypatch.setattr("sys.argv", ["benchmark"])
    assert options.parse().shard_mb == 64.0


def test_cpu_time_is_that_of_the_family() -> None:
    before = family_cpu()
    child = os.fork()
    if not child:
        while time.process_time() < 0.2:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert family_cpu() - before >= 0.2
