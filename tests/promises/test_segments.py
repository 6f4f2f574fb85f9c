"""Packed documents do not affect each other. Each has the same logits as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cloudload.segments import (
    IGNORED_LABEL,
    document_attention_mask,
    document_block_mask,
    mask_document_edges,
    position_ids,
    segment_ids,
)
from testkit.packed_batches import Packing, spans

VOCABULARY = 50
BATCH: Packing = [[7, 1, 5], [16], [1, 1, 9, 2], [4, 12]], 16


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    """A small float64 model with random weights and either rotary or absolute positions."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "attn_implementation": "sdpa"}
    sizes |= {"initializer_range": 0.3}
    if request.param == "llama":
        sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
        return LlamaForCausalLM(config).double().eval()
    sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def input_ids() -> torch.Tensor:
    """Random token IDs in rows packed as in `BATCH`; padding is token 0."""
    ids = segment_ids(*spans(BATCH))
    return torch.from_numpy(np.random.default_rng(3).integers(1, VOCABULARY, ids.shape) * (ids > 0))


def kept_apart(packing: Packing = BATCH) -> dict[str, Any]:
    """The attention mask and position IDs that keep packed documents apart."""
    arguments = spans(packing)
    mask = document_attention_mask(torch.from_numpy(segment_ids(*arguments)))
    return {"attention_mask": mask, "position_ids": torch.from_numpy(position_ids(*arguments))}


def documents(packing: Packing) -> Iterator[tuple[int, slice]]:
    """Yield the row and the columns of each document."""
    for row, lengths in enumerate(packing[0]):
        ends = np.cumsum(lengths).tolist()
        for end, length in zip(ends, lengths, strict=True):
            yield row, slice(end - length, end)


def distance(
    model: Any, input_ids: torch.Tensor, packing: Packing = BATCH, **arguments: Any
) -> float:
    """The maximum difference between the logits of packed documents and those of each document
    alone."""
    with torch.no_grad():
        packed = model(input_ids, **arguments).logits
        assert packed.isfinite().all()
        return max(
            float((packed[row, own] - model(input_ids[row, own][None]).logits[0]).abs().max())
            for row, own in documents(packing)
        )


def test_a_packed_document_has_the_logits_that_it_has_alone(
    model: Any, input_ids: torch.Tensor
) -> None:
    assert distance(model, input_ids, **kept_apart()) <= 1e-10
    assert distance(model, input_ids) > 0.1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_block_mask_keeps_documents_apart_as_the_mask_does() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    segments = torch.from_numpy(segment_ids(*spans(BATCH)))
    (num_rows, _), draw = segments.shape, torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, num_rows, 2, 16, 16, generator=draw)
    found = flex_attention(query, key, value, block_mask=document_block_mask(segments))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=document_attention_mask(segments)
    )
    torch.testing.assert_close(found, expected)


def test_the_mask_is_needed_and_absolute_positions_too(model: Any, input_ids: torch.Tensor) -> None:
    mask, positions = kept_apart().values()
    causal = torch.ones_like(mask).tril()
    assert distance(model, input_ids, attention_mask=causal, position_ids=positions) > 0.1
    without_positions = distance(model, input_ids, attention_mask=mask)
    if model.config.model_type == "gpt2":
        assert without_positions > 0.1
    else:
        # rotary positions are relative, so only rounding differs
        assert without_positions < 1e-4


@pytest.mark.parametrize("num_rows", [1, 4])
def test_transformers_recognises_packed_positions_only_without_a_cache(
    model: Any, input_ids: torch.Tensor, num_rows: int
) -> None:
    """In transformers 4.57, with `use_cache` (the default), position IDs alone do not stop packed
    documents from attending to each other."""
    packing = BATCH[0][:num_rows], BATCH[1]
    positions = kept_apart(packing)["position_ids"]
    rows = input_ids[:num_rows]
    assert distance(model, rows, packing, position_ids=positions, use_cache=False) <= 1e-10
    assert distance(model, rows, packing, position_ids=positions) > 0.1


def test_the_loss_is_the_mean_over_the_tokens_of_documents_alone(
    model: Any, input_ids: torch.Tensor
) -> None:
    rows, lengths, _ = spans(BATCH)
    labels = input_ids.masked_fill(input_ids == 0, IGNORED_LABEL)
    total, count = 0.0, 0
    with torch.no_grad():
        for row, columns in documents(BATCH):
            alone, predicted = input_ids[row, columns][None], columns.stop - columns.start - 1
            if predicted:
                total += predicted * float(model(alone, labels=alone).loss)
                count += predicted
        unmasked = float(model(input_ids, labels=labels, **kept_apart()).loss)
        mask_document_edges(labels.numpy(), rows, lengths)
        masked = float(model(input_ids, labels=labels, **kept_apart()).loss)
    # transformers computes the loss in float32
    assert masked == pytest.approx(total / count, rel=1e-6)
    assert abs(unmasked - masked) > 1e-3
