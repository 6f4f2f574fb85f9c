"""Losses by document sum to the same records on any world and after any restart."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from cloudload import Batch, CloudLoader, Stream
from cloudload.errors import DatasetError
from cloudload.losses import Losses, LossLog, blame, read_losses, token_losses
from cloudload.tools.losses.log_file import ROW, STEP, TOKENS, Records
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.interrupts import interrupt
from testkit.loaders import make_loader, open_ranks

GLOBAL_BATCH = 12


@pytest.fixture(scope="module")
def streams(scratch: Path) -> list[Stream]:
    web = write_counted(scratch / "losses/web", random_documents(1, 60), shard_bytes=1_500)
    books = write_counted(scratch / "losses/books", random_documents(2, 40), shard_bytes=1_500)
    return [Stream(web, proportion=0.7, name="web"), Stream(books, proportion=0.3, name="books")]


def assert_same(found: Records, expected: Records) -> None:
    assert (found.table == expected.table).all()
    assert found.sums.tobytes() == expected.sums.tobytes()


def losses_of(batch: Batch) -> torch.Tensor:
    """From the token IDs alone, compute a loss for each token except the first in its row.

    The losses have many significant digits, so a different order of summation would show.
    """
    ids: torch.Tensor = batch["input_ids"].double()
    return (1 + (ids[:, 1:] * 1.7 + ids[:, :-1]).sin()).float()


def train(
    streams: Any, folder: Path, state: Mapping[str, Any] | None, ranks: int, stops: list[int]
) -> dict[int, Any]:
    """Train on all ranks up to the last step in `stops`. Returns the state after each stop."""
    states = {}
    options: dict[str, Any] = {"seq_len": 48, "packing": "best_fit", "mask_edges": True}
    options |= {"batch_size": GLOBAL_BATCH // ranks, "local": folder / "cache"}
    loaders = open_ranks(streams, ranks, **options)
    logs = [LossLog(loader, folder / "log", flush_every=2) for loader in loaders]
    step = 0
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
            step = state["batches"]
    for start, stop in pairwise([step, *stops]):
        for loader, log in zip(loaders, logs, strict=True):
            for batch in loader.take(stop - start):
                log.add(batch, losses_of(batch))
            log.flush()
        states[stop] = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    return states


def test_any_world_and_any_restart_gives_the_same_records(
    streams: list[Stream], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(streams, whole, None, 1, [14])
    first = train(streams, parts, None, 3, [4, 7])  # steps 5 to 7 are trained again
    second = train(streams, parts, first[4], 2, [9])
    train(streams, parts, second[9], 4, [14])
    expected, found = read_losses(whole / "log"), read_losses(parts / "log")
    assert len(list((parts / "log").iterdir())) == 3 + 2 + 4
    assert found.steps == range(1, 15)
    assert found.streams == ("web", "books")
    assert_same(found.records, expected.records)
    assert found.means() == expected.means()
    assert found.state is not None


def test_micro_batches_and_filler_rows_give_the_same_records(
    streams: list[Stream], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(streams, whole, None, 1, [3, 6])
    sizes = {"batch_size": None, "global_batch_size": GLOBAL_BATCH, "micro_batch_size": 2}
    for loader in open_ranks(streams, 5, seq_len=48, packing="best_fit", mask_edges=True, **sizes):
        with LossLog(loader, parts / "log") as log:
            for batch in loader.take(6 * loader.micro_batches):
                log.add(batch, losses_of(batch))
    expected, found = read_losses(whole / "log"), read_losses(parts / "log")
    assert_same(found.records, expected.records)
    assert found.means() == expected.means()


def test_rows_that_another_rank_trains_again_have_its_losses(tmp_path: Path) -> None:
    """Rank 0 trains rows 8 to 19 again, alone. Its losses must win over those of rank 1, whose log
    was opened and closed after that of rank 0."""
    data = write_counted(tmp_path / "mds", random_documents(3, 40))
    loaders = open_ranks(data, 2)
    logs = [LossLog(loader, tmp_path / "log") for loader in loaders]
    for loader, log in zip(loaders, logs, strict=True):
        for batch in loader.take(3):
            log.add(batch, losses_of(batch) * 100)
    logs[1].flush()
    loaders[0].set_world(0, 1, rows=8)
    with LossLog(loaders[0], tmp_path / "expected") as expected:
        for batch in loaders[0].take(3):
            logs[0].add(batch, losses_of(batch))
            expected.add(batch, losses_of(batch))
    for loader, log in zip(loaders, logs, strict=True):
        log.close()
        loader.close()
    found, again = read_losses(tmp_path / "log"), read_losses(tmp_path / "expected")
    rows = found.records.table[:, ROW]
    assert set(rows.tolist()) == set(range(24))
    assert_same(found.records.take((rows >= 8) & (rows < 20)), again.records)


def test_records_are_the_sums_of_their_tokens(streams: list[Stream], tmp_path: Path) -> None:
    with make_loader(streams, local=tmp_path, seq_len=48, mask_edges=True) as loader:
        log = LossLog(loader, tmp_path / "log")
        expected: list[tuple[int, ...]] = []
        sums: list[float] = []
        for step, batch in enumerate(loader.take(5), 1):
            labels = batch["labels"].clone()
            labels[:, 7] = -100
            losses = losses_of(batch)
            losses[:, 6] = float("nan")  # ignored, because its label is -100
            log.add(batch, losses, labels=labels)
            place: dict[int, int] = {}
            for row, *document, start, stop in batch.spans.tolist():
                first = place.get(row, 0)
                place[row] = first + stop - start
                kept = [
                    losses[row, column - 1].double().item()
                    for column in range(max(1, first), place[row])
                    if labels[row, column] != -100
                ]
                if kept:
                    key = step, int(batch.rows[row]), *document, start, stop
                    expected.append((*key, len(kept)))
                    sums.append(sum(kept))
        means = log.take_means()
        assert log.take_means()["web"].tokens == 0
        log.close()
    found = read_losses(tmp_path / "log")
    assert found.records.table.tolist() == [list(each) for each in expected]
    assert found.records.sums == pytest.approx(sums, rel=1e-14)
    for name, mean in found.means().items():
        assert mean.tokens == means[name].tokens
        assert mean.mean == pytest.approx(means[name].mean, rel=1e-14)


def test_fields_name_the_document_of_each_token(streams: list[Stream], tmp_path: Path) -> None:
    fields = ["stream_ids", "document_ids"]
    with make_loader(streams, local=tmp_path, fields=fields, packing="one_per_row") as loader:
        assert loader.stream_names == ("web", "books")
        for batch in loader.take(4):
            expected = torch.full((2, *batch["input_ids"].shape), -1)
            for row, stream, _, sample, start, stop in batch.spans.tolist():
                expected[:, row, : stop - start] = torch.tensor([[stream], [sample]])
            assert torch.equal(torch.stack([batch[name] for name in fields]), expected)


def test_microbatches_that_are_tried_again_count_once(
    streams: list[Stream], tmp_path: Path
) -> None:
    with make_loader(streams, local=tmp_path, batch_size=6) as loader:
        whole, cut = LossLog(loader, tmp_path / "whole"), LossLog(loader, tmp_path / "cut")
        for batch in loader.take(3):
            losses = losses_of(batch)
            whole.add(batch, losses)
            cut.add(batch, losses[:4] * float("nan"))  # then the step runs out of memory
            for row in range(0, 6, 2):
                labels = batch["labels"][row : row + 2]
                padded = torch.nn.functional.pad(losses[row : row + 2], (0, 1), value=7.0)
                cut.add(batch, padded, labels=labels, at_row=row)
        means = whole.take_means()
        assert means["web"].tokens > 0
        for name, mean in cut.take_means().items():
            assert mean.tokens == means[name].tokens
            assert mean.sum == pytest.approx(means[name].sum, rel=1e-14)
        whole.close()
        cut.close()
    expected, found = read_losses(tmp_path / "whole"), read_losses(tmp_path / "cut")
    assert_same(found.records, expected.records)


def test_losses_of_logits_are_those_of_the_model(streams: list[Stream], tmp_path: Path) -> None:
    with make_loader(streams, local=tmp_path, packing="one_per_row") as loader:
        batch = next(iter(loader))
        logits = torch.randn(*batch["input_ids"].shape, 300, generator=torch.manual_seed(1))
        flat = logits[:, :-1].flatten(0, 1)
        mean = torch.nn.functional.cross_entropy(flat, batch["labels"][:, 1:].flatten())
        log = LossLog(loader)
        log.add(batch, token_losses(logits, batch["labels"]))
        found = log.take_means().values()
    total = sum(each.sum for each in found) / sum(each.tokens for each in found)
    assert total == pytest.approx(mean.item(), rel=1e-6)


def test_a_log_of_a_killed_process_is_read_up_to_its_last_whole_part(
    streams: list[Stream], tmp_path: Path
) -> None:
    with make_loader(streams, local=tmp_path) as loader:
        with LossLog(loader, tmp_path / "log", flush_every=1) as log:
            for batch in loader.take(3):
                log.add(batch, losses_of(batch))
        [path] = (tmp_path / "log").iterdir()
        content = path.read_bytes()
        path.write_bytes(content[:-9])
        assert read_losses(path).steps == range(1, 3)
        path.write_bytes(content[:30])
        with pytest.raises(DatasetError, match=r"is not a loss log, or it is damaged"):
            read_losses(tmp_path / "log")
        path.unlink()
        with pytest.raises(DatasetError, match=r"there is no loss log in .*after its first flush"):
            read_losses(tmp_path / "log")


def test_an_interrupted_log_loses_and_repeats_no_losses(
    streams: list[Stream], tmp_path: Path
) -> None:
    choices, num_interrupts = random.Random(0), 0
    with make_loader(streams, local=tmp_path) as loader:
        batches = list(loader.take(4))
        with LossLog(loader, tmp_path / "whole", flush_every=9) as whole:
            for batch in batches:
                whole.add(batch, losses_of(batch))
        expected, means = read_losses(tmp_path / "whole"), whole.take_means()
        for number in range(12):
            folder = tmp_path / f"{number}"
            log = LossLog(loader, folder, flush_every=2)
            calls: list[Callable[[], object]] = [
                *(partial(log.add, batch, losses_of(batch)) for batch in batches),
                log.flush,
                log.close,
            ]
            for call in calls:
                if interrupt(call, choices.randrange(600)):
                    num_interrupts += 1
                    call()
            if interrupt(log.take_means, choices.randrange(60)):
                assert log.take_means() == means
            assert_same(read_losses(folder).records, expected.records)
    assert num_interrupts > 12


def test_a_log_that_a_full_disk_cut_has_all_losses_after_the_next_flush(
    streams: list[Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_in_part(file: BinaryIO, *_: object) -> None:
        file.write(b"123")
        raise OSError(errno.ENOSPC, "no space left on device")

    with make_loader(streams, local=tmp_path) as loader:
        log = LossLog(loader, tmp_path / "log")
        for batch in loader.take(3):
            log.add(batch, losses_of(batch))
            with monkeypatch.context() as patch:
                patch.setattr("cloudload.tools.losses.log_file.write_records", write_in_part)
                with pytest.raises(OSError, match="no space left"):
                    log.flush()
        log.close()
    assert read_losses(tmp_path / "log").steps == range(1, 4)


def test_a_log_is_read_without_torch() -> None:
    code = "import sys, cloudload.losses; print('torch' in sys.modules); cloudload.losses.LossLog"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_wrong_arguments_are_refused(streams: list[Stream], tmp_path: Path) -> None:
    def log_one(loader: CloudLoader) -> None:
        with LossLog(loader, tmp_path / "log") as log:
            batch = next(iter(loader))
            log.add(batch, losses_of(batch))

    with make_loader(streams, local=tmp_path) as loader:
        log_one(loader)
        log, batch = LossLog(loader), next(iter(loader))
        for losses in (torch.zeros(4, 3), torch.zeros(4 * 15), torch.tensor(3.0)):
            with pytest.raises(ValueError, match=r"\[rows, 15\] or \[rows, 16\], as from cross"):
                log.add(batch, losses)
        with pytest.raises(ValueError, match=r"Pass at_row and the labels for the same rows"):
            log.add(batch, torch.zeros(2, 15), at_row=3)
        with pytest.raises(ValueError, match=r"this batch is a copy of a batch's tensors"):
            log.add(Batch(batch), losses_of(batch))
        with pytest.raises(ValueError, match=r"has 4 rows, but its tensors have 1. Pass the batch"):
            log.add(batch.flatten(), torch.zeros(1, 63))
    with pytest.raises(ValueError, match=r"flush_every is 0"):
        LossLog(loader, flush_every=0)
    with make_loader(Stream(streams[0].url, name="other"), local=tmp_path) as other:
        log_one(other)
    with pytest.raises(DatasetError, match=r"Pass the logs of a single run"):
        read_losses(tmp_path / "log")


# ---------------------------------------------------------------- outliers


def make_losses(documents: int, seed: int = 0) -> tuple[Losses, np.random.Generator]:
    """Make one record per document, from two streams and with 20 documents per step. The mean loss
    falls over the steps. Also returns the random generator."""
    random = np.random.default_rng(seed)
    numbers = np.arange(documents)
    tokens = random.integers(4, 400, documents)
    none, is_code = np.zeros_like(numbers), (numbers % 3 == 0).astype(np.int64)
    columns = [1 + numbers // 20, numbers, is_code, none, numbers, none, tokens, tokens]
    table = np.column_stack(columns)
    means = 3 + 6 * np.exp(-table[:, STEP] / 30) + random.normal(size=documents) / tokens**0.5
    means += 0.3 * random.normal(size=documents)
    return Losses(("web", "code"), Records(table, means * tokens), None), random


def test_only_planted_outliers_are_found() -> None:
    losses, random = make_losses(10_000)
    assert not blame(losses).documents
    planted = random.choice(np.flatnonzero(losses.records.table[:, TOKENS] >= 30), 5, replace=False)
    losses.records.sums[planted[:4]] += 4.0 * losses.records.table[planted[:4], TOKENS]
    losses.records.sums[planted[4]] = np.nan
    found = blame(losses)
    assert {each.sample for each in found.documents} == set(planted.tolist())
    assert found.documents[0].sample == planted[4]
    assert (found.num_documents, found.steps) == (10_000, range(1, 501))
    for each in found.documents[1:]:
        assert each.loss - each.expected == pytest.approx(4.0, abs=1.5)
    step = found.documents[-1].step
    assert len(blame(losses, range(step, step + 1)).documents) == 1
    two = [each.sample for each in blame(losses, top=2).documents]
    assert two == [each.sample for each in found.documents[:2]]
    assert not blame(losses, min_tokens=500).documents
    none = Losses(losses.streams, losses.records.take(slice(9)), None)
    none.records.table[:, TOKENS] = 0
    assert np.isnan(blame(none).loss)
    with pytest.raises(ValueError, match=r"no steps 600 to 600\. Use steps from 1 to 500"):
        blame(losses, range(600, 601))


def test_a_source_is_compared_with_its_own_past() -> None:
    losses, _ = make_losses(10_000)
    table, sums = losses.records
    own = (table[:, STEP] >= 400) & (table[:, 2] == 1)
    sums[own] += 2.0 * table[own, TOKENS]
    web, code = blame(losses, range(400, 410)).sources
    assert (web.stream, code.stream) == ("web", "code")
    assert web.score is not None
    assert code.score is not None
    assert abs(web.score) < 6 < code.score
    assert not blame(losses, range(400, 410)).documents
    assert blame(losses, range(1, 100)).sources[0].before is None
