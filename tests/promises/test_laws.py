"""The two laws of a loader. The sequence of global batches does not depend on the world that reads
it, and a state resumes where it was saved, after any batch and on any world."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.testing import Leg, check_resume, check_worlds
from testkit.awkward import Case
from testkit.corpora import random_documents, write_mds
from testkit.kinds import every_case, loaders_of
from testkit.loaders import ranks


@every_case()
def test_any_chain_of_worlds_reads_one_stream(folder: str, case: Case) -> None:
    check_worlds(loaders_of(case, folder), case.legs)


@pytest.mark.parametrize("num_documents", [1, 2, 5, 11, 12, 13])
def test_fewer_documents_than_lanes_or_ranks_still_reach_every_rank(
    tmp_path: Path, num_documents: int
) -> None:
    folder = write_mds(tmp_path / "corpus", random_documents(1, num_documents))
    legs = [Leg(batches=2), Leg(12, batches=2), Leg(6, batch_size=3), Leg(4, workers=2, batches=9)]
    check_worlds(ranks(folder, seq_len=8, local=tmp_path / "cache"), legs)


@every_case(most_legs=1)
def test_saved_after_every_batch_the_remainder_is_the_same(folder: str, case: Case) -> None:
    global_batch = case.legs[0].ranks * case.legs[0].batch_size
    check_resume(loaders_of(case, folder), global_batch=global_batch, num_batches=4)
