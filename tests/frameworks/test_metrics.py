"""`Monitor` sends a loader's statistics to TensorBoard, W&B, Prometheus, and a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.integrations.metrics import (
    Monitor,
    Sink,
    to_prometheus,
    to_tensorboard,
    to_terminal,
    to_wandb,
)
from testkit.loaders import make_loader


def train(folder: str, cache: Path, *sinks: Sink) -> CloudLoader:
    """Read six batches with a monitor that passes every second step to the sinks."""
    data = [
        Stream(folder, proportion=0.75, name='web "2024"'),
        Stream(folder, proportion=0.25, name="books"),
    ]
    with make_loader(data, local=cache) as loader:
        monitor = Monitor(loader, *sinks, every=2)
        for step, _ in enumerate(loader.take(6), 1):
            monitor.step(step, loss=1 / step)
    return loader


def test_sinks_get_the_statistics_and_the_share_of_waiting(folder: str, tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    loader = train(folder, tmp_path, lambda values, step: seen.append((step, dict(values))))
    assert [step for step, _ in seen] == [2, 4, 6]
    for step, values in seen:
        assert values["loss"] == 1 / step
        assert values["cloudload/rows"] == 4 * step
        assert 0 < values["cloudload/wait_share"] <= 1
        assert values["cloudload/tokens_per_s"] > 0
    assert seen[-1][1].items() >= loader.stats().as_dict("cloudload/").items() - {
        (f"cloudload/loading/delivery/{name}", value)
        for name, value in vars(loader.stats().delivery).items()
    }


def test_prometheus_reads_the_file(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics/cloudload.prom"
    loader = train(folder, tmp_path, to_prometheus(path, {"run": "a\\b"}))
    assert list(path.parent.iterdir()) == [path]
    text = path.read_text()
    stats = loader.stats()
    assert f'cloudload_rows{{run="a\\\\b"}} {float(stats.rows)}\n' in text
    for name, stream in stats.streams.items():
        shown = name.replace('"', '\\"')
        line = f'cloudload_stream_tokens{{run="a\\\\b",stream="{shown}"}} {float(stream.tokens)}\n'
        assert line in text
    comment = r"# TYPE [a-z_]+ gauge"
    sample = r'[a-z_]+\{run="[^"]+"(,stream="[^}]+")?\} [0-9.e+-]+'
    lines = text.splitlines()
    assert all(re.fullmatch(f"{comment}|{sample}", line) for line in lines), text
    names = [line.split()[2] for line in lines if line.startswith("#")]
    assert len(names) == len(set(names))
    parser = pytest.importorskip("prometheus_client.parser")
    assert len(list(parser.text_string_to_metric_families(text))) == len(names)


def test_a_terminal_shows_one_line(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(folder, tmp_path, to_terminal())
    # take the last line, because another test's progress bar may be drawn above this one
    *_, last = [line for line in re.split(r"[\r\n]", capsys.readouterr().err) if "step" in line]
    assert re.search(r"step 6  [\d,]+ tokens/s  waiting \d+%  queue 0%  loss 0\.167", last), last


def test_tensorboard_reads_the_values(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "events")) as writer:
        train(folder, tmp_path, to_tensorboard(writer))
    events: Any = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("cloudload/rows")]
    assert found == [(2, 8), (4, 16), (6, 24)]


@pytest.mark.filterwarnings("ignore")
def test_wandb_logs_offline(folder: str, tmp_path: Path) -> None:
    wandb: Any = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path, project="test") as run:
        train(folder, tmp_path, to_wandb(run))
        run.log({}, step=7)  # starting step 7 completes step 6
        assert run.summary["cloudload/rows"] == 24
        assert run.summary["loss"] == pytest.approx(1 / 6)
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
