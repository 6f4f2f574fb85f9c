"""`pad_documents_to` pads documents within their rows, as if the data had the padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Rows
from cloudload.errors import StreamChangedError
from cloudload.segments import IGNORED_LABEL
from cloudload.testing import Leg, Row, run_leg, run_legs
from testkit.awkward import few_legs
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.examples import EXAMPLES, PACKINGS
from testkit.loaders import make_loader, ranks

BOS_ID, EOS_ID, PAD_ID, PLACE_HOLDER = 7, 256, 3, 255
DOCUMENTS = random_documents(1, 60)
MULTIPLES = (2, 4, 8)


def frame(text: str, multiple: int) -> list[int]:
    """The IDs of a document with bos, eos, and padding, which is a token of its own."""
    ids = [BOS_ID, *byte_tokenizer().encode(text).ids, EOS_ID]
    return [*ids, *[PLACE_HOLDER] * (-len(ids) % multiple)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents as text, and as IDs with padding, by the multiple."""
    extra = {
        f"ids{multiple}": ("json", [frame(text, multiple) for text in DOCUMENTS])
        for multiple in MULTIPLES
    }
    root = tmp_path_factory.mktemp("padded")
    folder = write_mds(root / "data", DOCUMENTS, shard_bytes=4_000, extra=extra)
    count(folder)
    for multiple in MULTIPLES:
        count(folder, tokenizer=None, tokens_key=f"ids{multiple}")
    return folder


def with_padding(rows: Sequence[Row]) -> list[Row]:
    """The rows of data that has the padding as a token, with `PAD_ID` and without its labels."""
    return [
        Row(
            tuple(PAD_ID if each == PLACE_HOLDER else each for each in row.input_ids),
            tuple(IGNORED_LABEL if each == PLACE_HOLDER else each for each in row.labels),
            row.spans,
        )
        for row in rows
    ]


def options_of(multiple: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a run that pads, and of one that reads the padding."""
    same = {"seq_len": 4 * multiple, "pad_id": PAD_ID, **more}
    own = {"bos": BOS_ID, "eos": EOS_ID, "pad_documents_to": multiple}
    other = {"bos": None, "eos": None, "tokens_key": f"ids{multiple}", "tokenizer": None}
    return {**same, **own}, {**same, **other}


@given(
    multiple=st.sampled_from(MULTIPLES),
    packing=st.sampled_from(PACKINGS),
    epochs=st.sampled_from([None, 1, 2]),
    lengths=st.sampled_from(["off", "require"]),
    legs=few_legs(ranks=(1, 2, 3, 5)),
)
@settings(max_examples=EXAMPLES)
def test_rows_are_those_of_data_that_has_the_padding(
    folder: str,
    *,
    multiple: int,
    packing: dict[str, Any],
    epochs: int | None,
    lengths: str,
    legs: list[Leg],
) -> None:
    legs = [
        leg for leg in legs if (epochs or leg.batches) and (lengths == "require" or leg.ranks != 5)
    ] or [Leg()]
    own, other = options_of(multiple, **packing, epochs=epochs, lengths=lengths)
    expected = with_padding(run_legs(ranks(folder, **other), legs))
    assert run_legs(ranks(folder, **own), legs) == expected


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_by_index_lengths_and_positions_know_the_padding(
    folder: str, packing: dict[str, Any]
) -> None:
    own, other = options_of(8, **packing, epochs=1, lengths="require")
    with make_loader(folder, **own, batch_size=4) as loader:
        with make_loader(folder, **other, batch_size=4) as plain:
            assert len(loader) == len(plain)
        loader.seek(8)
        sought = [batch["input_ids"].tolist() for batch in loader.take(2)]
    with make_loader(folder, **own, batch_size=4) as loader:
        assert sought == [batch["input_ids"].tolist() for batch in [*loader.take(4)][2:]]
    of_rows = {name: value for name, value in own.items() if name != "batch_size"}
    rows = Rows(folder, tokenizer=byte_tokenizer(), num_lanes=12, **of_rows)
    found = run_legs(ranks(folder, **own), [Leg(batches=None)])
    assert any(PAD_ID in row.input_ids for row in found)
    assert [tuple(rows[index]["labels"].tolist()) for index in range(len(found))] == [
        row.labels for row in found
    ]


def test_bounds_for_megatron_leave_out_the_padding(folder: str) -> None:
    own, _ = options_of(8, packing="best_fit", seq_len=128)
    with make_loader(folder, **own) as loader:
        batch = next(iter(loader))
    found = batch.megatron()
    num_pads = 0
    for row in range(len(batch.rows)):
        spans = batch.spans[batch.spans[:, 0] == row]
        padded, real = found["cu_seqlens_padded"][row], found["cu_seqlens"][row]
        place = 0
        for index, (*_, sample, start, stop) in enumerate(spans.tolist()):
            size = len(byte_tokenizer().encode(DOCUMENTS[sample]).ids) + 2
            own_size = min(stop, size) - start
            assert padded[index + 1] - padded[index] == stop - start
            assert real[index + 1] - real[index] == own_size
            labels = batch["labels"][row, place : place + stop - start]
            assert (labels == IGNORED_LABEL).tolist() == [
                at >= own_size for at in range(stop - start)
            ]
            num_pads += stop - start - own_size
            place += stop - start
    assert num_pads
    assert (found["cu_seqlens_padded"] % 8 == 0).all()


def test_the_text_of_a_traced_document_has_no_padding(folder: str) -> None:
    text, ids = options_of(8)
    for options in (text, {**ids, "tokens_key": "ids2", "pad_documents_to": 8}):
        with make_loader(folder, **options) as loader:
            traced = loader.trace(next(iter(loader)))
            padded = [loader.trace(batch) for batch in loader.take(20)]
        for each in itertools.chain(traced, *padded):
            ids_of_document = frame(DOCUMENTS[each.sample], 2)[each.start : each.stop]
            if options is text:
                ids_of_document = [id for id in ids_of_document if id != PLACE_HOLDER]
                assert each.text == byte_tokenizer().decode(ids_of_document, False)
            else:
                assert each.text == " ".join(map(str, ids_of_document))


def test_a_state_holds_the_multiple(folder: str) -> None:
    own, _ = options_of(8)
    _, states = run_leg(ranks(folder, **own), Leg())
    assert states[-1]["pad_documents_to"] == 8
    with pytest.raises(StreamChangedError, match=r"pad_documents_to .*saved 8, found 4"):
        run_leg(ranks(folder, **{**own, "pad_documents_to": 4}), Leg(), states[-1])
    _, states = run_leg(ranks(folder, **{**own, "pad_documents_to": 1}), Leg())
    assert "pad_documents_to" not in states[-1]


@pytest.mark.parametrize(
    "options", [{"seq_len": 12}, {"row_bos": 7, "bos": None}, {"pad_documents_to": 0}]
)
def test_what_cannot_be_padded_is_refused(folder: str, options: dict[str, Any]) -> None:
    own, _ = options_of(8)
    with pytest.raises(ValueError, match="pad_documents_to is"):
        CloudLoader(folder, tokenizer=byte_tokenizer(), batch_size=1, **{**own, **options})


def test_padding_may_have_the_id_of_a_token(folder: str) -> None:
    own, _ = options_of(4, packing="best_fit", seq_len=128)
    with make_loader(folder, **{**own, "pad_id": EOS_ID}) as loader:
        batch = next(iter(loader))
    ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    is_eos = ids == EOS_ID
    assert is_eos[labels == IGNORED_LABEL].all()
    assert 0 < np.count_nonzero(labels == EOS_ID) < np.count_nonzero(is_eos)
