"""All kinds of runs, loaders for generated cases, and the documents in the loaders' rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudload.testing import MakeLoader, Row, real_tokens
from testkit.awkward import Case, cases, write_case
from testkit.corpora import EOS
from testkit.examples import EXAMPLES
from testkit.loaders import ranks

# a third of the examples, because they run for each of 21 kinds
THOROUGH = settings(max_examples=max(1, EXAMPLES // 3), suppress_health_check=list(HealthCheck))
PACKINGS = ("concat", "best_fit", "one_per_row")
MIXTURES = ("one stream", "one corpus", "repeated", "mixed")
KINDS = [
    pytest.param(
        packing, mixture, ends, id=f"{packing}, {mixture}, {'finite' if ends else 'endless'}"
    )
    for packing in PACKINGS
    for mixture in MIXTURES
    for ends in (False, True)
    if not (ends and mixture == "mixed")
]
FINITE_KINDS = [kind for kind in KINDS if kind.values[2]]


def kind_of(packing: str, mixture: str, ends: bool) -> dict[str, Any]:
    """The arguments of `cases` for one kind of run."""
    return {"packings": [packing], "mixtures": [mixture], "epochs": [1, 2] if ends else [None]}


def every_case(kinds: Sequence[Any] = KINDS, **limits: Any) -> Callable[[Any], Any]:
    """Run a test, which takes an empty folder and a case, for generated cases of each kind."""

    def decorate(check: Callable[[str, Case], None]) -> Any:
        def run(scratch: Path, packing: str, mixture: str, ends: bool, data: st.DataObject) -> None:
            kind = kind_of(packing, mixture, ends)
            case = data.draw(cases(**kind, may_deselect=True, **limits))
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                check(folder, case)

        run.__name__, run.__qualname__ = check.__name__, check.__qualname__
        run.__module__, run.__doc__ = check.__module__, check.__doc__
        for_each_kind = pytest.mark.parametrize(("packing", "mixture", "ends"), kinds)
        return for_each_kind(THOROUGH(given(data=st.data())(run)))

    return decorate


def loaders_of(case: Case, folder: str, **changes: Any) -> MakeLoader:
    """Write the case's corpus into `folder`. Returns a function that makes loaders of it."""
    streams = changes.pop("streams", None) or write_case(folder, case)
    settings: dict[str, Any] = {
        "seq_len": case.seq_len,
        "num_lanes": case.num_lanes,
        "num_canonical_nodes": case.num_canonical_nodes,
        "shuffle": case.shuffle,
        "shuffle_algo": case.shuffle_algo,
        "shuffle_block_size": case.shuffle_block_size,
        "seed": case.seed,
        "epochs": case.epochs,
        "packing": case.packing,
        "open_rows": case.open_rows,
        "overflow": case.overflow,
        "min_tokens": case.min_tokens,
    }
    settings.update(changes)
    local, eos = f"{folder}/cache", EOS if case.eos else None
    make: MakeLoader = ranks(streams, local=local, eos=eos, **settings)
    return make


def tokens_of(rows: Sequence[Row]) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """The tokens of each document (stream, epoch, sample).

    Checks that the rows contain the tokens of each document in order and without gaps.
    """
    tokens: dict[tuple[int, int, int], list[int]] = {}
    for row in rows:
        ids = iter(row.input_ids)
        for stream, epoch, sample, start, stop in row.spans:
            found = tokens.setdefault((stream, epoch, sample), [])
            assert len(found) == start, "the tokens of a document must be in order, without gaps"
            found += [next(ids) for _ in range(stop - start)]
    assert len(real_tokens(rows)) == sum(map(len, tokens.values())), (
        "every real token must be in a span"
    )
    return {document: tuple(ids) for document, ids in tokens.items()}
