"""A storage error includes the store's last answer, even if a later attempt times out."""

from __future__ import annotations

import time

import pytest

from cloudload.data.storage import objects
from cloudload.data.storage.base import Retry
from cloudload.data.storage.fsspec import FsspecStore
from cloudload.data.storage.objects import delete_object
from cloudload.errors import FailureKind, StoreError


class _BusyThenSilent(FsspecStore):
    """A store that reports immediately that it is busy, and answers later requests after 30 s."""

    def __init__(self) -> None:
        self.attempts = 0

    def delete(self, url: str, retry: Retry) -> None:
        self.attempts += 1
        if self.attempts > 1:
            time.sleep(30)
        raise OSError("slow down")

    def failure_kind(self, error: BaseException) -> FailureKind:
        return FailureKind.BUSY if "slow down" in str(error) else FailureKind.TIMED_OUT


def test_the_deadline_does_not_hide_the_answer_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = _BusyThenSilent()
    monkeypatch.setitem(objects._BACKENDS, "busy", lambda: store)
    with pytest.raises(StoreError, match=r"2 attempts.*OSError: slow down") as failure:
        delete_object("busy://bucket/key", Retry(timeout_s=5, deadline_s=1, pause_s=0.01))
    assert failure.value.kind is FailureKind.BUSY
