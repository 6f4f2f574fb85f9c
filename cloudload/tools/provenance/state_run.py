"""Open the run of a state, create loaders that continue it, and divide a run among its states.

    states after steps     100, seq_len 512    200, seq_len 1024
    steps 101 to 200       from the first state, with the options of the second
    steps 201 and later    from the second state, with its options

Several states divide a run, because options may change at a resume. A state records the options in
effect when it was saved. It therefore shows a change made at the resume from the previous state,
but no later change.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from cloudload.config import (
    Encode,
    Stream,
    Transform,
    alone,
    choices,
    name_streams,
    read_given_id,
)
from cloudload.data import explain
from cloudload.errors import StreamChangedError
from cloudload.loading import CloudLoader, LoneEnvironment, use_environment
from cloudload.rows import WITHOUT_TOKENIZER
from cloudload.run import ACCEPTABLE_FIELDS, Saved, read_sources, read_state, state_fields


@dataclass(frozen=True)
class Run:
    """A run: one of its states, and the arguments that create its loader."""

    state: Mapping[str, Any]
    arguments: Mapping[str, Any]
    """Keyword arguments of `CloudLoader`. Arguments of `loader` override them."""
    global_batch: int
    """Number of rows per step."""
    last_step: int | None = None
    """The last step of this part of the run; None for the last part. See `open_runs`."""
    on_change: Mapping[str, str] = field(default_factory=dict)
    """The changes that the run accepted after the state; see `CloudLoader.load_state_dict`."""

    @property
    def labels(self) -> list[str]:
        """The names of the run's streams, in order."""
        return [stream.label for stream in self.arguments["data"]]

    @cached_property
    def saved(self) -> Saved:
        """The parsed state.

        Raises `StreamChangedError` if it is damaged, has a different format version, or is only
        one rank's part.
        """
        return read_state(self.state)

    @property
    def can_end(self) -> bool:
        """Whether the run, or a stream of its mixture, ends after a number of epochs."""
        capped = [stream for stream in self.arguments["data"] if stream.max_epochs is not None]
        return self.arguments["epochs"] is not None or bool(capped)

    def loader(self, **delivery: Any) -> CloudLoader:
        """Create a loader at the state's position.

        `delivery` takes options of `DeliveryConfig`. Raises the errors of `CloudLoader` and of its
        `load_state_dict`.
        """
        loader = CloudLoader(**{**self.arguments, **delivery})
        # the rows are read as they are before a `row_hook`
        known = {name: each for name, each in self.state.items() if name != state_fields.HOOK_FIELD}
        loader.load_state_dict(known, on_change=self.on_change)
        return loader

    def rows_of_step(self, step: int) -> range:
        """Return the rows of a step, as indices in the run.

        Raises `ValueError` for a step that is not after the state.
        """
        position = self.saved.position
        if step <= position.batches:
            raise ValueError(
                f"step {step:,} is too early, because the state was saved after step "
                f"{position.batches:,}. Use a later step or an earlier state"
            )
        start = position.rows + (step - 1 - position.batches) * self.global_batch
        return range(start, start + self.global_batch)

    def step_of_row(self, row: int) -> int:
        """Return the step that contains a row after the state. `row` is an index in the run."""
        position = self.saved.position
        return position.batches + 1 + (row - position.rows) // self.global_batch


def open_run(
    state: Mapping[str, Any],
    *,
    data: list[str] | None = None,
    tokenizer: Any = None,
    transform: Transform | str | None = None,
    encode: Encode | str | None = None,
    global_batch: int | None = None,
    lengths: str | os.PathLike[str] | None = None,
) -> Run:
    """Open the run that a state belongs to.

    Args:
        state: a state of the run.
        data: a URL for each stream, if the data has moved.
        tokenizer: the tokenizer, if it has moved or the state does not record it.
        transform: the run's transform, if it had one: a function, or `module:function`.
        encode: the run's `encode` function, if it had one, likewise.
        global_batch: rows per step, if the state was saved before the first batch.
        lengths: folder or URL of the token lengths, if they are not with the data.

    Raises:
        StreamChangedError: the state is damaged, or has no tokenizer and none is passed.
        ValueError: another argument is missing or invalid.
    """
    saved = read_state(state)
    sources = read_sources(state["sources"])
    tokenizer = tokenizer or sources.tokenizer
    if tokenizer is None and state["tokenizer"] != WITHOUT_TOKENIZER:
        raise StreamChangedError(
            "the state does not record the tokenizer's location. Pass the tokenizer (--tokenizer)"
        )
    if sources.own_transforms:
        raise ValueError(
            f"{sources.own_transforms[0]} has a transform or encode of its own, which a state does "
            "not store. Create the loader with the same streams, load the state, and use "
            "loader.trace"
        )
    functions = _find_functions(saved.fields, {"transform": transform, "encode": encode})
    global_batch = global_batch or saved.position.global_batch
    if not global_batch:
        raise ValueError(
            "the state was saved before the first batch, so it does not record the rows per step. "
            "Pass the number of rows per step (--global-batch)"
        )
    streams = name_streams(_move_streams(sources.streams, data))
    names = [stream.label for stream in streams]
    schedule = [
        (row, dict(zip(names, weights, strict=False))) for row, weights in saved.mixture.schedule
    ]
    arguments = {
        **{name: saved.fields[name] for name in state_fields.HELD_CONFIG_FIELDS},
        "data": list(streams),
        "tokenizer": tokenizer,
        **functions,
        "seq_len": saved.seq_len,
        "num_lanes": saved.layout.num_lanes,
        "bos": sources.bos,
        "eos": sources.eos,
        "tokens_key": sources.tokens_key,
        "tokens_dtype": sources.tokens_dtype,
        "labels_key": sources.labels_key,
        "chat": sources.chat,
        "fim": sources.fim,
        "text_key": sources.text_key or saved.fields["text_key"],
        "strip_tokens": saved.strip_tokens,
        "row_bos": saved.fields[state_fields.ROW_BOS_FIELD],
        "pad_documents_to": saved.fields[state_fields.MULTIPLE_FIELD] or 1,
        "schedule": schedule if sources.is_mixed else None,
        "stopping": saved.stopping,
        "lengths": choices.AUTO if lengths is None else lengths,
    }
    return Run(state, arguments, global_batch)


def start_run(global_batch: int, **options: Any) -> Run:
    """Open the run of a loader with the given options, at its beginning.

    `options` takes arguments of `CloudLoader`, such as the result of `config_from_yaml`. The batch
    size and the world have no effect. Raises the errors of `CloudLoader` and of `open_run`.
    """
    with CloudLoader(**{**options, **alone(global_batch)}) as loader:
        state = loader.state_dict()
    given = {name: options.get(name) for name in ("tokenizer", "transform", "encode", "lengths")}
    return open_run(state, **given, global_batch=global_batch)


def _find_functions(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions of a run and their IDs, as arguments of `CloudLoader`.

    `saved` are the fields of a state. `given` has functions or their names, by option. Raises
    `ValueError` for a function that is missing or cannot be imported.
    """
    found: dict[str, Any] = {}
    for option, function in given.items():
        name = _read_name(saved[option], is_quoted=option == state_fields.ENCODE_FIELD)
        if function is None and name:
            raise ValueError(f"the run used the {option} {name!r}. Pass the same one (--{option})")
        found[option] = function
        if isinstance(function, str):
            found[option] = import_function(option, function)
        found[f"{option}_id"] = read_given_id(option, name)
    return found


def _read_name(saved: str | None, *, is_quoted: bool) -> str | None:
    """Return the name of the loader's function in a field, which may have an item per stream."""
    names = {unquote(name) for name in (saved or "").split(",") if name}
    is_joined = is_quoted or "," in (saved or "")
    return names.pop() if is_joined and len(names) == 1 else (saved or "").strip(",") or None


def _move_streams(streams: list[Stream], data: list[str] | None) -> list[Stream]:
    if data is None:
        return streams
    if len(data) != len(streams):
        raise ValueError(
            f"data has {len(data)} locations, but the state has {len(streams)} streams. Pass one "
            "location for each stream (--data)"
        )
    pairs = zip(streams, data, strict=True)
    return [replace(stream, remote=url, split=None) for stream, url in pairs]


def import_function(option: str, path: str) -> Any:
    """Import the function of an option, given as `module:function`.

    Raises `ValueError` if that fails.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the module may raise anything
        raise ValueError(
            f"{option} {path!r} cannot be imported ({explain(error)}). Use "
            "module:function, with the module's folder in PYTHONPATH"
        ) from error


def open_lane(run: Run, lane: int, batch_size: int, delivery: Mapping[str, Any]) -> CloudLoader:
    """Create a loader that reads one lane, as the lane's rank in a world with one rank per lane."""
    options = {**delivery, "num_workers": 0}
    with use_environment(LoneEnvironment()):
        return run.loader(
            batch_size=batch_size, dp_rank=lane, dp_world_size=run.saved.layout.num_lanes, **options
        )


def open_runs(states: Sequence[Mapping[str, Any]], **options: Any) -> list[Run]:
    """Open the parts of a run between its `states`, which may be in any order, and after the last.

    Pass every state from which the run was resumed with other options, and at least one that was
    saved after each such resume. `options` takes the options of `open_run`; `global_batch` applies
    after the last state. Raises the errors of `open_run`, and `ValueError` if there are no states,
    or if the rows per step changed more than once between two states.
    """
    if not states:
        raise ValueError("no states were passed. Pass at least one state")
    global_batch = options.pop("global_batch", None)
    runs: list[Run] = []
    for number, state in enumerate(ordered := sorted(states, key=_num_batches)):
        is_last = number == len(ordered) - 1
        has_own_batch = _num_batches(state) > 0 and not (is_last and global_batch)
        run = open_run(state, global_batch=None if has_own_batch else global_batch, **options)
        if runs:
            runs[-1] = _end_at(runs[-1], run)
        runs.append(run)
    return runs


def split_steps(runs: Sequence[Run], steps: range) -> Iterator[tuple[Run, range]]:
    """Yield each part of a run that contains some of `steps`, and these steps as a range.

    Steps before the first state are yielded with the first part, whose methods refuse them.
    """
    start = steps.start
    for run in runs:
        stop = steps.stop if run.last_step is None else min(steps.stop, run.last_step + 1)
        if start < stop:
            yield run, range(start, stop)
            start = stop


def _num_batches(state: Mapping[str, Any]) -> int:
    return read_state(state).position.batches


def _end_at(run: Run, later: Run) -> Run:
    """Return the part of a run from its state to that of `later`, with the options of `later`."""
    start, end = run.saved.position, later.saved.position
    steps, rows = end.batches - start.batches, end.rows - start.rows
    if rows != steps * end.global_batch:
        raise ValueError(
            f"the states after steps {start.batches:,} and {end.batches:,} are {rows:,} rows "
            f"apart, but {steps:,} steps of {end.global_batch:,} rows have "
            f"{steps * end.global_batch:,} rows. Either the number of rows per step changed more "
            "than once between the states, or seek moved the loader. Also pass the states that "
            "were saved between them, or leave out the earlier state"
        )
    changed = [name for name in ACCEPTABLE_FIELDS if run.state.get(name) != later.state.get(name)]
    return replace(
        later,
        state=run.state,
        global_batch=end.global_batch,
        last_step=end.batches,
        on_change=dict.fromkeys(changed, "accept"),
    )
