"""The local states of ranks that do not communicate can be merged into the state of the run."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cloudload import merge_state_dicts, testing
from cloudload.errors import RanksDisagreeError, StreamChangedError
from testkit.loaders import make_loader
from testkit.state_fields import table


def test_a_rank_on_its_own_does_not_know_the_whole_state_after_a_seek_either(
    larger_folder: str,
) -> None:
    loaders = [make_loader(larger_folder, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    for loader in loaders:
        list(loader.take(2))
        loader.seek(loader.rows)
        with pytest.raises(RanksDisagreeError):
            loader.state_dict()
    single = make_loader(larger_folder, batch_size=8)
    list(single.take(2))
    whole = merge_state_dicts([loader.local_state_dict() for loader in loaders])
    assert {**whole, "batches": 2, "global_batch": 8} == {
        **single.state_dict(),
        "batches": 2,
        "global_batch": 8,
    }


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_a_launcher_that_cannot_communicate_hear_so_before_the_first_batch(
    larger_folder: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": size}.items():
        monkeypatch.setenv(name, str(value))
    caplog.set_level(logging.WARNING)
    with make_loader(larger_folder) as loader:
        caplog.clear()
        batches = iter(loader)
        assert caplog.messages == []  # the script may still initialize torch.distributed
        next(batches)
        [warning] = caplog.messages
        assert f"so the {size} ranks of WORLD_SIZE cannot exchange cursors" in warning
        next(batches)
        next(iter(loader))
        with pytest.raises(RanksDisagreeError, match="the ranks cannot communicate"):
            loader.state_dict()
    with make_loader(larger_folder, dp_rank=1, dp_world_size=size) as loader:
        next(iter(loader))  # an explicit dp_rank causes no warning
    assert caplog.messages == [warning]


def test_local_states_of_all_ranks_merge_and_others_do_not(larger_folder: str) -> None:
    loaders = [make_loader(larger_folder, dp_rank=rank, dp_world_size=3) for rank in range(3)]
    for loader in loaders:
        next(iter(loader))
    parts = [loader.local_state_dict() for loader in loaders]
    whole = merge_state_dicts(parts)
    assert merge_state_dicts(list(reversed(parts))) == whole
    single = make_loader(larger_folder, batch_size=12)
    next(iter(single))
    assert whole == single.state_dict()
    elsewhere = {**parts[1], "sources": parts[1]["sources"].replace(larger_folder, "/a/copy")}
    assert elsewhere != parts[1]
    assert merge_state_dicts([parts[0], elsewhere, parts[2]]) == whole
    with pytest.raises(StreamChangedError, match=r"seed differs .*Pass the states of one run"):
        merge_state_dicts([parts[0], {**parts[1], "seed": 3}, parts[2]])
    with pytest.raises(StreamChangedError, match="do not cover all lanes"):
        merge_state_dicts(parts[:2])
    with pytest.raises(StreamChangedError, match="there are no local states"):
        merge_state_dicts([])
    next(iter(loaders[0]))
    with pytest.raises(StreamChangedError, match="rows differs among the local states"):
        merge_state_dicts([loaders[0].local_state_dict(), *parts[1:]])


def test_parts_of_ranks_that_communicate_merge_to_the_state_that_all_have(
    larger_folder: str,
) -> None:
    leg = testing.Leg(ranks=3, batch_size=2)
    with testing._Ranks(lambda **rank: make_loader(larger_folder, **rank), leg) as ranks:
        loaders = ranks.loaders
        ranks.start()
        assert len(ranks.next_batches()) == 3
        parts = [loader.local_state_dict() for loader in loaders]
        assert merge_state_dicts(parts) == loaders[0].state_dict() == loaders[2].state_dict()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"part": "1/2"}, None),
        ({"counts": "[["}, "counts: "),
        (
            {"cursors": table(*[(0, 0)] * 12)},
            "part: the local state '1/2' has lanes that another local state also has",
        ),
        (
            {"cursors": table(*[(-7, 0)] * 12)},
            "do not cover all lanes|has lanes that another local state also has",
        ),
        ({"rows": 1 << 70}, "rows: "),
        ({"sources": []}, "sources: list"),
        ({"mixture": "other"}, "mixture differs among the local states"),
    ],
)
def test_damaged_parts_do_not_merge(
    larger_folder: str, damage: dict[str, Any], message: str | None
) -> None:
    parts = [
        make_loader(larger_folder, dp_rank=rank, dp_world_size=2).local_state_dict()
        for rank in range(2)
    ]
    parts[1] = {**parts[1], **damage}
    if message is None:
        assert merge_state_dicts(parts)["part"] == ""
        return
    with pytest.raises(StreamChangedError, match=message):
        merge_state_dicts(parts)


def test_a_part_given_twice_is_refused_for_it_would_count_twice(larger_folder: str) -> None:
    parts = [
        make_loader(larger_folder, dp_rank=rank, dp_world_size=2).local_state_dict()
        for rank in (0, 1, 1)
    ]
    with pytest.raises(
        StreamChangedError,
        match=r"part: the local state '1/2' has lanes that another local state also has\. "
        r"Pass each rank's local state only once",
    ):
        merge_state_dicts(parts)
