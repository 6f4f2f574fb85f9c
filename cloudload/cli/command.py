"""Add subcommands to the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the command, option or choice that was meant."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with status 2."""
        wrong = re.search(r"invalid choice: '([^']+)'|unrecognized arguments: (\S+)", message)
        word = (wrong[1] or wrong[2]) if wrong else ""
        if close := get_close_matches(word.partition("=")[0], self._list_words(), n=1):
            message += f". Did you mean {close[0]}?"
        super().error(message)

    def _list_words(self) -> list[str]:
        """The commands, options and choices of this parser and of its commands."""
        words: list[str] = []
        for action in self._actions:
            words += [*action.option_strings, *map(str, action.choices or ())]
            if isinstance(action.choices, dict):
                words += [word for each in action.choices.values() for word in each._list_words()]
        return words


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
