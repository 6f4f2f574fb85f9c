"""Report the result of the demo, as a table in the terminal and as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from examples.demo.plan import GLOBAL_BATCH, SEQ_LEN, VOCAB_SIZE, Run, name_ranks


def report(summary: dict[str, Any], output: Path) -> None:
    heads = f"{'run':<10}{'ranks':>6}{'steps':>12}{'rows':>15}{'tokens':>10}{'tokens/s':>10}"
    print(f"\n{heads}{'waiting':>9}   same as the reference")
    for run in summary["runs"]:
        steps, rows = (
            " to ".join(f"{number:,}" for number in run[name]) for name in ("steps", "rows")
        )
        tokens = (run["rows"][1] - run["rows"][0]) * SEQ_LEN
        verdict = "" if run["name"] == "reference" else "every row" if run["identical"] else "NO"
        print(
            f"{run['name']:<10}{run['ranks']:>6}{steps:>12}{rows:>15}{tokens:>10,}"
            f"{run['tokens_per_s']:>10,}{run['wait_share']:>9.1%}   {verdict}"
        )
    print(f"\nrows of the reference   sha256 {summary['hash_of_reference']}")
    print(f"rows of the pieces      sha256 {summary['hash_of_pieces']}")
    if summary["identical"]:
        print(
            f"The three pieces trained on the same {summary['rows']:,} rows ({summary['tokens']:,} "
            "tokens) as the reference, bit for bit and in the same order. The killed run also "
            f"trained on {summary['rows_done_again']} rows after its last checkpoint. This work "
            "was lost, and the resumed run read the same rows again."
        )
    else:
        print(
            "NOT IDENTICAL: the pieces and the reference trained on different rows. Compare the "
            f"rows in {output}/*/rank-*.jsonl."
        )
    print(
        f"Mean loss: {summary['loss_of_first_10_steps']:.2f} over the first 10 steps, "
        f"{summary['loss_of_last_10_steps']:.2f} over the "
        f"last 10 (uniform guessing: {math.log(VOCAB_SIZE):.2f}). The losses of the pieces and the "
        f"reference differ by at most {summary['most_difference_of_loss']:.0e}."
    )
    print(
        f"The loader's state in a checkpoint takes {summary['state_bytes']:,} bytes as JSON. "
        f"The demo took {summary['seconds']:.0f} s."
    )
    print(f"See {output / 'summary.png'} and {output / 'summary.json'}.")


def draw(reference: Run, pieces: list[Run], path: Path) -> None:
    """Draw the loss, the tokens per second, and the share of waiting, by step."""
    import matplotlib as mpl

    mpl.use("Agg")

    settings = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 10,
    }
    colors = dict(
        zip(
            [run.name for run in (reference, *pieces)],
            ["#b0b0b0", "#1f77b4", "#d95f02", "#1b9e77"],
            strict=True,
        )
    )
    with plt.rc_context(settings):
        figure, (losses, speeds, waits) = plt.subplots(
            3, 1, figsize=(10, 9), sharex=True, height_ratios=[3, 1.5, 1.5], layout="constrained"
        )
        draw_losses(losses, reference, pieces, colors)
        for run in (reference, *pieces):
            steps = list(run.steps)[1:]
            seconds, waited = (
                [run.steps[step][name] for step in steps] for name in ("step_s", "wait_s")
            )
            speeds.plot(
                steps,
                [GLOBAL_BATCH * SEQ_LEN / each / 1000 for each in seconds],
                color=colors[run.name],
                lw=1,
            )
            waits.plot(
                steps,
                [100 * wait / each for wait, each in zip(waited, seconds, strict=True)],
                color=colors[run.name],
                lw=1,
            )
        speeds.set(ylabel="thousand tokens/s", ylim=(0, None))
        waits.set(ylabel="% of the step", ylim=(0, max(20, waits.get_ylim()[1])), xlabel="step")
        losses.set_title(
            "Loss: an uninterrupted run, and one that was killed and resumed on other ranks",
            loc="left",
        )
        speeds.set_title("Training throughput", loc="left")
        waits.set_title("Time that the training loop waited for the loader", loc="left")
        for axes in (losses, speeds, waits):
            for piece in pieces[1:]:
                axes.axvline(piece.first - 0.5, color=colors[piece.name], lw=0.8, ls=":")
        figure.savefig(path, dpi=110)
        plt.close(figure)


def draw_losses(axes: Any, reference: Run, pieces: list[Run], colors: dict[str, str]) -> None:
    def plot(run: Run, steps: list[int], **style: Any) -> None:
        axes.plot(
            steps,
            [run.steps[step]["loss"] for step in steps],
            **{"color": colors[run.name], "lw": 1.5, **style},
        )

    plot(
        reference,
        reference.counted,
        lw=6,
        label=f"reference: {name_ranks(reference)}, uninterrupted",
    )
    for piece in pieces:
        lost = [step for step in piece.steps if step > piece.last]
        plot(piece, piece.counted, label=f"{piece.name}: {name_ranks(piece)}")
        if lost:
            plot(
                piece,
                lost,
                color="black",
                ls=":",
                zorder=4,
                label="lost in the kill",
            )
            plot(
                piece,
                lost[-1:],
                color="#c00000",
                ls="",
                marker="X",
                ms=9,
                zorder=5,
                label="SIGKILL",
            )
        if piece.first > 1:
            axes.annotate(
                f"resumed on {name_ranks(piece)}",
                (piece.first, 0.02),
                xycoords=("data", "axes fraction"),
                size=9,
            )
    evenly, middle = math.log(VOCAB_SIZE), reference.last / 3
    axes.axhline(evenly, color="#555555", lw=0.8, ls="--")
    axes.annotate(
        f"uniform guessing among {VOCAB_SIZE:,} tokens",
        (middle, evenly),
        (0, 4),
        textcoords="offset points",
        size=9,
    )
    axes.set(ylabel="loss", ylim=(None, evenly + 0.4))
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.88))
