"""Race cloudload, the bare tokenizers and other loaders over the same documents: `make bench`.

    python -m benchmarks.run --corpus FOLDER --tokenizers FOLDER
    python -m benchmarks.run --quick

FOLDER has *.jsonl or *.jsonl.gz with a field `text`; the other one a folder for each tokenizer.
Without them ../shared/corpus and ../shared/tokenizers beside the repository are taken, or else the
sources of this Python environment and a tokenizer trained on its standard library. Peers whose
versions clash with cloudload's are installed into .bench/ by pip, once.

Prints tables, and writes RESULTS.md, results.json and results.png to --output.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.catalogue import RACES, Entry, Race
from benchmarks.documents import (
    Documents,
    find_tokenizers,
    framing_of,
    lay_out,
    name_of,
    write_tokens,
)
from benchmarks.race import Result, note, pinned, run_race
from benchmarks.report import draw, hardware, summarize, table, write_json, write_markdown

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / ".bench"
SEQ_LEN, BATCH_SIZE = 2048, 8


@dataclass(frozen=True)
class Length:
    """How much is measured."""

    megabytes: float
    rounds: int
    seconds: float
    tokens: int
    """That the readers of tokenized data have at least, so that an epoch is no instant."""
    races: tuple[str, ...]


FULL = Length(40.0, 25, 1.0, 100_000_000, tuple(race.name for race in RACES))
QUICK = Length(4.0, 5, 0.5, 20_000_000, ("peers",))


def main() -> None:
    args = parse()
    length = QUICK if args.quick else FULL
    rounds = args.rounds or length.rounds
    names = args.races or list(length.races)
    races = [race for race in RACES if race.name in names]
    work = BASE / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    corpus = args.corpus or beside("corpus")
    documents = lay_out(corpus, work / "data", 1e6 * (args.megabytes or length.megabytes))
    note(f"{documents.count:,} documents, {documents.num_bytes / 1e6:.1f} MB: {documents.source}")
    tokenizers = find_tokenizers(
        args.tokenizers or beside("tokenizers"), args.names[:1] if args.quick else args.names, work
    )
    outcomes: dict[str, list[Result]] = {}
    sections: list[tuple[str, str]] = []
    panels: dict[str, Sequence[dict[str, Any]]] = {}
    for tokenizer in tokenizers:
        requests = Requests(documents, tokenizer, work, length.tokens)
        for race in races:
            title = f"{race.title}: {tokenizer.name}"
            note(title)
            entries = [
                entry
                for entry in race.entries
                if not args.sides or any(part in entry.name for part in args.sides)
            ]
            race = Race(race.name, race.title, race.cores, race.baseline, tuple(entries))  # noqa: PLW2901 - the same, less of it
            results = run_on_cores(
                race, [requests.of(race, entry) for entry in entries], rounds, length.seconds
            )
            rows = summarize(race, results)
            outcomes[f"{race.name}, {tokenizer.name}"] = results
            sections.append((title, table(race, rows)))
            print(f"\n{title}\n\n{sections[-1][1]}", flush=True)
            if race.name == "peers":
                panels[tokenizer.name] = rows
    facts = facts_of(documents, rounds, length, outcomes)
    args.output.mkdir(parents=True, exist_ok=True)
    write_json(args.output / "results.json", facts, outcomes)
    write_markdown(args.output / "RESULTS.md", facts, races, sections)
    if panels:
        draw(
            args.output / "results.png",
            "One worker, one core: tokens of text a second, median and 10th to 90th percentile",
            panels,
        )
    shutil.rmtree(work, ignore_errors=True)
    note(f"\nwritten to {args.output}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="of *.jsonl.gz with a field `text`"
    )
    parser.add_argument(
        "--tokenizers", type=Path, metavar="FOLDER", help="with a folder for each tokenizer"
    )
    parser.add_argument(
        "--names",
        nargs="+",
        default=["gpt2", "llama3"],
        help="of the tokenizers (default: gpt2 llama3)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="little data, few turns, one tokenizer, peers only: minutes",
    )
    parser.add_argument(
        "--races", nargs="+", choices=[race.name for race in RACES], help="only these"
    )
    parser.add_argument(
        "--sides",
        nargs="+",
        metavar="TEXT",
        help="only sides whose names have one of these in them",
    )
    parser.add_argument(
        "--megabytes", type=float, help=f"of text, at most (default: {FULL.megabytes:.0f})"
    )
    parser.add_argument("--rounds", type=int, help=f"turns of each side (default: {FULL.rounds})")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks",
        metavar="FOLDER",
        help="default: benchmarks",
    )
    return parser.parse_args()


def beside(name: str) -> Path | None:
    """A folder of the shared data beside the repository, where there is one."""
    folder = ROOT.parent / "shared" / name
    return folder if folder.is_dir() else None


class Requests:
    """The requests of one tokenizer's sides."""

    def __init__(self, documents: Documents, tokenizer: Path, work: Path, tokens: int) -> None:
        self.documents, self.tokenizer, self.work, self.tokens = documents, tokenizer, work, tokens
        self.eos, self.specials = framing_of(tokenizer)
        self.ids = write_tokens(documents, tokenizer, self.eos)

    def of(self, race: Race, entry: Entry) -> dict[str, Any]:
        """What one side is asked for."""
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
    """Run a race on the last cores, and the harness on the first."""
    cores = sorted(os.sched_getaffinity(0))
    with pinned({cores[0]}):
        return run_race(race, requests, set(cores[-race.cores :]), (rounds, seconds))


def facts_of(
    documents: Documents, rounds: int, length: Length, outcomes: dict[str, list[Result]]
) -> dict[str, str]:
    """What the numbers are of."""
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
        "turns": f"{rounds} of {length.seconds} s a side",
        "versions": ", ".join(versions),
    }


def shown_command(module: str) -> str:
    """The command line, with folders by their last names only."""
    words = [name_of(Path(word)) if word.startswith(("/", "..")) else word for word in sys.argv[1:]]
    return f"`{shlex.join(['python', '-m', module, *words])}`"


def commit() -> str:
    """The commit that is measured, and whether the tree differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    dirty = subprocess.run(
        [*git, "status", "--porcelain", "cloudload"], capture_output=True, text=True, check=False
    ).stdout
    return f"{head or 'unknown'}{' and changes' if dirty else ''}"


if __name__ == "__main__":
    main()
