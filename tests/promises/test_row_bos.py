"""With `row_bos`, rows are those of one token less, each after the same token.

A run with seq_len S and `row_bos` is compared with a plain run with seq_len S - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Rows, Stream, export_rows
from cloudload.batch import Batch
from cloudload.errors import StreamChangedError
from cloudload.losses import LossLog, read_losses, token_losses
from cloudload.provenance import (
    compare_golden,
    open_run,
    record_golden,
    start_run,
    view_rows,
)
from cloudload.segments import FIELDS, IGNORED_LABEL
from cloudload.testing import Leg, Row, check_resume, run_legs
from testkit.awkward import few_legs
from testkit.corpora import EOS, EOS_ID, byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.examples import EXAMPLES, PACKINGS
from testkit.loaders import list_settings, make_loader, ranks

BOS_ID = 7
OF_THE_RULE = ("seq_len", "row_bos", "tail")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Datasets of 50 and 30 documents with token lengths. Some are longer than a row."""
    folder = tmp_path_factory.mktemp("counted")
    return [
        write_counted(folder / f"{seed}", random_documents(seed, count), shard_bytes=2_000)
        for seed, count in ((1, 50), (2, 30))
    ]


def with_bos(rows: Sequence[Row]) -> list[Row]:
    """The rows with the token that `row_bos` adds, but not to rows of padding."""
    return [
        Row(
            ((BOS_ID if row.spans else 0), *row.input_ids),
            (IGNORED_LABEL, *row.labels),
            row.spans,
        )
        for row in rows
    ]


@given(
    packing=st.sampled_from(PACKINGS),
    epochs=st.sampled_from([None, 1, 2]),
    lengths=st.sampled_from(["off", "auto"]),
    legs=few_legs(workers=(0, 1), batches=st.integers(1, 4)),
    seq_len=st.sampled_from([2, 9, 33]),
)
@settings(max_examples=EXAMPLES // 2)
def test_rows_and_resumes_are_those_of_rows_with_one_token_less(
    counted: list[str],
    *,
    packing: dict[str, Any],
    epochs: int | None,
    lengths: str,
    legs: list[Leg],
    seq_len: int,
) -> None:
    options = {**packing, "epochs": epochs, "lengths": lengths}
    plain = run_legs(ranks(counted[0], **options, seq_len=seq_len - 1), legs)
    found = run_legs(ranks(counted[0], **options, seq_len=seq_len, row_bos=BOS_ID), legs)
    assert found == with_bos(plain)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_state_has_the_position_of_the_plain_run_to_its_end(
    counted: list[str], packing: dict[str, Any]
) -> None:
    options = {**packing, "epochs": 1, "lengths": "off"}
    plain, own = (
        make_loader(counted[0], **options, seq_len=15),
        make_loader(counted[0], **options, seq_len=16, row_bos=BOS_ID),
    )
    num_in_tail = 0
    for _ in zip(plain, own, strict=True):
        states = [loader.state_dict() for loader in (plain, own)]
        num_in_tail += bool(states[0]["tail"])
        assert states[0]["tail"] == states[1]["tail"]
        assert "row_bos" not in states[0]
        for state in states:
            for name in OF_THE_RULE:
                state.pop(name, None)
        assert states[0] == states[1]
    assert num_in_tail > 0
    assert own.stats().padding == plain.stats().padding


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("epochs", [None, 1])
def test_seq_len_changes_at_any_batch_and_loses_nothing(
    counted: list[str], packing: dict[str, Any], epochs: int | None
) -> None:
    """Also in the tail of a finite run."""
    ends = [4, 12, 30] if epochs is None else [3, 30, 34]
    chains: list[list[list[int]]] = []
    for num_lead in (0, 1):
        rows, state, done = [], None, 0
        for seq_len, end in zip((15, 40, 11), ends, strict=True):
            rule = {"row_bos": BOS_ID} if num_lead else {}
            loader = make_loader(
                counted[0], **packing, epochs=epochs, seq_len=seq_len + num_lead, **rule
            )
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader.take(end - done):
                rows += [ids[num_lead:] for ids in batch["input_ids"].tolist()]
            state, done = loader.state_dict(), end
        chains.append(rows)
    assert chains[0] == chains[1]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("mask_edges", [False, True])
def test_fields_have_the_token_in_the_first_segment_but_in_no_document(
    counted: list[str], packing: dict[str, Any], mask_edges: bool
) -> None:
    """In rows of every kind: full, padded, after the end, and fillers of micro-batches."""
    options = {**packing, "epochs": 1, "batch_size": None, "global_batch_size": 10}
    options |= {"micro_batch_size": 4, "mask_edges": mask_edges, "fields": list(FIELDS)}
    options |= {"dp_rank": 1, "dp_world_size": 3}
    plain = make_loader(counted[:2], **options, seq_len=15, pad_id=9)
    own = make_loader(counted[:2], **options, seq_len=16, row_bos=BOS_ID, pad_id=9)
    num_padding = 0
    for one, two in zip(plain, own, strict=True):
        has_tokens = one["segment_ids"][:, 0] > 0
        num_padding += int((~has_tokens).sum())
        assert two.num_lead == 1
        assert torch.equal(two["input_ids"][:, 1:], one["input_ids"])
        assert torch.equal(two["input_ids"][:, 0], torch.where(has_tokens, BOS_ID, 9))
        assert (two["labels"][:, 0] == IGNORED_LABEL).all()
        labels = two["labels"][:, 1:].clone()
        if mask_edges:  # the first document's first token follows the row's own token
            assert torch.equal(labels[has_tokens, 0], one["input_ids"][has_tokens, 0])
            labels[:, 0] = IGNORED_LABEL
        assert torch.equal(labels, one["labels"])
        assert torch.equal(two["segment_ids"][:, 1:], one["segment_ids"])
        assert torch.equal(two["segment_ids"][:, 0], has_tokens.long())
        for name in ("stream_ids", "document_ids"):
            assert torch.equal(two[name][:, 1:], one[name])
            assert (two[name][:, 0] == -1).all()
        is_first = one["segment_ids"] == one["segment_ids"][:, :1]
        assert torch.equal(two["position_ids"][:, 1:], one["position_ids"] + is_first)
        assert (two["position_ids"][:, 0] == 0).all()
        check_bounds(two)
        assert np.array_equal(two.spans, one.spans)
        assert two.num_tokens == one.num_tokens
    assert num_padding > 0


def check_bounds(batch: Batch) -> None:
    """Check the bounds of segments against the position IDs, which are 0 at each start."""
    starts = torch.nonzero(batch["position_ids"].flatten() == 0).flatten().tolist()
    bounds = [*starts, batch["input_ids"].numel()]
    assert batch["cu_seqlens"].tolist() == batch["cu_seq_lens_q"].tolist() == bounds
    of_megatron = batch.megatron()
    assert torch.equal(of_megatron["position_ids"], batch["position_ids"])
    size = batch["input_ids"].shape[1]
    for row, own in enumerate(of_megatron["cu_seqlens"].tolist()):
        assert {row * size + bound for bound in own} == {
            bound for bound in bounds if row * size <= bound <= (row + 1) * size
        }


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("size", [1, 5])
def test_rows_by_index_and_ranks_that_share_lanes_have_the_token(
    counted: list[str], packing: dict[str, Any], size: int
) -> None:
    options: dict[str, Any] = {**packing, "epochs": 1, "row_bos": BOS_ID, "pad_id": 9}
    options |= {"fields": ["position_ids", "document_ids"], "seq_len": 16}
    rows = Rows(counted[0], **options, tokenizer=byte_tokenizer(), eos=EOS, num_lanes=12)
    found: dict[int, dict[str, list[int]]] = {}
    for rank in range(size):
        for batch in make_loader(counted[0], **options, dp_rank=rank, dp_world_size=size):
            for index, row in enumerate(batch.rows.tolist()):
                found[row] = {name: values[index].tolist() for name, values in batch.items()}
    assert len(rows) > 30
    for row, item in enumerate(rows):
        assert {name: values.tolist() for name, values in item.items()} == found[row]
        assert item["input_ids"][0] == BOS_ID


def test_the_losses_of_a_document_are_those_of_its_tokens(
    counted: list[str], tmp_path: Path
) -> None:
    """The loss of each token is its ID. Unlike in a plain run, a row's first token has a loss."""
    with make_loader(counted[0], row_bos=BOS_ID, packing="best_fit", seq_len=64) as loader:
        expected: list[list[int]] = []
        with LossLog(loader, tmp_path / "log") as log:
            for batch in loader.take(3):
                log.add(batch, batch["input_ids"][:, 1:].float())
                expected += ids_of_spans(batch)
    found = read_losses(tmp_path / "log").records
    assert found.table[:, -1].tolist() == [len(ids) for ids in expected]
    assert found.sums.tolist() == [sum(ids) for ids in expected]


def ids_of_spans(batch: Batch) -> list[list[int]]:
    """The token IDs of each span."""
    ids, row_before, at = [], -1, 0
    for row, *_, start, stop in batch.spans.tolist():
        at = at if row == row_before else batch.num_lead
        ids.append(batch["input_ids"][row, at : at + stop - start].tolist())
        row_before, at = row, at + stop - start
    return ids


def test_a_state_reopens_the_run_whose_rows_are_viewed_and_traced(
    counted: list[str], tokenizer_file: str
) -> None:
    options: dict[str, Any] = {"row_bos": EOS, "seq_len": 24, "tokenizer": tokenizer_file}
    with make_loader(counted[0], **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        batch = next(batches)
        assert loader.describe()["row_bos"] == EOS_ID
        traced = loader.trace(batch)
    assert state["row_bos"] == EOS_ID
    run = open_run(state)
    viewed = list(view_rows(run, range(2, 3), num_workers=0))
    assert [row.input_ids.tolist() for row in viewed] == batch["input_ids"].tolist()
    for row in viewed:
        assert row.spans[0].row_start == 1
        assert row.length == row.num_tokens + 1 == 24
    ids = ids_of_spans(batch)
    for span, own in zip(traced, ids, strict=True):
        assert byte_tokenizer().decode([each for each in own if each != EOS_ID]).replace(
            " ", ""
        ) == span.text.replace("<eos>", "").replace(" ", "")
    refused = pytest.raises(StreamChangedError, match=r"row_bos .*saved 256, found None")
    with make_loader(counted[0], seq_len=24, tokenizer=tokenizer_file) as other, refused:
        other.load_state_dict(state)
    assert start_run(4, data=counted[0], eos=EOS, **options).arguments["row_bos"] == EOS_ID
    check_resume(ranks(counted[0], **options), global_batch=4, num_batches=4)


def test_exported_rows_have_the_token(counted: list[str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"packing": "best_fit", "epochs": 1, "row_bos": BOS_ID}
    with make_loader(counted[0], **options) as loader:
        expected = [
            ids[: 1 + sum(len(own) for own in spans)]
            for batch in loader
            for ids, spans in zip(batch["input_ids"].tolist(), spans_by_row(batch), strict=True)
            if spans
        ]
    with make_loader(counted[0], **options) as loader:
        export_rows(loader, tmp_path / "rows")
    with CloudLoader(
        str(tmp_path / "rows"),
        tokens_key="tokens",
        packing="one_per_row",
        seq_len=16,
        batch_size=1,
        shuffle=False,
        num_canonical_nodes=1,
        num_workers=0,
        epochs=1,
    ) as rows:
        found = [batch["input_ids"][0, : batch.num_tokens].tolist() for batch in rows]
    assert found[: len(expected)] == expected


def spans_by_row(batch: Batch) -> list[list[list[int]]]:
    found: list[list[list[int]]] = [[] for _ in batch["input_ids"]]
    for row, ids in zip(batch.spans[:, 0].tolist(), ids_of_spans(batch), strict=True):
        found[row].append(ids)
    return found


def test_golden_rows_detect_another_token(counted: list[str]) -> None:
    options: dict[str, Any] = {"data": counted[0], "tokenizer": byte_tokenizer(), "eos": EOS}
    options |= {"seq_len": 16}
    golden = record_golden(20, **options, row_bos=BOS_ID)
    assert compare_golden(golden, **options, row_bos=BOS_ID).is_same
    report = compare_golden(golden, **options, row_bos=8)
    assert (report.first_row, report.cause) == (0, "tokenizer")
    assert [each.name for each in report.changed] == ["row_bos"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_bos": "auto"}, r"row_bos is 'auto'. Use a token, its ID, or None"),
        ({"row_bos": 7, "seq_len": 1}, r"seq_len is 1, but row_bos is 7, which leaves no place"),
        ({"row_bos": 7, "bos": EOS}, r"row_bos is 7, but documents of .* have the bos 256, so a"),
        ({"row_bos": "<none>"}, r"'<none>' is not a token of this tokenizer"),
        ({"row_bos": 300}, r"300 is not a token of this tokenizer"),
    ],
)
def test_a_row_bos_that_makes_no_sense_is_refused(
    counted: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        make_loader(counted[0], **options)
    assert type(caught.value).__name__ in ("ValueError", "TokenizerError")


def test_a_row_bos_is_described_apart_from_those_of_documents(counted: list[str]) -> None:
    settings = list_settings(make_loader(counted[0], row_bos=BOS_ID))
    assert "bos_eos no bos (the template of tokenizer.json adds none), eos '<eos>' (g" in settings
    assert " · " not in settings


def test_a_stream_with_a_bos_of_its_own_is_refused(counted: list[str]) -> None:
    streams = [Stream(counted[0], name="web"), Stream(counted[1], name="code", bos=EOS)]
    with pytest.raises(ValueError, match="documents of code have the bos 256"):
        make_loader(streams, row_bos=BOS_ID)
    with make_loader(streams[:1], row_bos=BOS_ID) as loader:
        losses = token_losses(torch.zeros(4, 16, 257), next(iter(loader))["labels"])
        assert losses.shape == (4, 15)
