"""Pack the tail of a run, from the sizes of the documents left in its lanes."""

from __future__ import annotations

from collections.abc import Sequence

from cloudload.errors import DatasetError, StreamChangedError
from cloudload.rows import Stages, Tail, pack_tail, tables
from cloudload.run.position import LaneArrays
from cloudload.run.recipe import Recipe
from cloudload.system import Ints


def pack_component_tail(
    recipe: Recipe, *, stages: Stages, ended: LaneArrays, sizes: Sequence[Ints]
) -> Tail:
    """Pack the tail of one component. It may have no rows, which are indexed from 0.

    `ended` has the component's lanes at the row where they ended. `stages` are the tail's stages so
    far; empty if the run did not resume in its tail. `sizes` are as for `tail.pack_tail`. Raises
    `StreamChangedError` if the lanes do not match the documents.
    """
    residues = ended.residues
    try:
        return pack_tail(
            recipe.packing,
            start_row=0,
            stages=stages,
            cursors=ended.cursors[0, :, : tables.CURSOR_SIZE],
            residues=[b""] * recipe.num_lanes if residues is None else residues[0].tolist(),
            sizes=sizes,
        )
    except ValueError as error:
        raise StreamChangedError(
            f"{error}. The state is damaged, or was saved with a different corpus, tokenizer or "
            "transform, or the transform is not deterministic. Load an earlier state, restore the "
            "data and the config, or fix the transform"
        ) from error


def no_tokens(labels: Sequence[str], consequence: str = "") -> DatasetError:
    """The error that a run has no rows, because these streams have no tokens."""
    return DatasetError(
        f"no document of {', '.join(labels)} has any tokens, because all documents are empty, "
        f"filtered out, or left out by on_error='skip'{consequence}. Set an eos, or use a "
        "different transform, min_tokens, or data"
    )
