"""A state resumes where it was saved, after any batch, on any world, and after an interruption."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.testing import Leg, check_resume, check_worlds, real_tokens
from testkit.awkward import cases
from testkit.corpora import EOS, byte_tokenizer, write_mds
from testkit.kinds import (
    KINDS,
    THOROUGH,
    kind_of,
    loaders_of,
)


@pytest.mark.parametrize(("packing", "mixture", "ends"), KINDS)
@THOROUGH
@given(data=st.data())
def test_saved_after_every_batch_the_remainder_is_the_same(
    scratch: Path, packing: str, mixture: str, ends: bool, data: st.DataObject
) -> None:
    case = data.draw(cases(**kind_of(packing, mixture, ends), most_legs=1))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        leg = case.legs[0]
        check_resume(
            loaders_of(case, folder), global_batch=leg.ranks * leg.batch_size, num_batches=4
        )


def test_a_document_of_hundreds_of_rows_is_resumed_in_its_middle(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "corpus", ["x" * 5_000, "y", "z" * 3])

    def make_loader(**rank: Any) -> CloudLoader:
        return CloudLoader(
            folder,
            local=tmp_path / "cache",
            tokenizer=byte_tokenizer(),
            eos=EOS,
            seq_len=16,
            num_lanes=2,
            epochs=1,
            **rank,
        )

    rows = check_worlds(
        make_loader, [Leg(batches=301), Leg(2, batches=77), Leg(1, batch_size=3, batches=None)]
    )
    assert len(real_tokens(rows)) == 5_001 + 2 + 4
