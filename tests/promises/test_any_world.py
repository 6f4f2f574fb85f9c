"""The sequence of global batches does not depend on the world that reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.testing import Leg, check_worlds
from testkit.awkward import cases
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.kinds import (
    KINDS,
    THOROUGH,
    kind_of,
    loaders_of,
)


@pytest.mark.parametrize(("packing", "mixture", "ends"), KINDS)
@THOROUGH
@given(data=st.data())
def test_any_chain_of_worlds_reads_one_stream(
    scratch: Path, packing: str, mixture: str, ends: bool, data: st.DataObject
) -> None:
    case = data.draw(cases(**kind_of(packing, mixture, ends)))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        check_worlds(loaders_of(case, folder), case.legs)


@pytest.mark.parametrize("num_documents", [1, 2, 5, 11, 12, 13])
@pytest.mark.parametrize("epochs", [None, 1, 3])
def test_fewer_documents_than_lanes_or_ranks_still_reach_every_rank(
    tmp_path: Path, num_documents: int, epochs: int | None
) -> None:
    folder = write_mds(tmp_path / "corpus", random_documents(1, num_documents))

    def make_loader(**rank: Any) -> CloudLoader:
        return CloudLoader(
            folder,
            local=tmp_path / "cache",
            tokenizer=byte_tokenizer(),
            eos=EOS,
            seq_len=8,
            num_lanes=12,
            epochs=epochs,
            **rank,
        )

    last = None if epochs else 9
    check_worlds(
        make_loader,
        [
            Leg(batches=2),
            Leg(12, batches=2),
            Leg(6, batch_size=3, batches=1),
            Leg(4, workers=2, batches=last),
        ],
    )
