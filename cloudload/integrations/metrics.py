"""Send the loader's statistics to TensorBoard, Weights & Biases, Prometheus, or the terminal.

    monitor = Monitor(loader, to_tensorboard(SummaryWriter()), to_prometheus("metrics.prom"))
    for step, batch in enumerate(loader, 1):
        …
        monitor.step(step, loss=loss)

A sink is a function that takes a dict of values and the step. To use another logger, write a sink
for it in a few lines.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloudload.config import checks
from cloudload.loading import CloudLoader
from cloudload.stats import Stats
from cloudload.system import temp_files

Values = Mapping[str, float]
Sink = Callable[[Values, int], object]

_STREAM = re.compile(r"^streams/(?P<stream>.+)/(?P<name>\w+)$")


class Monitor:
    """Passes the loader's statistics to `sinks` every `every` steps.

    The values are those of `Stats.as_dict` with `prefix`, and two that cover the time since the
    last report. `wait_share` is the share of time, from 0 to 1, that this rank waited for batches.
    `tokens_per_s` is the number of tokens per second, across all ranks.
    """

    def __init__(
        self, loader: CloudLoader, *sinks: Sink, every: int = 10, prefix: str = "cloudload/"
    ) -> None:
        self._loader, self._sinks, self._prefix = loader, sinks, prefix
        self._every = checks.as_integer("every", every, 1)
        self._last = time.monotonic(), loader.stats()

    def step(self, step: int, **values: Any) -> None:
        """Report the statistics, if `step` is a multiple of `every`. Call it after each step.

        `values` are other metrics of the step, such as its loss.
        """
        if step % self._every:
            return
        stats = self._loader.stats()
        found = {**stats.as_dict(self._prefix), **self._since_last(stats)}
        found |= {name: float(value) for name, value in values.items()}
        for sink in self._sinks:
            sink(found, step)

    def _since_last(self, stats: Stats) -> dict[str, float]:
        (before_at, before), now = self._last, time.monotonic()
        self._last, seconds = (now, stats), max(1e-9, now - before_at)
        waited = stats.delivery.stall_s - before.delivery.stall_s
        return {
            f"{self._prefix}wait_share": min(1.0, waited / seconds),
            f"{self._prefix}tokens_per_s": (stats.tokens - before.tokens) / seconds,
        }


def to_tensorboard(writer: Any) -> Sink:
    """Return a sink for a `torch.utils.tensorboard.SummaryWriter`."""

    def write(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return write


def to_wandb(run: Any) -> Sink:
    """Return a sink for a run of Weights & Biases, as `wandb.init` returns it."""
    return lambda values, step: run.log(dict(values), step=step)


def to_prometheus(path: str | os.PathLike[str], labels: Mapping[str, str] | None = None) -> Sink:
    """Return a sink that rewrites a file in the Prometheus text format.

    The node exporter's textfile collector reads such files if their names end in `.prom`.
    `labels`, such as the run and the rank, are added to each value.
    """
    target = Path(path)

    def write(values: Values, step: int) -> None:
        text = format_prometheus({**values, "step": step}, labels or {})
        target.parent.mkdir(parents=True, exist_ok=True)
        with temp_files.partial_file(target) as part:
            part.write_text(text, "utf-8")
            part.replace(target)

    return write


def format_prometheus(values: Values, labels: Mapping[str, str]) -> str:
    """Format values as Prometheus gauges. A stream's name becomes a label."""
    lines: dict[str, list[str]] = {}
    for key, value in values.items():
        prefix, slash, rest = key.partition("/")
        own, found = dict(labels), _STREAM.match(rest)
        if slash and found:
            own["stream"], rest = found["stream"], f"stream/{found['name']}"
        name = re.sub(r"\W", "_", f"{prefix}{slash}{rest}")
        shown = ",".join(f'{label}="{_escape(text)}"' for label, text in own.items())
        lines.setdefault(name, []).append(f"{name}{{{shown}}} {float(value)!r}")
    return "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{line}\n" for line in own)
        for name, own in lines.items()
    )


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def to_terminal() -> Sink:
    """Return a sink that updates one terminal line on stderr, with `tqdm`.

    The line shows the step, tokens per second, the share of time spent waiting, and the fill level
    of the queues.
    """
    from tqdm import tqdm

    line = tqdm(bar_format="{desc}", leave=False)

    def write(values: Values, step: int) -> None:
        short = {name.rpartition("/")[2]: value for name, value in values.items()}
        text = (
            f"step {step:,}  {short['tokens_per_s']:,.0f} tokens/s  "
            f"waiting {short['wait_share']:.0%}  queue {short['queue']:.0%}"
        )
        line.set_description_str(text + (f"  loss {short['loss']:.3f}" if "loss" in short else ""))

    return write
