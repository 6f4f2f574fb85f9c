"""`cloudload state`: show the position of a checkpoint, or compare two.

Show the position of a checkpoint, or compare a checkpoint with another one or with a loader's
options.

A STATE is a JSON file, a file that torch.save wrote, or a framework's checkpoint folder. The
loader's state may be anywhere in it. No code in a checkpoint is executed. With the options of a
loader, diff compares a state with the loader and reads its data. Otherwise, no data is read. The
exit status of diff is 1 if the loader would refuse to resume.

examples:
  cloudload state show checkpoint.pt
  cloudload state diff step-1000.pt step-2000.pt
  cloudload state diff checkpoint.pt --config run.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from cloudload.tools.cli import command
from cloudload.tools.cli.output import print_result
from cloudload.tools.cli.run_options import (
    add_loader_options,
    names_loader,
    read_loader_options,
    without_start_log,
)


def add_state(parser: command.CommandParser) -> None:
    add = command.set_up(parser, _state)
    add("action", choices=("show", "diff"), help="show a state, or list differences")
    states = "one checkpoint, or two for diff"
    add("states", metavar="STATE", type=command.path_argument, nargs="+", help=states)
    add_loader_options(parser)


@without_start_log()
def _state(options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.checkpoint import load_state
    from cloudload.tools.provenance.describe_state import describe_state

    has_loader = bool(options.data or names_loader(options))
    expected = 2 if options.action == "diff" and not has_loader else 1
    if len(options.states) != expected:
        raise ValueError(
            f"state {options.action} takes {expected} checkpoint{'s' * (expected > 1)}, but "
            f"{len(options.states)} were given. "
            "Pass one for show, two for diff, or one for diff with a loader's options"
        )
    states = [load_state(path) for path in options.states]
    if options.action == "show":
        found = describe_state(states[0])
        print_result(found, found.describe(), as_json=options.json)
        return 0
    if expected == 2:
        return _diff(states[0], states[1], as_json=options.json)
    return _diff_with_loader(states[0], options)


def _diff(before: Mapping[str, Any], after: Mapping[str, Any], *, as_json: bool) -> int:
    from cloudload.tools.provenance.describe_state import compare_states, describe_state

    differences = compare_states(before, after)
    is_refused = any(each.rule.startswith("held") for each in differences)
    lines = ["the states are equal"]
    if differences:
        one, other = describe_state(before), describe_state(after)
        lines = [
            f"the second state is {other.steps - one.steps:+,} steps, "
            f"{other.rows - one.rows:+,} rows and {other.tokens - one.tokens:+,} tokens from the "
            "first",
            *(each.describe() for each in differences),
        ]
    print_result(differences, lines, as_json=as_json)
    return int(is_refused)


def _diff_with_loader(state: Mapping[str, Any], options: argparse.Namespace) -> int:
    from cloudload.config import alone
    from cloudload.loading import CloudLoader
    from cloudload.tools.provenance.describe_state import compare_with_loader

    arguments = {**read_loader_options(options), **alone(), "num_workers": 0}
    with CloudLoader(**arguments) as loader:
        differences, refusal = compare_with_loader(state, loader)
    lines = [each.describe() for each in differences] or ["no difference affects a resume"]
    verdict = f"refuses it: {refusal}" if refusal else "continues from it"
    lines.append(f"a loader with these options {verdict}")
    found = {"differences": differences, "refusal": refusal}
    print_result(found, lines, as_json=options.json)
    return int(refusal is not None)
