"""Whoever takes a loader's batch keeps its documents apart: each has the logits that it has alone.

Flash attention has no kernel for CPUs, so a kernel of plain PyTorch takes its place. Everything
between the batch and the kernel is transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM
from transformers import modeling_flash_attention_utils as kernels

from cloudload.batch import Batch
from cloudload.integrations.transformers import check_packed_rows, find_mixing
from cloudload.segments import IGNORED_LABEL, document_block_mask
from testkit.loaders import make_loader

SEQ_LEN = 128
HEADS = 2


@pytest.fixture(scope="module", params=[1, 4], ids=lambda rows: f"{rows} rows")
def batch(request: pytest.FixtureRequest, folder: str) -> Batch:
    """A batch of packed documents with every field, and with padding."""
    fields = ["flash_attention", "segment_ids", "document_ids"]
    options: dict[str, Any] = {"seq_len": SEQ_LEN, "packing": "best_fit", "mask_edges": True}
    with make_loader(folder, batch_size=request.param, fields=fields, **options) as loader:
        return next(
            each
            for each in loader
            if len(each.spans) > len(each["input_ids"]) and each.num_tokens < each["labels"].numel()
        )


@pytest.fixture
def flash_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Llama with flash attention, on a kernel of plain PyTorch."""

    def attend_documents(
        query: Any, key: Any, value: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, **sizes: Any
    ) -> Any:
        assert sizes["max_seqlen_q"] == sizes["max_seqlen_k"] == int(cu_seqlens_q.diff().max())
        assert cu_seqlens_q.dtype == torch.int32
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        attended = [
            attend_rows(query[None, start:stop], key[None, start:stop], value[None, start:stop])[0]
            for start, stop in pairwise(cu_seqlens_q.tolist())
        ]
        return torch.cat(attended)

    def list_arguments(**options: Any) -> dict[str, Any]:
        names = ("max_seqlen_q", "max_seqlen_k")  # transformers 5 passes these here
        return {name: options[name] for name in names if name in options}

    def attend_rows(query: Any, key: Any, value: Any, **_: Any) -> Any:
        attended = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        return attended.transpose(1, 2)

    found: Any = (attend_rows, attend_documents, None, None), list_arguments
    if version("transformers") >= "5":
        found = (attend_rows, attend_documents, None, None, None), (list_arguments, None)
    monkeypatch.setattr(kernels, "lazy_import_flash_attention", lambda *_, **__: found)
    model = make_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


def make_model(**options: Any) -> Any:
    """A small float64 Llama with random weights."""
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=257, num_attention_heads=HEADS, initializer_range=0.3, **sizes, **options
    )
    return LlamaForCausalLM(config).double().eval()


def documents_of(batch: Batch) -> Iterator[tuple[int, slice]]:
    """Yield the row and the columns of each document."""
    stops: dict[int, int] = {}
    for row, *_, start, stop in batch.spans.tolist():
        first = stops.get(row, 0)
        stops[row] = first + stop - start
        yield row, slice(first, stops[row])


def distance(model: Any, batch: Batch, **arguments: Any) -> float:
    """The maximum difference between a document's logits in the batch and those it has alone."""
    given = {"input_ids": batch["input_ids"], "use_cache": False, **arguments}
    alone = make_model()
    with torch.no_grad():
        logits = model(**given).logits.reshape(*batch["input_ids"].shape, -1)
        return max(
            float(
                (logits[row, own] - alone(batch["input_ids"][row : row + 1, own]).logits[0])
                .abs()
                .max()
            )
            for row, own in documents_of(batch)
        )


def test_flash_attention_finds_the_documents_of_any_number_of_rows(
    flash_model: Any, batch: Batch
) -> None:
    for given in (batch, batch.flatten()):
        names = given.keys() - {"labels", "segment_ids", "document_ids"}
        assert distance(flash_model, batch, **{name: given[name] for name in names}) < 1e-10


def test_positions_alone_suffice_flash_attention_only_in_one_row(
    flash_model: Any, batch: Batch
) -> None:
    found = distance(flash_model, batch, position_ids=batch["position_ids"])
    if len(batch["input_ids"]) == 1:
        assert found < 1e-10
        return
    assert found > 0.1
    with pytest.raises(
        ValueError, match=r"flash_attention_2 reads position_ids only .* Add 'flash"
    ):
        check_packed_rows(
            flash_model, {name: batch[name] for name in ("input_ids", "position_ids")}
        )
    check_packed_rows(flash_model, batch)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_attention_reads_the_same_batch(attention: str, batch: Batch) -> None:
    model = make_model(attn_implementation=attention)
    given = dict(find_mixing(model).arrange(batch))
    del given["labels"]
    assert given["input_ids"].shape == batch["input_ids"].shape
    # eager attention computes its softmax in float32
    assert distance(model, batch, **given) < (1e-4 if attention == "eager" else 1e-10)


def test_a_flat_batch_is_that_of_the_collator_of_transformers(batch: Batch) -> None:
    features = []
    for ids, segments in zip(batch["input_ids"], batch["segment_ids"], strict=True):
        # the collator does not handle padding, so the test passes it as another segment
        sizes = torch.unique_consecutive(segments, return_counts=True)[1].tolist()
        for tokens, segment in zip(ids.split(sizes), segments.split(sizes), strict=True):
            labels = tokens if segment[0] else torch.full_like(tokens, IGNORED_LABEL)
            features.append({"input_ids": tokens.tolist(), "labels": labels.tolist()})
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    expected, found = collator(features, return_tensors="pt"), batch.flatten()
    for name, value in expected.items():
        if isinstance(value, int):
            assert (type(found[name]), found[name]) == (int, value)
        else:
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name


def test_no_row_of_a_flat_batch_predicts_the_next_row() -> None:
    ids = torch.arange(1, 9).reshape(2, 4)
    batch = Batch({"input_ids": ids, "labels": ids.clone()})
    assert batch.flatten()["labels"].tolist() == [[-100, 2, 3, 4, -100, 6, 7, 8]]
    assert torch.equal(batch["labels"], ids)


def test_a_flat_batch_numbers_documents_through(batch: Batch) -> None:
    flat, ids = batch.flatten()["segment_ids"][0], batch["segment_ids"].flatten()
    assert torch.equal(flat == 0, ids == 0)
    documents = torch.unique_consecutive(flat[flat > 0])
    assert documents.tolist() == list(range(1, len(batch.spans) + 1))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_block_mask_lets_tokens_attend_within_their_document(batch: Batch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    shape = *batch["input_ids"].shape, HEADS, 16
    query, key, value = torch.randn(
        3, *shape, generator=torch.Generator().manual_seed(1)
    ).transpose(2, 3)
    blocks = document_block_mask(batch["segment_ids"])
    packed = flex_attention(query, key, value, block_mask=blocks)
    for row, own in documents_of(batch):
        first, second, third = (each[row : row + 1, :, own] for each in (query, key, value))
        expected = torch.nn.functional.scaled_dot_product_attention(
            first, second, third, is_causal=True
        )
        torch.testing.assert_close(packed[row : row + 1, :, own], expected)


def test_megatron_gets_shifted_labels_a_mask_and_the_bounds_of_each_row(batch: Batch) -> None:
    found = batch.megatron()
    num_rows = len(batch["input_ids"])
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        **dict.fromkeys(["tokens", "labels", "position_ids"], torch.int64),
        "loss_mask": torch.float32,
        **dict.fromkeys(["cu_seqlens", "cu_seqlens_padded", "max_seqlen"], torch.int32),
    }
    assert torch.equal(found["tokens"], batch["input_ids"])
    assert torch.equal(found["position_ids"], batch["position_ids"])
    trained = torch.zeros(num_rows, SEQ_LEN, dtype=torch.bool)
    for row, own in documents_of(batch):
        trained[row, own.start : own.stop - 1] = True
        assert torch.equal(
            found["labels"][row, own.start : own.stop - 1],
            batch["input_ids"][row, own.start + 1 : own.stop],
        )
    assert torch.equal(found["loss_mask"], trained.float())
    # as Megatron-LM joins the rows of a batch
    joined = [0]
    for row, bounds in enumerate(found["cu_seqlens"]):
        joined += (row * SEQ_LEN + bounds[bounds > 0].unique()).tolist()
    assert joined == batch["cu_seq_lens_q"].tolist()
    assert found["max_seqlen"].max() == batch["max_length_q"]
    assert found["max_seqlen"].shape == (num_rows,)
