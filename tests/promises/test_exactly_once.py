"""Every token of every epoch is delivered once, for any worlds and any `seq_len`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader
from cloudload.order.epoch_order import OrderConfig, Sampling
from cloudload.rows.packing.residue import residue_spans
from cloudload.run.saved import read_state
from cloudload.run.state import State
from cloudload.testing import Leg, Row, check_worlds, real_tokens, run_leg
from testkit.awkward import Case, tokenize
from testkit.corpora import EOS_ID, random_documents, write_mds
from testkit.kinds import FINITE_KINDS, every_case, loaders_of, tokens_of
from testkit.loaders import ranks
from testkit.reference_order import canonical_order


@every_case(FINITE_KINDS, most_legs=3)
def test_every_token_of_every_epoch_is_delivered_once_on_any_chain_of_worlds(
    folder: str, case: Case
) -> None:
    check_every_token(folder, case)


def test_an_empty_document_between_others_is_passed_over(tmp_path: Path) -> None:
    legs, shards = (Leg(), Leg()), (("a" * 10, "", "b" * 3),)
    case = Case(shards, 4, 1, 1, False, "py1e", 2, 0, 1, legs, eos=False)
    check_every_token(str(tmp_path), case)


def test_a_seekable_order_is_read_once_and_resumed_where_it_stopped(tmp_path: Path) -> None:
    texts = [f"{number:03}" for number in range(200)]
    folder = write_mds(tmp_path / "corpus", texts, shard_samples=[50, 1, 99, 50])
    new = ranks(folder, seq_len=4, batch_size=10, epochs=1, shuffle_algo="seekable")

    def samples(loader: CloudLoader, batches: int | None = None) -> list[int]:
        return [row[3] for batch in islice(loader, batches) for row in batch.spans.tolist()]

    with new() as whole, new() as first, new() as second:
        everything = samples(whole)
        head = samples(first, 7)
        second.load_state_dict(first.state_dict())
        assert head + samples(second) == everything
    assert sorted(everything) == list(range(200))


def check_every_token(folder: str, case: Case) -> None:
    legs = [*case.legs[:-1], replace(case.legs[-1], batches=None)]
    rows = check_worlds(loaders_of(case, folder), legs)
    check_tokens(case, rows)
    check_packing(case, rows)


def check_tokens(case: Case, rows: list[Row]) -> None:
    if case.repeats is None:
        assert tokens_of(rows) == tokens_expected(case)
    assert Counter(row_tokens(rows)) == tokens_counted(case)


def documents_of(case: Case) -> dict[tuple[int, int], str]:
    """Map (stream, sample) to the text of each document."""
    return {
        (stream, sample): text
        for stream, shards in enumerate(case.streams)
        for sample, text in enumerate(text for shard in shards for text in shard)
    }


def tokens_expected(case: Case) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """Map each nonempty document (stream, epoch, sample) to its tokens, without the packer."""
    documents = {key: case.kept(text) for key, text in documents_of(case).items()}
    return {
        (stream, epoch, sample): ids
        for epoch in range(case.epochs or 0)
        for (stream, sample), ids in documents.items()
        if ids
    }


def tokens_counted(case: Case) -> Counter[tuple[int, int, int, int]]:
    """Count how often each token (stream, epoch, sample, place) must be delivered."""
    counts: Counter[tuple[int, int, int, int]] = Counter()
    streams = [[text for shard in shards for text in shard] for shards in case.streams]
    sizes = np.array([len(shard) for shard in case.shards])
    repeats = case.repeats or [1] * len(streams)
    sampling = Sampling.of(
        [len(stream) for stream in streams],
        [len(shards) for shards in case.streams],
        repeats,
        [None] * len(streams),
        [f"s{stream}" for stream in range(len(streams))],
    )
    shuffle = case.shuffle, case.shuffle_algo, case.shuffle_block_size
    order = OrderConfig(*shuffle, case.num_canonical_nodes, case.seed)
    documents = [(stream, sample, text) for (stream, sample), text in documents_of(case).items()]
    for epoch in range(case.epochs or 0):
        for number in canonical_order(sizes, order, epoch, sampling).tolist():
            stream, sample, text = documents[number]
            counts.update((stream, epoch, sample, place) for place in range(len(case.kept(text))))
    return counts


def row_tokens(rows: Sequence[Row]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (stream, epoch, sample, place) for each token in the rows."""
    for row in rows:
        for stream, epoch, sample, start, stop in row.spans:
            yield from ((stream, epoch, sample, place) for place in range(start, stop))


def check_packing(case: Case, rows: list[Row]) -> None:
    """Check the rows of a whole run against the guarantees of its packing."""
    while rows and rows[-1].is_padding:
        rows = rows[:-1]
    lengths = [sum(stop - start for *_, start, stop in row.spans) for row in rows]
    spans = [span for row in rows for span in row.spans]
    if case.packing == "concat":
        assert all(length == case.seq_len for length in lengths[:-1]), (
            "only the last row may be padded"
        )
    if case.packing == "best_fit":
        documents = documents_of(case)
        for stream, _, sample, start, stop in spans:
            size = len(case.tokens(documents[stream, sample]))
            assert stop - start == min(case.seq_len, size - start), (
                "a document that fits in a row must not be split"
            )
            assert start % case.seq_len == 0
    if case.packing == "one_per_row":
        assert all(len(row.spans) == 1 for row in rows)
        assert all(start % case.seq_len == 0 for *_, start, _ in spans)


@every_case([kind for kind in FINITE_KINDS if kind.values[0] != "one_per_row"])
def test_another_seq_len_on_resume_loses_and_repeats_no_token(folder: str, case: Case) -> None:
    check_seq_lens(folder, case)


def test_another_seq_len_within_a_long_document(tmp_path: Path) -> None:
    legs = (Leg(batches=1), Leg(batches=2))
    case = Case((("a" * 40,),), 5, 2, 1, False, "py1e", 2, 0, 1, legs)
    check_seq_lens(str(tmp_path), case)


def check_seq_lens(folder: str, case: Case) -> None:
    rows, state = [], None
    legs = [*(replace(leg, exchange_every=1) for leg in case.legs), Leg(batches=None)]
    for leg, seq_len in zip(legs, cycle([case.seq_len, 3, 11, 1]), strict=False):
        more, states = run_leg(loaders_of(case, folder, seq_len=seq_len), leg, state)
        rows += more
        state = states[-1]
    check_tokens(case, rows)


def emitted_by(state: State, lane: int) -> dict[int, int | None]:
    """Map the ordinal of each document that a lane has begun to its number of emitted tokens, or
    to None if all are emitted."""
    position = read_state(state).position
    head, offset, _ = position.cursors[0, lane].tolist()
    residue = residue_spans(position.residue(0, lane), head)
    held_back = {ordinal: start for ordinal, start, _ in residue}
    return {**dict.fromkeys(range(head)), **held_back, head: offset}


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_rows_of_any_lengths_join_to_the_token_stream_of_each_lane(
    tmp_path: Path, packing: str
) -> None:
    texts = random_documents(7, 50)
    folder = write_mds(tmp_path / "corpus", texts)
    options: dict[str, Any] = {"packing": packing, "num_lanes": 6, "shuffle": False}
    make = ranks(folder, **options, num_canonical_nodes=1, local=tmp_path / "cache")
    rows: list[Row] = []
    state = None
    for seq_len, leg in [
        (16, Leg(3, batches=9)),
        (64, Leg(batch_size=5, batches=4)),
        (5, Leg(2, 3, 4, 11)),
        (40, Leg(6, 1, 2, 7)),
    ]:
        more, states = run_leg(partial(make, seq_len=seq_len), leg, state)
        rows, state = rows + more, states[-1]
    for lane in range(6):
        own = rows[lane::6]
        # unshuffled, lane l reads documents l, l + 6, …, epoch after epoch
        stream = [(epoch, sample) for epoch in range(9) for sample in range(lane, 50, 6)]
        tokens = tokens_of(own)
        joined = [token for epoch, sample in stream for token in tokens.get((0, epoch, sample), ())]
        expected = [token for _, sample in stream for token in (*tokenize(texts[sample]), EOS_ID)]
        assert set(tokens) <= {(0, *document) for document in stream}
        if packing == "concat":
            assert real_tokens(own) == joined == expected[: len(joined)]
        # a lane has nine ordinals per epoch; the ninth is a hole in lanes 2 to 5
        for ordinal, count in emitted_by(state or {}, lane).items():
            if (sample := lane + 6 * (ordinal % 9)) < 50:
                ids = (*tokenize(texts[sample]), EOS_ID)
                assert tokens.pop((0, ordinal // 9, sample), ()) == ids[:count]
        assert not tokens
