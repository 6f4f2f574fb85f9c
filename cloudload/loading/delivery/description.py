"""The values that a loader resolved, and the source of each: argument, data, state or default."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from cloudload.config import DocumentSource, RowsConfig, choices
from cloudload.data import redact
from cloudload.loading.delivery.working_set import (
    count_downloads,
    measure_working_set,
    open_current_orders,
)
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.order import Weights
from cloudload.run import Ending, state_fields
from cloudload.stats import MEASURED_S, DeliveryStats
from cloudload.system import NEVER, counted, reports

GIVEN, DATA, STATE, DEFAULT = "given", "from the data", "from the state", "default"
DERIVED, MEASURED = "from batch_size and ranks", "measured"
DIVIDED = "from global_batch_size and ranks"


@dataclass(frozen=True)
class Setting:
    """One resolved value, which is one line of a `Description`."""

    name: str
    value: Any
    origin: str
    """`given`, `from the data`, `from the state`, `default`, `measured`, or the values from which
    it was computed. An argument that equals the default also counts as `default`."""
    note: str = ""
    """The unit of the value, or details."""

    def __str__(self) -> str:
        shown = f"{self.value:,}" if type(self.value) is int else str(self.value)
        return f"{shown} {self.note}".rstrip()


@dataclass(frozen=True)
class Description:
    """The result of `CloudLoader.describe`: 80 columns in a terminal, a table in a notebook."""

    title: str
    settings: tuple[Setting, ...]

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting. Raises `KeyError` for an unknown name."""
        values = self.as_dict()
        if name not in values:
            close = get_close_matches(name, values, n=2)
            advice = f"Did you mean {' or '.join(close)}?" if close else f"Use {', '.join(values)}"
            raise KeyError(f"describe() has no setting {name!r}. {advice}")
        return values[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name, as plain JSON types."""
        return {setting.name: setting.value for setting in self.settings}

    def __str__(self) -> str:
        return reports.list_values(self.title, self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return reports.render_table(self.title, ("setting", "value", "origin"), self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(each.name, str(each), each.origin) for each in self.settings]


def describe_loader(
    title: str, plan: WorkerPlan, delivered: DeliveryStats, *, is_resumed: bool
) -> Description:
    """List the settings of a plan, with the workers' speed so far, under a title.

    `delivered` has the statistics from which the speed is computed. `is_resumed` is whether the
    plan continues from a loaded state. Builds the orders of the lanes' current epochs, because the
    working set depends on them.
    """
    settings = [
        *_layout(plan, is_resumed),
        *_rows(plan),
        *_tokenizer(plan),
        *_lengths(plan),
        *_ranks(plan, delivered),
        *_cache(plan),
        *_streams(plan),
    ]
    return Description(title, tuple(settings))


def _layout(plan: WorkerPlan, is_resumed: bool) -> Iterator[Setting]:
    config, layout = plan.recipe.config, plan.recipe.layout
    settled = STATE if is_resumed else DATA
    yield Setting("num_lanes", layout.num_lanes, GIVEN if config.num_lanes else settled)
    origin = GIVEN if config.num_canonical_nodes else settled
    yield Setting("num_canonical_nodes", join_numbers(layout.canonical_nodes), origin)
    if config.shuffle:
        origin = GIVEN if config.shuffle_block_size else settled
        blocks = layout.shuffle_block_sizes
        yield Setting("shuffle_block_size", join_numbers(blocks), origin, "documents")


def _rows(plan: WorkerPlan) -> Iterator[Setting]:
    config = plan.recipe.config
    yield Setting("seq_len", config.seq_len, GIVEN, "tokens")
    names = ["packing", "shuffle", "shuffle_algo", "seed", "epochs", "min_tokens", "max_tokens"]
    ending = _ending_of_mixture(plan)
    names += ["stopping"] * (ending is not None) + ["text_key"] * config.has_text
    of_tokens = ["tokens_key", "tokens_dtype", "labels_key", "strip_tokens"]
    names += of_tokens * any(config.token_columns)
    for name in names + ["open_rows"] * (config.packing == "best_fit"):
        yield _option(config, name)
    if config.packing == "best_fit":
        rule = plan.recipe.fields[state_fields.FAIR_FIELD] or None
        yield Setting(state_fields.FAIR_FIELD, rule, DEFAULT if rule else STATE)
    if ending is not None:
        rows = None if ending.end == NEVER else ending.end
        yield Setting("rows", rows, DATA, "in the run")


def _ending_of_mixture(plan: WorkerPlan) -> Ending | None:
    return plan.ending if plan.recipe.config.is_mixed else None


def _option(config: Any, name: str) -> Setting:
    defaults = {option.name: option.default for option in fields(config)}
    value = getattr(config, name)
    return Setting(name, value, DEFAULT if value == defaults[name] else GIVEN)


def _tokenizer(plan: WorkerPlan) -> Iterator[Setting]:
    spec, backend = plan.recipe.tokenizer, plan.inputs.backend
    if spec.json:
        name = json.loads(plan.recipe.sources)["tokenizer"] or "an object"
        note = f"({spec.vocab_size:,} IDs, fingerprint {spec.fingerprint[:12]})"
        yield Setting("tokenizer", name, GIVEN, note)
    else:
        yield Setting("tokenizer", None, DEFAULT, "(all data is pre-tokenized)")
    yield Setting("bos_eos", spec.framing, DATA)
    if spec.row_bos is not None:
        yield Setting("row_bos", spec.row_bos, GIVEN, "at the start of each row")
    origin = DEFAULT if plan.delivery.tokenizer_backend == choices.AUTO else GIVEN
    versions = f"{backend.versions}, " * plan.recipe.tokenizes
    yield Setting("tokenizer_backend", backend.name, origin, f"({versions}because {backend.why})")


def _lengths(plan: WorkerPlan) -> Iterator[Setting]:
    asked, lengths = os.fspath(plan.delivery.lengths), plan.inputs.lengths
    if lengths is not None:
        location, *others = lengths.locations
        note = f"from {location}{f' and {len(others):,} more' if others else ''}"
        yield Setting("lengths", lengths.digest, DATA if asked == choices.AUTO else GIVEN, note)
    else:
        yield Setting("lengths", None, DEFAULT if asked == choices.AUTO else GIVEN)


def _ranks(plan: WorkerPlan, delivered: DeliveryStats) -> Iterator[Setting]:
    share = plan.share
    is_global, shape = plan.delivery.batch_size is None, share.shape
    note = "rows per rank" + ", or 1 less" * (share.global_batch % share.world_size > 0)
    if shape.num_batches > 1:
        note += f", in {shape.num_batches} batches of {counted(shape.batch_rows, 'row')}"
    yield Setting("batch_size", shape.rank_rows, DIVIDED if is_global else GIVEN, note)
    note = f"rows on {counted(share.world_size, 'rank')}"
    yield Setting("global_batch", share.global_batch, GIVEN if is_global else DERIVED, note)
    if plan.delivery.balance is not None:
        note = f"among the {counted(len(share.machine_ranks), 'rank')} of this node"
        yield Setting("balance", plan.delivery.balance, GIVEN, note)
    yield _workers(plan)
    rate = delivered.tokens_per_s(share.num_workers)
    note = f"(known after {MEASURED_S} s of work, not counting the start)"
    if rate is not None:
        note = "that one rank's workers can make, not counting their start"
    yield Setting("tokens_per_s", None if rate is None else round(rate), MEASURED, note)


def _workers(plan: WorkerPlan) -> Setting:
    asked, used = plan.delivery.num_workers, plan.share.num_workers
    origin = DEFAULT if asked is None else GIVEN
    if asked == 0:
        return Setting("num_workers", 0, origin, "(this process makes the rows)")
    note = "per rank"
    if asked not in (None, used):
        note += f", not {asked:,}, because a rank has no more lanes"
    return Setting("num_workers", used, origin, note)


def _cache(plan: WorkerPlan) -> Iterator[Setting]:
    orders = open_current_orders(plan.inputs, plan.share, plan.position)
    downloads = count_downloads(plan.delivery, plan.share)
    needed = measure_working_set(plan.recipe, orders, plan.share.machine_lanes, downloads)
    yield Setting("working_set_bytes", needed, DATA, "bytes of shards that this node uses at once")
    limit = plan.delivery.cache_limit_bytes()
    yield Setting("cache_limit_bytes", limit, DEFAULT if limit is None else GIVEN)
    yield Setting("local", str(plan.inputs.cache_root), GIVEN if plan.delivery.local else DEFAULT)


def _streams(plan: WorkerPlan) -> Iterator[Setting]:
    recipe = plan.recipe
    weights = dict(zip(recipe.mixture.names, _find_weights(plan), strict=True))
    ending = _ending_of_mixture(plan)
    for stream, label in enumerate(recipe.labels):
        dataset = recipe.corpus.datasets[stream]
        samples = int(dataset.table.samples.sum())
        share = f", weight {weights[label]:g}" if recipe.config.is_mixed else ""
        if ending is not None and ending.stream_ends[stream] < NEVER:
            share += f", ends at row {ending.stream_ends[stream]:,}"
        kind = _describe_source(recipe.config.sources[stream], recipe.config)
        url = redact(recipe.config.streams[stream].url)
        shards = counted(len(dataset.shards), "shard")
        if dataset.num_left_out:
            total = len(dataset.shards) + dataset.num_left_out
            shards = f"the first {len(dataset.shards):,} of {counted(total, 'shard')}"
        if (selected := recipe.selected[stream]) is not None:
            share = f", of which {selected.num_selected:,} are selected{share}"
        note = f"samples{kind} in {shards}{share}, from {url}"
        origin = STATE if dataset.num_left_out else DATA
        yield Setting(f"stream {label}", samples, origin, note)


def _describe_source(source: DocumentSource, config: RowsConfig) -> str:
    """What the documents of a stream are made of, unless the loader's options say it."""
    if source.tokens is not None:
        return f" of token IDs in column {source.tokens.key!r}"
    if source.chat is not None:
        return " of conversations"
    if source.encode is not None:
        return f" for encode {source.encode_name}"
    if source.transform is not None:
        return f" for transform {source.transform_name}"
    return f" of text in column {source.text_key!r}" if source.text_key != config.text_key else ""


def _find_weights(plan: WorkerPlan) -> Weights:
    """Return the last weights in a mixture's schedule, or the current ones if its streams end."""
    mixture = plan.recipe.mixture
    if plan.ending is not None:
        return mixture.weights_at(plan.position.rows)
    return mixture.schedule[-1][1]


def join_numbers(numbers: tuple[int, ...]) -> int | str:
    """Return the number if all are equal, otherwise all of them as text, separated by commas."""
    return numbers[0] if len(set(numbers)) == 1 else ", ".join(f"{number:,}" for number in numbers)
