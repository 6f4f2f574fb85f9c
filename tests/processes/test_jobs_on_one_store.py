"""A healthy job is not ended: on a store that an earlier job used, nor by a broken connection."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from cloudload.delivery import attendance, gather
from cloudload.delivery.attendance import join_job
from cloudload.delivery.exchange import DistributedExchange
from cloudload.delivery.presence import _Guest
from tests.processes.test_gather import run_job

_LATE_S = 4.0
_PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(attendance, "_CONFIRM_S", 1.0)
    monkeypatch.setattr(attendance, "_GRACE_S", 1.0)
    monkeypatch.setattr(gather, "_LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(gather, "_CONNECT_S", 2.0)


def start_job(store: Any, rank: int, size: int, number: int) -> None:
    """Initialize torch.distributed, which cannot itself use a store again with gloo."""
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"gloo/{number}", store), rank=rank, world_size=size
    )
    vars(dist.distributed_c10d)["_get_default_store"] = lambda: store


def exchange_ranks(rank: int) -> list[int]:
    """Exchange the ranks, as an iteration does."""
    joined = join_job()
    assert joined is not None
    exchange = DistributedExchange(_PATIENCE_S, joined)
    ranks = exchange.start_number(rank)()
    exchange.close()
    return ranks


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_second_job_on_a_store_waits_for_a_late_process(tmp_path: Path, late: int) -> None:
    def job(store: Any, rank: int, size: int) -> list[int]:
        start_job(store, rank, size, 1)
        assert exchange_ranks(rank) == [0, 1, 2]
        dist.destroy_process_group()
        start_job(store, rank, size, 2)
        time.sleep(_LATE_S * (rank == late))
        ranks = exchange_ranks(rank)
        dist.destroy_process_group()
        return ranks

    assert run_job(tmp_path, 3, job) == {rank: [0, 1, 2] for rank in range(3)}


def test_an_error_in_an_earlier_job_does_not_end_the_next_one(tmp_path: Path) -> None:
    def job(store: Any, rank: int, size: int) -> list[int]:
        start_job(store, rank, size, 1)
        joined = join_job()
        assert joined is not None
        if rank == 1:
            with pytest.raises(OSError, match="full"), joined.starting():
                raise OSError("the disk is full")
        dist.barrier()
        dist.destroy_process_group()
        start_job(store, rank, size, 2)
        time.sleep(_LATE_S * (rank == 1))
        return exchange_ranks(rank)

    assert run_job(tmp_path, 3, job) == {rank: [0, 1, 2] for rank in range(3)}


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_process_whose_connection_broke_is_waited_for(tmp_path: Path, late: int) -> None:
    def job(store: Any, rank: int, size: int) -> list[int]:
        start_job(store, rank, size, 1)
        joined = join_job()
        assert joined is not None
        dist.barrier()
        if isinstance(joined._presence, _Guest):
            joined._presence._connection.shutdown(socket.SHUT_RDWR)
        time.sleep(_LATE_S * (rank == late))
        return exchange_ranks(rank)

    assert run_job(tmp_path, 3, job) == {rank: [0, 1, 2] for rank in range(3)}
