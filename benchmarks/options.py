"""The command line that all benchmarks share, with `--quick`, `--json`, and `--only`."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.figures import Row, print_tables
from benchmarks.harness import ROOT, exit_on_sigterm


class Options(argparse.ArgumentParser):
    """The command-line parser of a benchmark, with `--quick`, and `--json` if `has_json`."""

    def __init__(self, description: str | None, *, has_json: bool = True) -> None:
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self._amounts: dict[str, tuple[float, float]] = {}
        self.add_argument(
            "--quick", action="store_true", help="run a small version that takes seconds"
        )
        if has_json:
            text = "print one JSON object instead of tables"
            self.add_argument("--json", action="store_true", help=text)

    def add_output(self) -> None:
        """Add `--output`, the folder for the results."""
        text = "folder for the results (default: benchmarks)"
        folder = ROOT / "benchmarks"
        self.add_argument("--output", type=Path, default=folder, metavar="FOLDER", help=text)

    def add_parts(self, names: Iterable[str]) -> None:
        """Add `--only`, which chooses from the benchmark's parts. By default, all of them run."""
        names = list(names)
        text = f"run only these parts: {', '.join(names)}"
        self.add_argument(
            "--only", nargs="+", choices=names, default=names, metavar="PART", help=text
        )

    def add_amount(self, name: str, full: float, quick: float, what: str) -> None:
        """Add a numeric option whose default is `full`, or `quick` if `--quick` is given."""
        text = f"{what} (default: {full:g}; with --quick: {quick:g})"
        self.add_argument(f"--{name}", type=type(full), help=text)
        self._amounts[name.replace("-", "_")] = full, quick

    def parse(self) -> argparse.Namespace:
        """Parse the command line, and fill in the defaults of the amounts."""
        args = self.parse_args()
        for name, amounts in self._amounts.items():
            if getattr(args, name) is None:
                setattr(args, name, amounts[args.quick])
        return args

    def run(
        self,
        measure: Callable[[argparse.Namespace, Path], Iterable[tuple[str, list[Row]]]],
        forms: Mapping[str, str] | None = None,
    ) -> None:
        """Parse the command line, and print the tables that `measure` yields.

        `measure` gets the arguments and a temporary folder.
        """
        args = self.parse()
        exit_on_sigterm()
        with temporary_folder() as folder:
            print_tables(measure(args, folder), as_json=args.json, forms=forms)


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Create a folder for a `with` block, and remove it afterwards."""
    with tempfile.TemporaryDirectory(
        prefix="cloudload-bench-", dir=inside, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
