"""Draw the histogram of lengths as a PNG, with matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cloudload.tools.count.length_report import LengthStats

_BLUE, _ORANGE, _GRAY = "#2a6fbb", "#e08a1e", "#666666"
_MOST_WIDE_LABELS = 16
_UNITS = (("M", 1 << 20), ("k", 1 << 10))


def check_picture(path: Path) -> None:
    """Raise `ValueError` if a picture cannot be written to `path`, before a long count starts."""
    if find_spec("matplotlib") is None:
        raise ValueError("a picture requires the matplotlib package. Run: pip install matplotlib")
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"there is no folder {path.parent} for {path.name}. Create the folder first"
        )


def plot_lengths(stats: LengthStats, title: str, path: Path) -> None:
    """Draw the shares of documents and of tokens by length, and write a PNG of 1280 by 720 pixels.

    `title` is shown above the histogram. Raises `ValueError` as `check_picture` does, and `OSError`
    if the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    documents, tokens = (
        [getattr(each, name) for each in stats.histogram] for name in ("documents", "tokens")
    )
    indices = range(len(stats.histogram))
    for shift, values, color, name in (
        (0.27, documents, _BLUE, "share of documents"),
        (0.73, tokens, _ORANGE, "share of tokens"),
    ):
        shares = [100 * value / max(1, sum(values)) for value in values]
        axes.bar([index + shift for index in indices], shares, 0.44, color=color, label=name)
    edges = [each.low for each in stats.histogram] + [each.high for each in stats.histogram[-1:]]
    size = 10 if len(edges) <= _MOST_WIDE_LABELS else 8
    axes.set_xticks(range(len(edges)), [_shorten(edge) for edge in edges], fontsize=size)
    axes.set_xlabel("tokens per document, without bos and eos")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}%")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    axes.set_title(f"{title}\n", loc="left", fontsize=12)
    axes.text(0, 1.02, _summarize(stats), transform=axes.transAxes, color=_GRAY, fontsize=9)
    # omit matplotlib's version, so that equal reports result in equal files
    figure.savefig(path, dpi=160, format="png", metadata={"Software": None})


def _summarize(stats: LengthStats) -> str:
    shown = [f"p{name} {stats.percentiles[name]:,}" for name in ("5", "50", "95", "99")]
    return "    ".join([f"mean {stats.mean:,.1f}", *shown, f"longest {stats.longest:,}"])


def _shorten(length: int) -> str:
    """Format a power of 2 as a label, such as 512 or 4k."""
    for unit, size in _UNITS:
        if length >= size:
            return f"{length // size}{unit}"
    return str(length)
