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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.output import escape, print_json, print_result, print_text
from cloudload.tools.cli.run_options import (
    add_loader_options,
    names_loader,
    read_loader_options,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.tools.provenance.describe_state import Difference, StateDescription

_MOST_WORLDS = 24


def add_state(parser: command.CommandParser) -> None:
    add = command.set_up(parser, _state)
    add("action", choices=("show", "diff"), help="show a state, or list differences")
    states = "one checkpoint, or two for diff"
    add("states", metavar="STATE", type=command.path_argument, nargs="+", help=states)
    add_loader_options(parser)


@without_start_log()
def _state(options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.checkpoint import load_state

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
        return _show(states[0], as_json=options.json)
    if expected == 2:
        return _diff(states[0], states[1], as_json=options.json)
    return _diff_with_loader(states[0], options)


def _show(state: Mapping[str, Any], *, as_json: bool) -> int:
    from cloudload.tools.provenance.describe_state import describe_state

    found = describe_state(state)
    print_result(found, list_lines, as_json=as_json)
    return 0


def list_lines(found: StateDescription) -> Iterator[str]:
    """Yield the description of a state as lines of text."""
    from cloudload.run import FIELD_MEANINGS, state_fields
    from cloudload.tools.provenance.describe_state import show_field

    yield (
        f"after {counted(found.steps, 'step')}: {counted(found.rows, 'row')} of "
        f"{found.seq_len:,} tokens, {counted(found.tokens, 'token')}, {found.padding:,} of padding"
    )
    if found.is_in_tail:
        yield "  in the tail of a finite run, or at its end"
    if found.streams_in_tail:
        names = ", ".join(map(escape, found.streams_in_tail))
        yield f"  in their tails, or at their ends: {names}"
    if found.rows_to_replay:
        yield f"  a resume reads {counted(found.rows_to_replay, 'row')} again without token lengths"
    if found.failed:
        yield f"  {counted(found.failed, 'document')} left out (on_error='skip')"
    for start, stop in found.skipped:
        yield f"  rows {start:,} to {stop - 1:,} were skipped"
    yield f"  saved by cloudload {escape(found.cloudload)}; last step: {found.global_batch:,} rows"
    yield "streams"
    width = max(len(escape(each.name)) for each in found.streams)
    for each in found.streams:
        yield (
            f"  {escape(each.name):<{width}}  {each.tokens:,} tokens ({each.share:.1%}), "
            f"{each.documents:,} documents, epoch {each.epoch:.3f}"
        )
    yield "lanes"
    width = max(len(escape(lane.streams[0])) for lane in found.lanes) + 2
    for lane in found.lanes:
        name = f"{escape(lane.streams[0]):<{width}}" if len(found.lanes) > 1 else ""
        yield (
            f"  {name}{found.num_lanes:,} lanes from epoch {lane.first_epoch:.3f} to "
            f"{lane.last_epoch:.3f}, {lane.num_inside:,} of them inside a document"
        )
    yield f"worlds\n  {_describe_worlds(found)}"
    yield "held fixed"
    width = max(map(len, found.held))
    for name, value in found.held.items():
        shown, meaning = show_field(name, value), FIELD_MEANINGS.get(name, "")
        if meaning.startswith("fingerprint"):
            meaning = "fingerprint"  # the rest does not fit in 80 columns
        note = f"  ({meaning})" if meaning and shown != "none" else ""
        yield f"  {escape(name):<{width}}  {escape(shown)}{note}"
    if found.held["packing"] == "best_fit":
        name = state_fields.FAIR_FIELD
        yield f"  {name:<{width}}  {escape(show_field(name, found.fair_start))}"
    yield "read from"
    yield from (f"  {escape(url)}" for url in found.data)
    yield f"  tokenizer {escape(found.tokenizer or 'none, or an object without a name')}"


def _describe_worlds(found: StateDescription) -> str:
    shown = ", ".join(f"{size:,}" for size in found.worlds[:_MOST_WORLDS])
    if len(found.worlds) > _MOST_WORLDS:
        shown += f", … {found.worlds[-1]:,}"
    return f"{shown} ranks; any with token lengths"


def _diff(before: Mapping[str, Any], after: Mapping[str, Any], *, as_json: bool) -> int:
    from cloudload.tools.provenance.describe_state import compare_states, describe_state

    differences = compare_states(before, after)
    is_refused = any(each.rule.startswith("held") for each in differences)
    if as_json:
        print_json(differences)
        return int(is_refused)
    one, other = describe_state(before), describe_state(after)
    if not differences:
        print_text("the states are equal")
        return 0
    print_text(
        f"the second state is {other.steps - one.steps:+,} steps, {other.rows - one.rows:+,} rows "
        f"and {other.tokens - one.tokens:+,} tokens from the first"
    )
    print_text("\n".join(_list_differences(differences)))
    return int(is_refused)


def _diff_with_loader(state: Mapping[str, Any], options: argparse.Namespace) -> int:
    from cloudload.loading import CloudLoader
    from cloudload.tools.provenance.describe_state import compare_with_loader

    arguments = {"batch_size": 1, **read_loader_options(options)}
    alone = {"dp_rank": 0, "dp_world_size": 1, "device_mesh": None, "num_workers": 0}
    with CloudLoader(**{**arguments, **alone}) as loader:
        differences, refusal = compare_with_loader(state, loader)
    if options.json:
        print_json({"differences": differences, "refusal": refusal})
        return int(refusal is not None)
    print_text("\n".join(_list_differences(differences)) or "no difference affects a resume")
    verdict = f"refuses it: {refusal}" if refusal else "continues from it"
    print_text(f"a loader with these options {verdict}")
    return int(refusal is not None)


def _list_differences(differences: list[Difference]) -> Iterator[str]:
    from cloudload.tools.provenance.describe_state import show_field

    for each in differences:
        if each.rule == "position of lanes":
            yield f"  {each.name}: differs ({each.rule})"
        else:
            before, after = (
                escape(show_field(each.name, value)) for value in (each.before, each.after)
            )
            yield f"  {escape(each.name)}: {before} → {after} ({each.rule})"
