"""Check `CloudloadDataLoader` as the trainers of torchtitan 0.3 and later use it.

Runs in torchtitan's environment: torchtitan_adapter.py MDS_FOLDER TOKENIZER_FOLDER CACHE_FOLDER
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from cloudload import CloudLoader
from cloudload.errors import StreamChangedError
from cloudload.integrations.torchtitan import CloudloadDataLoader, CloudloadMetrics

DATA, TOKENIZER, CACHE = sys.argv[1:]
SEQ_LEN, ROWS = 31, 4
BY_ROWS = {"seq_len": SEQ_LEN, "local_batch_size": ROWS, "snapshot_every_n_steps": 100}
BY_TOKENS = {"max_context_length": SEQ_LEN, "num_tokens_per_batch": ROWS * SEQ_LEN}


def build(sizes: dict[str, Any], *, infinite: bool = True, **options: Any) -> CloudloadDataLoader:
    """Create the adapter as torchtitan's trainers do."""
    config = CloudloadDataLoader.Config(
        data=DATA,
        options={"num_workers": 0, "local": CACHE, **options},
        infinite=infinite,
        repeat=infinite,
    )
    tokenizer = HuggingFaceTokenizer(tokenizer_path=TOKENIZER)
    loader: CloudloadDataLoader = config.build(
        dp_world_size=1, dp_rank=0, tokenizer=tokenizer, **sizes
    )
    return loader


def own_rows(**options: Any) -> CloudLoader:
    """Create a loader with the options that the adapter's loader should have."""
    return CloudLoader(
        DATA,
        tokenizer=TOKENIZER,
        seq_len=SEQ_LEN + 1,
        batch_size=ROWS,
        num_workers=0,
        local=CACHE,
        **options,
    )


def take(loader: CloudloadDataLoader, number: int) -> list[dict[str, torch.Tensor]]:
    return [{**inputs, "labels": labels} for inputs, labels in itertools.islice(loader, number)]


def are_equal(ours: list[dict[str, torch.Tensor]], others: list[dict[str, torch.Tensor]]) -> bool:
    return len(ours) == len(others) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, others, strict=True)
    )


def refusal(kind: type[Exception], call: Callable[[], Any]) -> str:
    """Call a function that must raise an error of this kind, and return the error's text."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("taken")


def check_rows_are_the_loaders_and_documents_are_apart() -> None:
    for batch, own in zip(take(build(BY_ROWS), 20), own_rows(fields=["segment_ids"]), strict=False):
        segments = own["segment_ids"]
        assert (
            batch["input"].shape
            == batch["positions"].shape
            == batch["labels"].shape
            == (ROWS, SEQ_LEN)
        )
        assert all(
            tensor.dtype == torch.int64 and tensor.is_contiguous() for tensor in batch.values()
        )
        assert torch.equal(batch["input"], own["input_ids"][:, :-1])
        is_new = segments[:, 1:] != segments[:, :-1]
        assert torch.equal(batch["labels"], own["input_ids"][:, 1:].masked_fill(is_new, -100))
        assert torch.equal(batch["positions"][:, 1:] == 0, is_new[:, :-1])
        assert (batch["positions"][:, 0] == 0).all()


def check_newer_trainers_get_the_same_in_one_sequence() -> None:
    by_rows, by_tokens = take(build(BY_ROWS), 20), take(build(BY_TOKENS), 20)
    assert are_equal(
        [{name: tensor.flatten() for name, tensor in batch.items()} for batch in by_rows], by_tokens
    )


def check_sizes_that_do_not_fit_are_refused() -> None:
    assert "5 are left over" in refusal(
        ValueError, lambda: build({**BY_TOKENS, "num_tokens_per_batch": ROWS * SEQ_LEN + 5})
    )


def check_options_may_let_documents_see_and_predict_one_another() -> None:
    for sizes in (BY_ROWS, BY_TOKENS):
        for batch, own in zip(
            take(build(sizes, fields=(), mask_edges=False), 5), own_rows(), strict=False
        ):
            assert torch.equal(
                batch["positions"].reshape(ROWS, -1), torch.arange(SEQ_LEN).expand(ROWS, -1)
            )
            assert torch.equal(batch["labels"].reshape(ROWS, -1), own["labels"][:, 1:])


def check_only_the_end_of_the_data_ends_training() -> None:
    every, whole = take(build(BY_ROWS, stop_every=3), 20), take(build(BY_ROWS), 20)
    assert are_equal(every, whole)
    epochs = take(build(BY_ROWS, epochs=1), 10_000)
    assert 20 < len(epochs) < 10_000
    assert are_equal(take(build(BY_ROWS, infinite=False), 10_000), epochs)
    own = [batch["labels"][:, 1:] for batch in own_rows(epochs=1, mask_edges=True)]
    assert all(
        torch.equal(batch["labels"], labels) for batch, labels in zip(epochs, own, strict=True)
    )
    assert (epochs[-1]["labels"][:, -1] == -100).any(), (
        "no last row is padded. The test needs data that does not fill the last rows"
    )


def check_a_state_is_text_and_continues_after_the_delivered_batch() -> None:
    for sizes in (BY_ROWS, BY_TOKENS):
        first = build(sizes)
        assert first.state_dict().keys() == {"cloudload"}
        batches = iter(first)
        for _ in range(7):
            next(batches)
        state = first.state_dict()
        assert isinstance(state["cloudload"], str)
        rest = [{**inputs, "labels": labels} for inputs, labels in itertools.islice(batches, 5)]
        resumed = build(sizes)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert are_equal(take(resumed, 5), rest)
        first.close()


def check_no_state_is_none_and_anothers_is_refused() -> None:
    loader = build(BY_ROWS)
    loader.load_state_dict({})
    assert are_equal(take(loader, 3), take(build(BY_ROWS), 3))
    others = {"dp_rank_0": b"", "world_size": 1}
    assert "exclude_from_loading" in refusal(
        StreamChangedError, lambda: loader.load_state_dict(others)
    )


def check_sizes_of_steps_are_torchtitans() -> None:
    for option in ("global_batch_size", "micro_batch_size"):
        options: dict[str, Any] = {option: 2}
        build_with = functools.partial(build, BY_ROWS, **options)
        assert f"options has {option}, but torchtitan" in refusal(ValueError, build_with)


def check_the_users_tokenizer_goes_before_torchtitans() -> None:
    loader = build(BY_ROWS, tokenizer=TOKENIZER, eos=None)
    others = own_rows(eos=None)
    assert all(
        torch.equal(batch["input"], own["input_ids"][:, :-1])
        for batch, own in zip(take(loader, 3), others, strict=False)
    )


def check_metrics_have_the_loaders_numbers() -> None:
    logged: list[dict[str, Any]] = []
    MetricsProcessor.log = lambda *_, extra_metrics: logged.append(extra_metrics)
    metrics, loader = object.__new__(CloudloadMetrics), build(BY_ROWS)
    metrics.log(1, 0.0, 0.0, 0.0, extra_metrics={"lr": 1.0})
    metrics.watch(loader)
    take(loader, 2)
    metrics.log(2, 0.0, 0.0, 0.0, extra_metrics={"lr": 1.0})
    assert logged[0] == {"lr": 1.0}
    assert logged[1]["lr"] == 1.0
    assert logged[1]["cloudload/rows"] == 2 * ROWS
    assert len(logged[1]) <= 1 + 10
    metrics.watch(loader, all_stats=True)
    metrics.log(2, 0.0, 0.0, 0.0)
    assert logged[2].keys() == loader.loader.stats().as_dict("cloudload/").keys()


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(name, "holds", flush=True)
