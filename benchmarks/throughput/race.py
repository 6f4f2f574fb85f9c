"""Race cloudload, bare tokenizers, and other loaders over the same documents: `make bench`.

    python -m benchmarks.throughput.race --corpus FOLDER --tokenizer FOLDER FOLDER
    python -m benchmarks.throughput.race --quick

The first run installs packages that the peers need, but cloudload's environment lacks, into .bench/
with pip. Prints tables, and writes RESULTS.md, results.json and, for the race "peers", results.png
to --output.

All sides of a race are pinned to the same cores, and take one turn per round. In every second
round, the order of the sides is reversed. A side that fails takes no more turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.documents import (
    add_documents,
    count_bytes,
    describe_source,
    framing_of,
    read_documents,
    write_dataset,
    write_tokens,
)
from benchmarks.figures import facts
from benchmarks.harness import (
    ROOT,
    Message,
    Side,
    SideFailedError,
    exit_on_sigterm,
    last_cores,
    note,
    pinned,
)
from benchmarks.options import Options, temporary_folder
from benchmarks.peers.environments import EnvironmentFailedError, environment_of
from benchmarks.peers.racing import Turn
from benchmarks.throughput.catalogue import RACES, Entry, Race
from benchmarks.throughput.report import Result, Section, draw, write_json, write_markdown

BASE = ROOT / ".bench"
SEQ_LEN, BATCH_SIZE = 2048, 8
NUM_FILES, SHARD_BYTES = 8, 4 << 20


def main() -> None:
    args = parse()
    names = args.races or (["peers"] if args.quick else [race.name for race in RACES])
    races = [choose_sides(race, args.sides) for race in RACES if race.name in names]
    BASE.mkdir(exist_ok=True)
    exit_on_sigterm()
    with temporary_folder(BASE) as folder:
        run(args, races, folder)
    note(f"\nresults written to {args.output}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    options = Options(__doc__, has_json=False)
    add_documents(options, 40.0, 4.0)
    options.add_output()
    options.add_argument(
        "--races", nargs="+", choices=[race.name for race in RACES], help="run only these races"
    )
    text = "run only sides whose names contain one of these strings"
    options.add_argument("--sides", nargs="+", metavar="TEXT", help=text)
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


def run(args: argparse.Namespace, races: Sequence[Race], work: Path) -> None:
    """Run the races and write the report."""
    texts = read_documents(args)
    lay_out(texts, work / "data")
    sections: list[Section] = []
    for tokenizer in args.tokenizer[:1] if args.quick else args.tokenizer:
        requests = Requests(texts, tokenizer.absolute(), work, args.ceiling_tokens)
        for race in races:
            note(f"{race.title}: {tokenizer.name}")
            with pinned({min(os.sched_getaffinity(0))}):
                results = run_race(race, requests, args.rounds, args.seconds)
            sections.append(Section(race, tokenizer.name, results))
            print(f"\n{sections[-1].title}\n\n{sections[-1].table()}", flush=True)
    results = [result for section in sections for result in section.results]
    versions = {f"{name} {version}" for each in results for name, version in each.versions.items()}
    conditions = facts() | {
        "Python": sys.version.split()[0],
        "documents": f"{len(texts):,}, {count_bytes(texts) / 1e6:.1f} MB of text "
        f"({describe_source(args)})",
        "turns": f"{args.rounds} per side, {args.seconds} s each",
        "versions": ", ".join(sorted(versions)),
    }
    args.output.mkdir(parents=True, exist_ok=True)
    write_json(args.output / "results.json", conditions, sections)
    write_markdown(args.output / "RESULTS.md", conditions, sections)
    if panels := [section for section in sections if section.race.name == "peers"]:
        draw(args.output / "results.png", panels)


def lay_out(texts: Sequence[str], folder: Path) -> None:
    """Write the documents as JSON Lines and as uncompressed MDS shards."""
    (folder / "texts").mkdir(parents=True)
    for number in range(NUM_FILES):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::NUM_FILES]]
        (folder / "texts" / f"part-{number}.jsonl").write_text("".join(lines))
    write_dataset(texts, folder / "mds", compression=None, shard_bytes=SHARD_BYTES)


class Requests:
    """A builder of the sides' requests for one tokenizer. It tokenizes the documents once."""

    def __init__(self, texts: Sequence[str], tokenizer: Path, work: Path, tokens: int) -> None:
        self.tokenizer, self.work, self.tokens = tokenizer, work, tokens
        self.eos, self.specials = framing_of(tokenizer)
        self.ids = write_tokens(texts, tokenizer, self.eos, work / f"tokens-{tokenizer.name}")

    def of(self, race: Race, entry: Entry) -> Message:
        """Return the request of one side, with the fields of `peers.racing.Request`."""
        number = [other.name for other in race.entries].index(entry.name)
        options = entry.options | ({"tokens": self.tokens} if "tokens" in entry.options else {})
        return {
            "data": str(self.work / "data"),
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


# ---------------------------------------------------------------- one race


def run_race(race: Race, requests: Requests, rounds: int, seconds: float) -> list[Result]:
    """Start the sides of a race, let them take turns, and return their results."""
    results = [Result(entry) for entry in race.entries]
    sides: dict[int, Side] = {}
    with ExitStack() as stack:
        for number, result in enumerate(results):
            try:
                side = start_side(result, requests.of(race, result.entry), last_cores(race.cores))
                sides[number] = stack.enter_context(side)
            except (SideFailedError, EnvironmentFailedError) as error:
                result.failure = str(error)
            note(f"  {result.entry.name}: {result.failure or 'ready'}")
        for turn in range(rounds):
            for number in sorted(sides, reverse=bool(turn % 2)):
                try:
                    answer = sides[number].take_turn({"seconds": seconds})
                    results[number].turns.append(Turn(**answer))
                except SideFailedError as error:
                    results[number].failure = str(error)
                    sides.pop(number).close()
                    note(f"  {results[number].entry.name} failed because {error}")
            note(f"  round {turn + 1} of {rounds}")
    return results


def start_side(result: Result, request: Message, cores: set[int]) -> Side:
    """Start a side, and return it when it is ready and stopped.

    Raises `SideFailedError` or `EnvironmentFailedError` if it cannot start.
    """
    entry = result.entry
    python, folders = Path(sys.executable), list[Path]()
    if entry.environment:
        python, folders = environment_of(entry.environment, BASE)
    scratch = Path(request["scratch"])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    side = Side(
        f"benchmarks.peers.{entry.script}",
        python=str(python),
        folders=folders,
        scratch=scratch,
        cores=cores,
        log=scratch.with_suffix(".log"),
    )
    try:
        result.versions = side.start(request)
    except BaseException:
        side.close()
        raise
    return side


if __name__ == "__main__":
    main()
