"""Documents that lanes pass are counted with the first row whose cursor is past them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.loading.workers.documents import FoundDocuments
from cloudload.loading.workers.passed_documents import PassedDocuments

NUM_LANES = 3


def recipe_of(num_streams: int, *, is_mixed: bool) -> Any:
    """A recipe in which sample `s` belongs to stream `s % num_streams`."""
    streams = range(num_streams)
    components = [[stream] for stream in streams] if is_mixed else [list(streams)]
    return SimpleNamespace(
        corpus=SimpleNamespace(streams_of=lambda samples: samples % num_streams),
        num_lanes=NUM_LANES,
        components=[SimpleNamespace(streams=each) for each in components],
    )


@given(
    num_streams=st.sampled_from([1, 2, 90]),
    is_mixed=st.booleans(),
    lanes=st.lists(st.lists(st.sampled_from("rrp.p"), max_size=12), min_size=6, max_size=6),
    samples=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    data=st.data(),
)
def test_each_document_is_counted_once_and_with_its_row(
    num_streams: int,
    *,
    is_mixed: bool,
    lanes: list[list[str]],
    samples: Any,
    cuts: list[int],
    data: st.DataObject,
) -> None:
    # the documents of each lane: "r" is read, "p" is passed, and "." is a hole
    if not is_mixed or num_streams == 1:
        lanes = lanes[:NUM_LANES]
    documents = [
        (lane, ordinal, kind, lane // NUM_LANES if is_mixed else samples.randrange(num_streams))
        for lane, kinds in enumerate(lanes)
        for ordinal, kind in enumerate(kinds)
        if kind != "."
    ]
    passed = PassedDocuments(recipe_of(num_streams, is_mixed=is_mixed))
    # lanes are passed in two parts, after each of which rows are cut
    counted, expected = Counter[tuple[int, int, int]](), Counter[tuple[int, int, int]]()
    done = set[tuple[int, int]]()
    for part in range(2):
        own = [each for each in documents if (each[1] < cuts[each[0]]) == (part == 0)]
        columns = np.array([(lane, at, 0, sample) for lane, at, _, sample in own], np.int64)
        found = FoundDocuments(*columns.reshape(-1, 4).T)
        is_read = np.array([kind == "r" for *_, kind, _ in own], np.bool_)
        left = passed.skip(found, is_read)
        assert left.ordinals.tolist() == found.ordinals[is_read].tolist()
        rows = []
        for lane, kinds in enumerate(lanes):
            stop = min(cuts[lane], len(kinds)) if part == 0 else len(kinds)
            # a cursor is before, inside, or after a document that is read
            places = [at + after for at in range(stop) if kinds[at] == "r" for after in (0, 1)]
            places = [at for at in places if part == 0 or at >= cuts[lane]]
            chosen = data.draw(st.sets(st.sampled_from(places))) if places else set[int]()
            rows += [(lane, at) for at in sorted(chosen)]
        table = np.array(rows, np.int64).reshape(-1, 2)
        runs = passed.count(table[:, 0], np.column_stack([table[:, 1], table[:, 1] * 0]))
        for row, stream, number in runs.tolist():
            counted[part, row, stream] += number
        for row, (lane, cursor) in enumerate(rows):
            for of, at, kind, stream in documents:
                is_passed = kind == "p" and of == lane and at < cursor
                if is_passed and (of, at) not in done:
                    done.add((of, at))
                    expected[part, row, stream] += 1
    assert counted == expected
