"""Add subcommands to the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str,
    after_interrupt: str,
) -> argparse.ArgumentParser:
    """Add a subcommand and return its parser.

    `run` executes the subcommand and returns the exit status. `main` prints `after_interrupt` after
    Ctrl-C.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        name, help=help, description=description, epilog=epilog, formatter_class=layout
    )
    parser.set_defaults(run=run, after_interrupt=after_interrupt)
    return parser
