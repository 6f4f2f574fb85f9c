"""Fuzz the code that reads data and states, which may raise only cloudload's own errors.

    python -m stress.fuzz                                          # every target for a minute
    python -m stress.fuzz state index --seconds 600 --findings f   # two targets for longer

    target             input                            code that is fuzzed
    index              bytes as an index.json           parse_index, and all that uses the index
    shard              bytes as a shard                 Shard, and reads of its samples
    shard-structured   valid shards, bytes changed      the same
    decompress         bytes, by each codec             decompress, which may return at most one
                                                        byte more than the index says
    state              valid states of all packings,    load_state_dict and two batches
                       fields changed
    tokenizer-text     texts that contain names of      both backends, which must agree and never
                       control tokens                   produce a control ID

A finding is any other error, or an input that takes over 10 s or over 600 MB of memory. The input
is then written to the folder of findings, and the exit status is 1. `--replay FILE` runs such an
input again. If `atheris` is installed (pip install atheris), coverage guides the inputs. Otherwise,
the built-in engine mutates them. `--engine` overrides this choice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from importlib.util import find_spec
from pathlib import Path

from stress.campaign import make_parser
from stress.fuzz.atheris import start_atheris
from stress.fuzz.engine import check, fuzz
from stress.fuzz.targets import TARGETS

OPTIONS = {
    "--seconds": (60, "seconds per target"),
    "--seed": (0, "random seed of the built-in engine"),
    "--findings": (Path("fuzz-findings"), "folder for findings"),
}


def main() -> int:
    parser = make_parser(__doc__, OPTIONS)
    shown = f"targets to fuzz: {', '.join(TARGETS)} (default: all)"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=shown)
    parser.add_argument(
        "--engine",
        choices=["atheris", "own"],
        default="atheris" if find_spec("atheris") else "own",
        help="how inputs are mutated (default: atheris if it is installed, and otherwise own)",
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="run this input on the first TARGET, and show the error that it causes",
    )
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"TARGET must be one of {', '.join(TARGETS)}, but is {unknown[0]!r}.")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.replay:
        check(TARGETS[names[0]], options.replay.read_bytes())
        print("no finding")
        return 0
    shown = ", ".join(names)
    print(f"Fuzzing for {options.seconds} s each, with the engine {options.engine!r}: {shown}")
    return max([_fuzz_and_report(name, options) for name in names])


def _fuzz_and_report(name: str, options: argparse.Namespace) -> int:
    """Fuzz a target, print what was found, and return 1 if there is a finding."""
    options.findings.mkdir(parents=True, exist_ok=True)
    started, target = time.monotonic(), TARGETS[name]
    if options.engine == "atheris":
        tried, found, why = start_atheris(name, target.seeds(), options.seconds, options.findings)
    else:
        tried, data, why = fuzz(target, seconds=options.seconds, seed=options.seed)
        found = options.findings / f"{name}-{zlib.crc32(data or b''):08x}"
        if data is not None:
            found.write_bytes(data)
    verdict = f"FINDING {found}: {why}" if why else "no finding"
    seconds = time.monotonic() - started
    print(f"{name:18} {tried:>12,} inputs in {seconds:.0f} s  {verdict}", flush=True)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
