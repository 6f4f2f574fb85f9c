"""`CloudloadTrainer` keeps the documents of packed rows apart, or refuses to train."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload import CloudLoader, FromStart
from cloudload.integrations.transformers import check_packed_rows, find_mixing
from cloudload.rows.packing.tables import SPAN_ROW, SPAN_START, SPAN_STOP
from testkit.loaders import make_loader
from tests.frameworks.small import Model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]
PACKED: dict[str, Any] = {"seq_len": 256, "fields": ["position_ids"], "mask_edges": True}
SIZES: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 256,
}


def make_model(name: str = "Llama", **options: Any) -> Any:
    """A small model with random weights, of any architecture of transformers."""
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config)


def train(model: Any, loader: CloudLoader, folder: Path, **options: Any) -> list[float]:
    """Train for one step with a rate of 0, and return the losses: of the step, and of any
    evaluation."""
    from transformers import TrainingArguments

    from cloudload.integrations.transformers import CloudloadTrainer

    settings: dict[str, Any] = {"max_steps": 1, "logging_steps": 1, "learning_rate": 0.0}
    settings |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    settings |= {"max_steps": options.pop("max_steps", 1)}
    evaluated = options.pop("eval_dataset", None)
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=loader.batch_size, **settings, **options
    )
    trainer = CloudloadTrainer(model, args, loader=loader, eval_dataset=evaluated)
    trainer.train()
    if evaluated is not None:
        trainer.evaluate()
    logged = trainer.state.log_history
    return [each[name] for each in logged for name in ("loss", "eval_loss") if name in each]


def losses_alone(model: Any, loader: CloudLoader) -> Iterator[torch.Tensor]:
    """Yield the token losses of each document of the loader's next batch, as if it were alone."""
    batch = next(iter(loader))
    assert len(batch.spans) > len(batch["input_ids"])
    for row, ids in enumerate(batch["input_ids"]):
        own = batch.spans[batch.spans[:, SPAN_ROW] == row]
        lengths = (own[:, SPAN_STOP] - own[:, SPAN_START]).tolist()
        for document in ids[: sum(lengths)].split(lengths):
            logits = model(document[None]).logits[0, :-1]
            yield torch.nn.functional.cross_entropy(logits, document[1:], reduction="none")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("field", ["position_ids", "flash_attention"])
def test_a_document_in_a_packed_row_has_the_loss_that_it_has_alone(
    folder: str, tmp_path: Path, attention: str, batch_size: int, field: str
) -> None:
    model = make_model(attn_implementation=attention)
    options = {**PACKED, "batch_size": batch_size, "fields": [field]}
    with torch.no_grad():
        alone = torch.cat(list(losses_alone(model, make_loader(folder, **options)))).mean()
    [loss] = train(model, make_loader(folder, **options), tmp_path)
    assert loss == pytest.approx(float(alone), abs=1e-3)


def test_an_evaluation_keeps_documents_apart_too(folder: str, tmp_path: Path) -> None:
    model, options = make_model(), {**PACKED, "epochs": 1}
    with torch.no_grad():
        alone = torch.cat(list(losses_alone(model, make_loader(folder, **options)))).mean()
    loader = make_loader(folder, **{**options, "stop_every": 1})
    _, loss = train(model, make_loader(folder), tmp_path, eval_dataset=FromStart(loader))
    assert loss == pytest.approx(float(alone), abs=1e-3)


def test_attention_across_documents_is_the_default_without_position_ids(
    folder: str, tmp_path: Path
) -> None:
    model = make_model()
    [apart] = train(model, make_loader(folder, **PACKED), tmp_path)
    [across] = train(model, make_loader(folder, **{**PACKED, "fields": []}), tmp_path)
    assert abs(apart - across) > 0.01


@pytest.mark.parametrize("fields", [["segment_ids"], ["cu_seqlens"], ["segment_ids", "cu_seqlens"]])
def test_fields_that_the_model_ignores_are_refused(
    folder: str, tmp_path: Path, fields: list[str]
) -> None:
    loader = make_loader(folder, **{**PACKED, "fields": fields})
    ignored = " and ".join(fields)
    with pytest.raises(ValueError, match=f"LlamaForCausalLM ignores {ignored}, so .* Add 'flash"):
        train(make_model(), loader, tmp_path)


def test_flash_attention_on_several_rows_is_refused(folder: str, tmp_path: Path) -> None:
    model = make_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=r"flash_attention_2 reads position_ids only in .* has 4"):
        train(model, make_loader(folder, **PACKED), tmp_path)


def test_layers_that_mix_documents_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    model.config.layer_types = ["linear_attention", "full_attention"]
    batch = {"input_ids": torch.zeros(2, 8), "position_ids": torch.zeros(2, 8)}
    with caplog.at_level(logging.WARNING):
        check_packed_rows(model, batch)
    assert "layers that ignore position_ids and seq_idx (linear_attention)" in caplog.text


def test_a_model_of_mixing_layers_alone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2}
    model = make_model("Mamba2", hidden_size=16, **sizes)
    batch = {"input_ids": torch.zeros(2, 8), "position_ids": torch.zeros(2, 8)}
    if find_mixing(model).has_segments:  # its layers take any arguments, from transformers 5.24 on
        with pytest.raises(ValueError, match=r"layers that ignore position_ids \(linear_att"):
            check_packed_rows(model, batch)
        return
    with caplog.at_level(logging.WARNING):
        check_packed_rows(model, batch)
    assert "layers that ignore position_ids and seq_idx (Mamba2Mixer)" in caplog.text


def make_bamba() -> Any:
    """A small model with a layer of state spaces, which takes `seq_idx`."""
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
    return make_model("Bamba", attn_layer_indices=[1], **sizes)


def test_layers_of_state_spaces_need_the_segments_of_tokens(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ignore position_ids \(\w+\), .* Add 'flash_attention'"):
        train(make_bamba(), make_loader(folder, **PACKED), tmp_path)


def test_layers_of_state_spaces_get_the_batch_as_one_row(folder: str) -> None:
    model = make_bamba()
    batch = next(iter(make_loader(folder, **{**PACKED, "fields": ["flash_attention"]})))
    check_packed_rows(model, batch)
    given = find_mixing(model).arrange(batch)
    assert given["input_ids"].shape == given["seq_idx"].shape == (1, batch["input_ids"].numel())
    assert given["use_cache"] is False
    # its kernel needs a GPU; without it, transformers refuses the segments rather than ignore them
    with pytest.raises((NotImplementedError, ValueError), match=r"seq_idx|packed sequences"):
        model(**given)


class Mixer(torch.nn.Module):
    """A layer of convolutions that a model's config does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv1d(1, 1, 1)


class SegmentedMixer(Mixer):
    """The same, with documents apart."""

    def forward(self, hidden: torch.Tensor, seq_idx: torch.Tensor) -> torch.Tensor:
        return hidden


class CarelessMixer(Mixer):
    """A layer that takes any arguments."""

    def forward(self, hidden: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return hidden


class Careless(torch.nn.Module):
    """A model that takes `seq_idx`, and passes it on only if `is_careful`."""

    def __init__(self, is_careful: bool) -> None:
        super().__init__()
        self.mixer, self.is_careful = CarelessMixer(), is_careful
        self.config = type("Config", (), {})()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        more = {"seq_idx": kwargs.get("seq_idx")} if self.is_careful else {}
        mixed: torch.Tensor = self.mixer(input_ids, **more)
        return mixed


@pytest.mark.parametrize("is_careful", [False, True])
def test_layers_that_do_not_get_the_segments_are_named_in_the_first_forward_pass(
    folder: str, is_careful: bool
) -> None:
    model = Careless(is_careful)
    batch = next(iter(make_loader(folder, **{**PACKED, "fields": ["flash_attention"]})))
    given = check_packed_rows(model, batch).arrange(batch)
    if is_careful:
        model(**given)
    else:
        with pytest.raises(ValueError, match=r"Careless does not pass seq_idx .*CarelessMixer"):
            model(**given)
    model(**given)  # only the first pass is looked at


@pytest.mark.parametrize(
    ("mixers", "num_rows"),
    [([], 4), ([SegmentedMixer()], 1), ([Mixer()], 4), ([SegmentedMixer(), Mixer()], 4)],
)
def test_rows_are_joined_only_for_layers_that_all_take_segments(
    folder: str, caplog: pytest.LogCaptureFixture, mixers: list[Mixer], num_rows: int
) -> None:
    model = make_model()
    model.mixers = torch.nn.ModuleList(mixers)
    batch = next(iter(make_loader(folder, **{**PACKED, "fields": ["flash_attention"]})))
    with caplog.at_level(logging.WARNING):
        check_packed_rows(model, batch)
    assert find_mixing(model).arrange(batch)["input_ids"].shape[0] == num_rows
    # a warning says that the rows are not for such layers
    assert ("ignore position_ids and seq_idx (" in caplog.text) == (Mixer in map(type, mixers))


def test_a_model_is_inspected_once_and_not_in_every_step(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudload.integrations import transformers

    inspected: list[Any] = []

    def find(model: Any) -> Any:
        inspected.append(model)
        return find_mixing(model)

    monkeypatch.setattr(transformers, "find_mixing", find)
    model = make_model()
    train(model, make_loader(folder, **PACKED), tmp_path, max_steps=3)
    assert inspected == [model]


def test_a_model_of_ones_own_receives_only_the_fields(folder: str, tmp_path: Path) -> None:
    class Own(Model):
        def forward(  # type: ignore[override]
            self, input_ids: torch.Tensor, labels: torch.Tensor, segment_ids: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            return super().forward(input_ids, labels)

    loader = make_loader(folder, **{**PACKED, "fields": ["segment_ids"]})
    assert len(train(Own(), loader, tmp_path)) == 1
