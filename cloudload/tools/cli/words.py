"""Rewrite the library's error messages to name command-line options, not Python arguments.

compression is 'zst'. Use zstd or None    ─►    --compression is 'zst'. Use zstd or none
text_key was 'text' and is now 'body'     ─►    --text-key was 'text' and is now 'body'
tokenizer is None, but …                  ─►    --tokenizer is missing, but …
Pass on_error='skip'                      ─►    Pass --on-error skip
use num_workers=0                         ─►    use --option num_workers=0
"""

from __future__ import annotations

import argparse
import re

_QUOTE = "'"
_VALUE = re.compile(
    r"\b(pass|set|use|or|and) ([a-z_]+)=('[^']*'|[^\s'\",;)]*[^\s'\",;).])", re.IGNORECASE
)
_IN_YAML = {"None": "null", "True": "true", "False": "false"}


def in_words_of_options(message: str, parser: argparse.ArgumentParser) -> str:
    """Replace the names of Python arguments in a message with the options of `parser`.

    A name without an underscore may be an ordinary word, so it is replaced only at the start of the
    message.
    """
    named = {each.dest: each for each in parser._actions if each.option_strings}

    def translate_value(found: re.Match[str]) -> str:
        verb, name, value = found.groups()
        if name in named:
            return f"{verb} {named[name].option_strings[-1]} {value.strip(_QUOTE)}"
        if "option" in named:  # for any argument of a loader
            return f"{verb} --option {name}={_IN_YAML.get(value, value)}"
        return found[0]

    message = _VALUE.sub(translate_value, message)
    for action in named.values():
        message = _translate(message, action)
    return message


def _translate(message: str, action: argparse.Action) -> str:
    name, option = action.dest, action.option_strings[-1]
    if re.match(rf"{name} (is|was|must)\b", message):
        takes_none = re.search(r"\bnone\b", action.help or "")
        message = message.replace("or None", "or none" if takes_none else "or omit it")
        message = option + message.removeprefix(name)
        message = message.replace(f"{option} is None", f"{option} is missing", 1)
    # some messages name both the argument and the option
    message = re.sub(rf"\b{name}(=\w+)? \({option}\)", option, message)
    if "_" in name:
        message = re.sub(rf"(?<![\w./'\"-]){name}\b(?![./'\"-])", option, message)
    return message
