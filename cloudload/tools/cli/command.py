"""The argument parser of commands, and errors and options in the words of the command line.

The library's error messages name Python arguments. They are rewritten to name options:

    compression is 'zst'. Use zstd or None    ─►    --compression is 'zst'. Use zstd or none
    text_key was 'text' and is now 'body'     ─►    --text-key was 'text' and is now 'body'
    tokenizer is None, but …                  ─►    --tokenizer is missing, but …
    Pass on_error='skip'                      ─►    Pass --on-error skip
    use shuffle=False                         ─►    use --no-shuffle
    Pass Chat(max_tokens=N)                   ─►    Pass --chat max_tokens=N
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cloudload.data import redact
from cloudload.system import escape, option_help

if TYPE_CHECKING:
    from cloudload.config import Stream

_QUOTE = "'"
_VALUE = re.compile(
    r"\b(pass|set|use|or|and) ([a-z_]+)=('[^']*'|[^\s'\",;)]*[^\s'\",;).])", re.IGNORECASE
)
_OF_CHAT = re.compile(r"\b(?:chat=)?Chat\(([^()]*)\)|\b([a-z_]+) of Chat\b")
_KEPT = "\0"
_IN_WORDS = {"None": "none"}

UNCHANGED = "Nothing was changed"
"""What an interrupt leaves behind, unless a command says otherwise."""


class HelpLayout(argparse.HelpFormatter):
    """Help that fits the terminal, with a usage that does not repeat the options.

    In a description or epilog, indented lines keep their breaks, and other paragraphs are wrapped.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = [
            part if "\n " in part else super(HelpLayout, self)._fill_text(part, width, indent)
            for part in text.strip().split("\n\n")
        ]
        return "\n\n".join(parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        shown = [each for each in actions if not each.option_strings or each.required]
        named = argparse.Action(["-h"], "help", nargs=0)
        more = argparse.Action([], "options", nargs=argparse.OPTIONAL, metavar="OPTION ...")
        has_more = any(each.option_strings not in ([], ["-h", "--help"]) for each in actions)
        shown = [named, *([more] if has_more else []), *shown]
        return super()._format_usage(usage, shown, [], prefix)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the command, option or choice that was meant.

    A command's parser reports unknown options itself, so that the error shows the command's usage.
    Its options are added by `fill` when they are needed, because their declarations import NumPy.
    """

    def __init__(
        self, *, fill: Callable[[CommandParser], None] | None = None, **arguments: Any
    ) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpLayout, **arguments)
        self._fill_later = fill

    def fill(self) -> CommandParser:
        """Add the command's description and options, if they are not there yet."""
        fill, self._fill_later = self._fill_later, None
        if fill is not None:
            fill(self)
            json = "print JSON, or JSON Lines if there are several results"
            self.add_argument("--json", action="store_true", help=json)
            quiet = "log only warnings, and show no progress bar"
            self.add_argument("--quiet", action="store_true", help=quiet)
        return self

    def format_help(self) -> str:
        """Return the help of the command."""
        self.fill()
        return super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments. Unknown options are errors."""
        self.fill()
        if args is not None and not any(isinstance(each.choices, dict) for each in self._actions):
            for word in args[: args.index("--")] if "--" in args else args:
                name = word.partition("=")[0]
                if name.startswith("--") and name not in self._option_string_actions:
                    self.error(f"unrecognized arguments: {word}")
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and hasattr(options, "parser"):
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with status 2."""
        wrong = re.search(r"invalid choice: '([^']+)'|unrecognized arguments: (\S+)", message)
        word = (wrong[1] or wrong[2]) if wrong else ""
        if close := self._find_meant(word.partition("=")[0]):
            message += f". Did you mean {close}?"
        super().error(escape(redact(message)))

    def _find_meant(self, word: str) -> str | None:
        """Return our option for a name from another tool, or the known word closest to `word`."""
        known = self._list_words()
        name = word.lstrip("-").replace("-", "_")
        same = [f"--{ours.replace('_', '-')}" for ours in option_help.names_of_ours(name)]
        found = [option for option in same if option in known and word.startswith("-")]
        return next(iter([*found, *get_close_matches(word.lower(), known, n=1)]), None)

    def _list_words(self) -> list[str]:
        """List the commands, options and choices of this parser."""
        words: list[str] = []
        for action in self._actions:
            words += [*action.option_strings, *map(str, action.choices or ())]
        return words


def read_docstring(add_options: Callable[..., Any]) -> tuple[str, str, str, str]:
    """Return the name, the help, the description, and the epilog of a command.

    The docstring of its module has them. Its first line is "`cloudload NAME`: HELP." Without
    docstrings, as in `python -OO`, all but the name are empty.
    """
    name = add_options.__name__.removeprefix("add_")
    title, _, rest = (sys.modules[add_options.__module__].__doc__ or "").partition("\n\n")
    description, _, epilog = rest.partition("\n\n")
    return name, title.removeprefix(f"`cloudload {name}`: ").removesuffix("."), description, epilog


def set_up(
    parser: CommandParser,
    run: Callable[[argparse.Namespace], int],
    after_interrupt: str = UNCHANGED,
) -> Callable[..., Any]:
    """Prepare a command's parser, and return its `add_argument`.

    `run` executes the command and returns the exit status. `main` prints `after_interrupt` after
    Ctrl-C.
    """
    parser.set_defaults(run=run, after_interrupt=after_interrupt, parser=parser)
    return parser.add_argument


def whole_number(least: int = 1) -> Callable[[str], int]:
    """Return a parser of integers from `least` to 2^63 - 1."""

    def parse(text: str) -> int:
        digits = text.strip().removeprefix("+").replace("_", "")
        if re.fullmatch(r"\d{1,19}", digits, re.ASCII) and least <= int(digits) < 2**63:
            return int(digits)
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not an integer of at least {least}")

    return parse


COUNT = {"type": whole_number()}
"""For an option that is an integer of at least 1."""


def positive_number(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not a number above 0")
    return number


def parse_share(text: str) -> float:
    """Parse a share of documents above 0, such as `1%` or `0.01`."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share above 0. Use one such as 1% or 0.01"
        )
    return share


def path_argument(text: str) -> Path:
    """Parse the path of a file or folder on this machine."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is a URL, but this must be a path on this machine. Copy the file first"
        )
    return Path(text)


def check_output_path(flag: str, path: Path | None, options: argparse.Namespace) -> None:
    """Raise `ValueError` before any work starts if a flag's file cannot be created.

    Also raised if the file is another option's value, such as a state, or part of its dataset.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(
            f"{flag} is {path}, but the folder {folder} does not exist. Create the folder first"
        )
    if path.is_dir():
        raise ValueError(f"{flag} is {path}, which is a folder. Add a file name")
    own = flag.lstrip("-").replace("-", "_")
    for name, value in vars(options).items() if path.exists() else ():
        for given in value if isinstance(value, list) else [value]:
            if name != own and isinstance(given, str | Path) and _is_part(path, str(given)):
                raise ValueError(
                    f"{flag} is {path}, which would replace a file that is read. Choose another "
                    "file"
                )


def _is_part(path: Path, given: str) -> bool:
    """Whether a file is the file `given`, or an index or a shard of the dataset `given`."""
    from cloudload.data import own_objects, urls

    name = urls.name_inside(urls.path_url(path), given) if given else None
    return name is not None and (not name or own_objects.is_of_dataset(name))


def add_engine_options(add: Callable[..., object]) -> None:
    """Add the options that choose where a command works."""
    engine = "process the parts of the work on this machine or on a Ray cluster (default: local)"
    add("--engine", default="local", choices=["local", "ray"], help=engine)
    cluster = "the Ray cluster: auto, or ray://HOST:PORT (default: start one on this machine)"
    add("--address", metavar="URL", help=cluster)
    resources = "resources for each Ray task, such as cpus=1,memory=2g (default: cpus=1)"
    add("--task-resources", metavar="NAME=N,...", help=resources)


def open_engine(options: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """Return a context with the executor that the options name, or None for local processes.

    Raises `ValueError` for options that need `--engine ray`, and the errors of `RayExecutor`.
    """
    if options.engine != "ray":
        if options.address or options.task_resources:
            raise ValueError(
                "--address and --task-resources require --engine ray. Add it, or omit these options"
            )
        return nullcontext()
    from cloudload.tools.engines.ray import RayExecutor, parse_resources

    resources = parse_resources(options.task_resources) if options.task_resources else {}
    return RayExecutor(options.address, **resources)


_BEFORE_NAME = r"\b(Omit |Set |omit |without |so |only to |as )"
"""The words before the name of an option."""


def in_words_of_options(message: str, parser: argparse.ArgumentParser) -> str:
    """Replace the names of Python arguments in a message with the options of `parser`.

    A name without an underscore may be an ordinary word, so it is replaced only at the start of the
    message, and where only an option can be.
    """
    named = {each.dest: each for each in parser._actions if each.option_strings}

    def translate_value(found: re.Match[str]) -> str:
        verb, name, value = found.groups()
        if name not in named:
            return found[0]
        if named[name].nargs == 0:  # a switch, such as --shuffle and --no-shuffle
            return f"{verb} {named[name].option_strings[-1 if value == 'False' else 0]}"
        return f"{verb} {named[name].option_strings[0]} {_IN_WORDS.get(value, value).strip(_QUOTE)}"

    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        call = f"--chat {(found[1] or 'tokenizer').replace(_QUOTE, '')}"
        kept.append(f"{found[2]} of --chat" if found[2] else call)
        return _KEPT

    if "chat" in named:  # options of Chat may have the names of other options
        message = _OF_CHAT.sub(keep, message)
    message = _VALUE.sub(translate_value, message)
    for action in named.values():
        message = _translate(message, action)
    for text in kept:
        message = message.replace(_KEPT, text, 1)
    return message


def list_datasets(dataset: str, split: str | None) -> Sequence[Stream]:
    """List the datasets of a location. They have names if the location is a glob of folders."""
    from cloudload.config import Stream
    from cloudload.run import find_streams

    return find_streams([Stream(dataset, split=split)]).streams


def _translate(message: str, action: argparse.Action) -> str:
    name, option = action.dest, action.option_strings[0]
    if re.match(rf"{name} (is|was|must)\b", message):
        takes_none = re.search(r"\bnone\b", action.help or "")
        message = message.replace("or None", "or none" if takes_none else "or omit it")
        message = option + message.removeprefix(name)
        message = message.replace(f"{option} is None", f"{option} is missing", 1)
    # some messages name both the argument and the option
    message = re.sub(rf"\b{name}s?(=\w+)? \({option}( [^)]*)?\)", option, message)
    message = re.sub(rf"{_BEFORE_NAME}{name}s?(?=[,.]|$| cannot be set)", rf"\1{option}", message)
    if "_" in name:
        message = re.sub(rf"(?<![\w./'\"-]){name}\b(?![./'\"-])", option, message)
    return message
