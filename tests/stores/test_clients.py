"""Forked and spawned processes each read a store with a separate client."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudload.data.storage.objects import read_object, write_object
from cloudload.data.storage.urls import join_url
from testkit.faulty_store import FaultyStore


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_child_process_has_its_own_client(store_url: str, start_method: str) -> None:
    urls = [join_url(store_url, f"{number}") for number in range(4)]
    for url in urls:
        write_object(url, url.encode() * 10_000)
    with multiprocessing.get_context(start_method).Pool(2) as children:
        pending = children.map_async(read_object, urls * 4)
        mine = [read_object(url) for url in urls * 4]  # while the children read
        assert pending.get(60) == mine == [url.encode() * 10_000 for url in urls] * 4


def test_a_child_reads_that_was_forked_in_the_middle_of_a_request(faulty: FaultyStore) -> None:
    data = os.urandom(300_000)
    faulty.put(data)
    faulty.fail("GET .*key", "stall", times=4, at=100_000, seconds=8)
    with ThreadPoolExecutor(4) as threads:
        mine = [threads.submit(read_object, faulty.key) for _ in range(4)]
        while len(faulty.proxy.requests("GET .*key")) < 4:
            time.sleep(0.01)
        with multiprocessing.get_context("fork").Pool(3) as children:
            assert children.map_async(read_object, [faulty.key] * 6).get(60) == [data] * 6
        assert not any(each.done() for each in mine)  # the threads were still reading
        assert [each.result(60) for each in mine] == [data] * 4
