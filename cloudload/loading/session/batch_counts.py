"""The number of global batches in a pass, in a run, and in epochs of the data.

rows, from token lengths or from documents that are one row each ─► batches
"""

from __future__ import annotations

from cloudload.config.delivery import DeliveryConfig
from cloudload.data.storage.redaction import redact
from cloudload.loading.session.current_run import CurrentRun
from cloudload.loading.session.membership import Membership

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
            f"the number of batches is unknown, because {_explain_unknown(run, delivery)}. Or set "
            f"stop_every=N. {NO_DATASET}"
        )
    is_dropped = delivery.tail == "drop"
    return rows // member.global_batch if is_dropped else -(-rows // member.global_batch)


def _explain_unknown(run: CurrentRun, delivery: DeliveryConfig) -> str:
    """Say what is missing for the number of batches, and how to get it."""
    urls = [redact(dataset.url) for dataset in run.recipe.corpus.datasets]
    count = f"run: cloudload count {urls[0]}" + (", and so on" if len(urls) > 1 else "")
    if delivery.stop_every is not None:
        return f"an epoch has an unknown number of batches without token lengths. To count, {count}"
    if not run.recipe.has_tails:
        return f"the run has no end. Add epochs=1, and {count}"
    return f"there are no token lengths. To count, {count}"


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
