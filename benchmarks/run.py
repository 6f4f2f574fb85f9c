"""Race cloudload, bare tokenizers and other loaders over the same documents: `make bench`.

    python -m benchmarks.run --corpus FOLDER --tokenizers FOLDER
    python -m benchmarks.run --quick

The corpus folder has *.jsonl or *.jsonl.gz files with a field `text`. The tokenizers folder has a
folder for each tokenizer. By default, both folders are in ../shared next to the repository. If they
do not exist, the race uses the source files of this Python environment, and a tokenizer trained on
its standard library. The first run installs packages that the peers need, but cloudload's
environment lacks, into .bench/ with pip.

Prints tables, and writes RESULTS.md, results.json and, for the race "peers", results.png to
--output.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.catalogue import RACES, Entry, Race
from benchmarks.documents import (
    Documents,
    beside,
    find_tokenizers,
    framing_of,
    lay_out,
    write_tokens,
)
from benchmarks.harness import (
    ROOT,
    Options,
    commit,
    hardware,
    last_cores,
    note,
    pinned,
    shown_command,
)
from benchmarks.race import Result, run_race
from benchmarks.report import draw, summarize, table, write_json, write_markdown

BASE = ROOT / ".bench"
SEQ_LEN, BATCH_SIZE = 2048, 8


def main() -> None:
    args = parse()
    names = args.races or (["peers"] if args.quick else [race.name for race in RACES])
    races = [choose_sides(race, args.sides) for race in RACES if race.name in names]
    BASE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=BASE, ignore_cleanup_errors=True) as folder:
        run(args, races, Path(folder))
    note(f"\nresults written to {args.output}")


def run(args: argparse.Namespace, races: Sequence[Race], work: Path) -> None:
    """Run the races and write the report."""
    corpus = args.corpus or beside("corpus")
    documents = lay_out(corpus, work / "data", 1e6 * args.megabytes)
    note(
        f"{documents.count:,} documents, {documents.num_bytes / 1e6:.1f} MB of text: "
        f"{documents.source}"
    )
    tokenizers = find_tokenizers(
        args.tokenizers or beside("tokenizers"), args.names[:1] if args.quick else args.names, work
    )
    outcomes: dict[str, list[Result]] = {}
    sections: list[tuple[str, str]] = []
    panels: dict[str, Sequence[dict[str, Any]]] = {}
    for tokenizer in tokenizers:
        requests = Requests(documents, tokenizer, work, args.ceiling_tokens)
        for race in races:
            title = f"{race.title}: {tokenizer.name}"
            note(title)
            results = run_on_cores(
                race,
                [requests.of(race, entry) for entry in race.entries],
                args.rounds,
                args.seconds,
            )
            rows = summarize(race, results)
            outcomes[f"{race.name}, {tokenizer.name}"] = results
            sections.append((title, table(race, rows)))
            print(f"\n{title}\n\n{sections[-1][1]}", flush=True)
            if race.name == "peers":
                panels[tokenizer.name] = rows
    facts = facts_of(args, documents, outcomes)
    args.output.mkdir(parents=True, exist_ok=True)
    write_json(args.output / "results.json", facts, outcomes)
    write_markdown(args.output / "RESULTS.md", facts, races, sections)
    if panels:
        draw(
            args.output / "results.png",
            "One worker, one core: tokens of text per second, median and 10th to 90th percentile",
            panels,
        )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    options = Options(__doc__, has_json=False)
    options.add_folders()
    options.add_argument(
        "--names",
        nargs="+",
        default=["gpt2", "llama3"],
        help="tokenizer names (default: gpt2 llama3)",
    )
    options.add_argument(
        "--races", nargs="+", choices=[race.name for race in RACES], help="run only these races"
    )
    options.add_argument(
        "--sides",
        nargs="+",
        metavar="TEXT",
        help="run only sides whose names contain one of these strings",
    )
    options.add_amount("megabytes", 40.0, 4.0, "maximum megabytes of text")
    options.add_amount("rounds", 25, 5, "number of turns per side")
    options.add_amount("seconds", 1.0, 0.5, "seconds per turn")
    options.add_amount(
        "ceiling-tokens", 100_000_000, 20_000_000, "minimum size of pre-tokenized data, in tokens"
    )
    return options.parse()


def choose_sides(race: Race, parts: Sequence[str] | None) -> Race:
    """Return the race with only the sides whose names contain one of `parts`, or all if None."""
    entries = [
        entry for entry in race.entries if not parts or any(part in entry.name for part in parts)
    ]
    return replace(race, entries=tuple(entries))


class Requests:
    """A builder of the sides' requests for one tokenizer. It tokenizes the documents once."""

    def __init__(self, documents: Documents, tokenizer: Path, work: Path, tokens: int) -> None:
        self.documents, self.tokenizer, self.work, self.tokens = documents, tokenizer, work, tokens
        self.eos, self.specials = framing_of(tokenizer)
        self.ids = write_tokens(documents, tokenizer, self.eos)

    def of(self, race: Race, entry: Entry) -> dict[str, Any]:
        """Return the request of one side, with the fields of `side.Request`."""
        number = [other.name for other in race.entries].index(entry.name)
        options = entry.options | ({"tokens": self.tokens} if "tokens" in entry.options else {})
        return {
            "data": str(self.documents.folder),
            "ids": str(self.ids),
            "scratch": str(self.work / f"{race.name}-{number}"),
            "tokenizer": str(self.tokenizer),
            "eos": self.eos,
            "specials": self.specials,
            "seq_len": SEQ_LEN,
            "batch_size": BATCH_SIZE,
            "num_workers": entry.num_workers,
            "options": options,
        }


def run_on_cores(
    race: Race, requests: list[dict[str, Any]], rounds: int, seconds: float
) -> list[Result]:
    """Run the sides of a race on the last cores, and the harness on the first."""
    cores = last_cores(race.cores)
    with pinned({min(os.sched_getaffinity(0))}):
        return run_race(race, requests, cores, (rounds, seconds))


def facts_of(
    args: argparse.Namespace, documents: Documents, outcomes: dict[str, list[Result]]
) -> dict[str, str]:
    """Return the conditions of the measurement, such as its date and hardware, by name."""
    results = [result for results in outcomes.values() for result in results]
    versions = sorted(
        {f"{name} {version}" for result in results for name, version in result.versions.items()}
    )
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shown_command("benchmarks.run"),
        "cloudload": f"{metadata.version('cloudload')}, commit {commit()}",
        "hardware": hardware(),
        "Python": sys.version.split()[0],
        "documents": f"{documents.count:,}, {documents.num_bytes / 1e6:.1f} MB of text "
        f"({documents.source})",
        "turns": f"{args.rounds} per side, {args.seconds} s each",
        "versions": ", ".join(versions),
    }


if __name__ == "__main__":
    main()
