"""Read one epoch of a dataset with the installed wheel of cloudload, for scripts/test-wheel.

Run it with `python smoke.py DATASET TOKENIZER`.
"""

import sys
import tempfile
from pathlib import Path

import torch

import cloudload
from cloudload import CloudLoader

SEQ_LEN = 64


def main(dataset: str, tokenizer: str) -> None:
    assert "site-packages" in cloudload.__file__, (
        f"cloudload was imported from {cloudload.__file__}, not from the installed wheel"
    )
    assert Path(cloudload.__file__).with_name("py.typed").exists(), (
        "the wheel does not contain py.typed"
    )
    with tempfile.TemporaryDirectory() as cache:
        loader = CloudLoader(
            dataset,
            local=cache,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            batch_size=2,
            num_workers=1,
            epochs=1,
        )
        batches = 0
        for batch in loader:
            for name in ("input_ids", "labels"):
                assert batch[name].shape == (2, SEQ_LEN), batch[name].shape
                assert batch[name].dtype == torch.int64, batch[name].dtype
            batches += 1
    assert batches > 10, batches
    assert loader.stats().tokenizer_backend == "fastokens", loader.stats().tokenizer_backend_reason
    assert "streaming" not in sys.modules, (
        "cloudload imported MosaicML Streaming, but must work without it"
    )
    print(
        f"Read {batches} batches with cloudload {cloudload.__version__} from "
        f"{Path(cloudload.__file__).parent}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
