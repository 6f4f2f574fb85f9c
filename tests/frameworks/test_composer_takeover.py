"""From any checkpoint of a Composer run on a StreamingDataset, a loader continues the run. Runs
only if Composer and Streaming are installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cloudload import CloudLoader
from cloudload.errors import StreamChangedError
from testkit.corpora import EOS_ID, byte_tokenizer, write_mds
from testkit.loaders import make_loader, rows_of

pytest.importorskip("composer")
pytest.importorskip("streaming")

from composer import Trainer
from composer.callbacks import CheckpointSaver
from streaming import StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from tests.frameworks.test_composer import ComposerModel

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES, BATCH_SIZE, EPOCHS, SEED = 41, 4, 2, 23
ONE_PER_ROW: dict[str, Any] = {
    **{"packing": "one_per_row", "seq_len": 8, "num_lanes": 8},
    **{"batch_size": BATCH_SIZE, "seed": SEED, "epochs": EPOCHS},
}
READ_IN_EPOCH = SAMPLES + 1  # Streaming repeats one to even out two canonical nodes


def collate(samples: list[dict[str, str]]) -> dict[str, Tensor]:
    numbers = torch.tensor([[int(sample["text"])] for sample in samples])
    return {"input_ids": numbers, "labels": numbers}


def count_samples(trained: Sequence[int]) -> Counter[int]:
    """Count the epochs that have read each sample."""
    epochs = [trained[:READ_IN_EPOCH], trained[READ_IN_EPOCH:]]
    return Counter(number for epoch in epochs for number in {*epoch})


def count_documents(loader: CloudLoader) -> Counter[int]:
    """Count the remaining documents by sample. The text of a document is its sample's index."""
    rows = rows_of(loader)
    texts = [byte_tokenizer().decode(row[: row.index(EOS_ID)]) for row in rows if EOS_ID in row]
    return Counter(int(text.replace(" ", "")) for text in texts)


@pytest.mark.parametrize("dataloader", [DataLoader, StreamingDataLoader])
def test_every_checkpoint_of_composer_continues_with_the_samples_that_are_left(
    dataloader: type, tmp_path: Path
) -> None:
    data = write_mds(tmp_path / "data", map(str, range(SAMPLES)), shard_samples=[9, 20, 12])
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        local=data, shuffle=True, shuffle_seed=SEED, num_canonical_nodes=2, batch_size=BATCH_SIZE
    )
    model, saved = ComposerModel(), tmp_path / "saved"
    Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=dataloader(dataset, batch_size=BATCH_SIZE, collate_fn=collate),
        max_duration=f"{EPOCHS}ep",
        callbacks=[CheckpointSaver(saved, save_interval=interval) for interval in ("1ba", "1ep")],
        device="cpu",
        progress_bar=False,
    ).fit()
    trained = [number for [number] in model.trained]
    whole = Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
    assert count_samples(trained) == whole

    names = {path.name for path in saved.glob("ep*.pt")}
    at_the_end = {"ep1-ba22-rank0.pt", "ep2-ba22-rank0.pt"}
    # two checkpoints after the first epoch: one before Composer counts the epoch, and one after
    assert names > {"ep0-ba11-rank0.pt", "ep1-ba11-rank0.pt"} | at_the_end
    for name in sorted(names):
        checkpoint = torch.load(saved / name, weights_only=False)
        timestamp = checkpoint["state"]["timestamp"]["Timestamp"]
        with make_loader(data, local=tmp_path / "cache", **ONE_PER_ROW) as loader:
            if name in at_the_end:
                with pytest.raises(StreamChangedError, match="nothing is left to read"):
                    loader.load_streaming_state(checkpoint)
                continue
            loader.load_streaming_state(checkpoint)
            left = count_documents(loader)
        assert left + count_samples(trained[: timestamp["sample"]]) == whole, name
