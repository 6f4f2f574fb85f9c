"""Keep the documents of packed rows apart in Hugging Face models.

A loader whose rows must be kept apart has `position_ids` in its `fields`. They restart at 0 in each
document. Models find documents by them only without a cache and without an attention mask. A model
that ignores them neither fails nor warns.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from typing import Any

logger = logging.getLogger("cloudload.integrations")

_POSITIONS = "position_ids"
_OTHERS = ("segment_ids", "cu_seqlens")


def without_cache(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a forward pass, with `use_cache=False` if the model needs it."""
    needs = _POSITIONS in batch and hasattr(getattr(model, "config", None), "use_cache")
    return {**batch, "use_cache": False} if needs and _takes(model, "use_cache") else {**batch}


def check_packed_rows(model: Any, batch: Mapping[str, Any]) -> None:
    """Check that a Hugging Face model separates the documents of a batch whose fields ask for it.

    Raises `ValueError` if the model would ignore the fields. Warns if some of its layers would.
    """
    config = getattr(model, "config", None)
    if config is None:
        return  # not a Hugging Face model, so its author decides which fields it reads
    if _POSITIONS in batch:
        _check_attention(model, config, len(batch["input_ids"]))
        return
    ignored = [name for name in _OTHERS if name in batch and not _names(model, name)]
    if ignored:
        raise ValueError(
            f"{type(model).__name__} ignores {' and '.join(ignored)}, so tokens would attend "
            "across documents. Add 'position_ids' to fields, or remove "
            f"{' and '.join(map(repr, ignored))} from fields"
        )


def _check_attention(model: Any, config: Any, num_rows: int) -> None:
    attention = str(getattr(config, "_attn_implementation", None))
    if "flash" in attention and num_rows > 1:
        raise ValueError(
            f"{attention} reads position_ids only in batches of one row, but the batch has "
            f"{num_rows}, so tokens would attend across documents. Load the model with "
            "attn_implementation='sdpa', or use batch_size=1 and accumulate gradients"
        )
    if mixing := sorted(set(_list_mixing_layers(config))):
        logger.warning(
            "%s has layers that ignore position_ids (%s), so the documents of a row affect each "
            "other. To separate them, use packing='one_per_row'",
            type(model).__name__,
            ", ".join(mixing),
        )


def _takes(model: Any, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters.values()
    return _names(model, name) or any(each.kind == each.VAR_KEYWORD for each in parameters)


def _names(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _list_mixing_layers(config: Any) -> Iterator[str]:
    """Yield the kinds of a model's layers that are not attention, such as `linear_attention`."""
    for name in ("layer_types", "layers_block_type"):
        for kind in getattr(config, name, None) or ():
            if "attention" not in kind or "linear" in kind:
                yield kind
