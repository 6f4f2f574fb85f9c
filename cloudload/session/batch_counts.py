"""The number of global batches in a pass, in a run, and in epochs of the data.

rows, from token lengths or from documents that are one row each ─► batches
"""

from __future__ import annotations

from cloudload.session.current_run import CurrentRun
from cloudload.session.membership import Membership

NO_DATASET = (
    "A CloudLoader is not a dataset. Iterate over it directly, and do not wrap it in a DataLoader. "
    "With the Hugging Face Trainer, use cloudload.integrations.transformers.CloudloadTrainer"
)


def is_endless(run: CurrentRun, member: Membership) -> bool:
    """Whether a pass never ends."""
    if member.delivery.stop_every is not None:
        return False
    if run.recipe.has_stream_ends:
        return run.count_rows() is None
    return run.recipe.config.epochs is None


def count_pass(run: CurrentRun, member: Membership) -> int:
    """Count the batches in a full pass, or in the whole run without `stop_every`.

    Raises `TypeError` if the number is unknown.
    """
    delivery = member.delivery
    if isinstance(delivery.stop_every, int):
        return delivery.stop_every
    rows = None if delivery.stop_every is not None else run.count_rows()
    if rows is None:
        raise TypeError(
            f"{NO_DATASET}. Its number of batches is known only in three cases. The first is "
            "stop_every=N (for an epoch, compute N with count_batches). The second is epochs=N "
            "with token lengths, which cloudload count writes. The third is one row per document: "
            "packing='one_per_row', overflow='cut', epochs=N, a bos or eos, and no transform, "
            "stop_every, or min_tokens above 1"
        )
    is_dropped = delivery.tail == "drop"
    return rows // member.global_batch if is_dropped else -(-rows // member.global_batch)


def count_epochs(run: CurrentRun, member: Membership, epochs: int) -> int:
    """Count the batches in `epochs` epochs of the data.

    Raises `ValueError` if the number is unknown.
    """
    rows = run.count_rows_of_epochs(epochs)
    if rows is None:
        raise ValueError(
            "the number of batches in an epoch is unknown, because there are no token lengths. Run "
            "cloudload count, or set a number of batches"
        )
    return -(-rows // member.global_batch)
