"""The values that all ranks must agree on before they exchange messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cloudload.config.choices import AUTO, EPOCH, OFF
from cloudload.config.delivery import DeliveryConfig
from cloudload.delivery.world import World
from cloudload.errors import RanksDisagreeError
from cloudload.lengths.files import CorpusLengths
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe

_RANKS_PER_NODE = (
    "ranks per node, from LOCAL_WORLD_SIZE (set it to 1 if nodes have different numbers of ranks)"
)
_LENGTHS = "lengths"
_NOT_FOUND = "not found"


def list_facts(
    recipe: Recipe,
    delivery: DeliveryConfig,
    world: World,
    position: Position,
    lengths: CorpusLengths | None,
) -> dict[str, Any]:
    """Return the values that must be equal on all ranks, by the names used in error messages."""
    residues = b"" if position.residues is None else b"".join(position.residues.ravel().tolist())
    return {
        **recipe.fields,
        "seq_len": recipe.config.seq_len,
        "mixture": recipe.mixture.to_json(),
        "batch_size": delivery.batch_size,
        "tail": delivery.tail,
        "exchange_every": delivery.exchange_every,
        "stop_every": delivery.stop_every,
        "world_size": world.size,
        _RANKS_PER_NODE: world.ranks_per_node,
        "rows": position.rows,
        "table_rows": position.table_rows,
        _LENGTHS: lengths.digest if lengths else _describe_missing(delivery),
        "cursors": hashlib.sha256(position.cursors.tobytes() + residues).hexdigest()[:16],
    }


def _describe_missing(delivery: DeliveryConfig) -> str:
    return _NOT_FOUND if delivery.lengths == AUTO else OFF


def differ_in_found_lengths(differing: Mapping[str, Sequence[Any]]) -> bool:
    """Whether ranks differ only because some looked for token lengths before they were written.

    `differing` maps the name of each differing value to the values of all ranks.
    """
    found = differing.get(_LENGTHS, ())
    return len(differing) == 1 and _NOT_FOUND in found and OFF not in found


def advise_on_difference(names: Sequence[str]) -> str:
    """Return the next step for an error message. `names` are the values that differ."""
    if "data" in names:
        return (
            "If data was appended or rewritten while the job was starting, restart the job. "
            "Otherwise, use the same config and load the same state on every rank"
        )
    return "Use the same config and load the same state on every rank"


def check_can_end(recipe: Recipe, delivery: DeliveryConfig, world: World) -> None:
    """Raise `RanksDisagreeError` if ranks without communication must end on the same step.

    This is the case with `epochs` or stop_every="epoch". Do not call this if all ranks can compute
    that step from token lengths.
    """
    epochs = recipe.config.epochs
    if epochs is None and delivery.stop_every != EPOCH:
        return
    end = f"epochs={epochs}" if epochs else "stop_every='epoch'"
    raise RanksDisagreeError(
        f"with {end}, the {world.size} ranks must communicate to end on the same step. Initialize "
        "torch.distributed before iterating, run cloudload count to count token lengths, or omit "
        f"{end.partition('=')[0]} and use take(n)"
    )
