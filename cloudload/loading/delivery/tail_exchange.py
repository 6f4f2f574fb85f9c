"""Compute the same tail on all ranks, once a lane of a finite run cannot fill its row.

    each rank: sizes of the documents left in its lanes ─► one message ─► exchanged
    every rank: sizes by lane ─► packed as one sequence ─► the same Tail

The plan is in the phase `Measuring`, at the position where the lanes ended.

    message    virtual index | number of discarded tokens | sizes of documents, by lane

With token lengths, each rank knows the sizes, so the messages do not contain any.
Discarded tokens are the rank's tokens before the dry row in the batch in which the lanes ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.loading.workers.block import Block
from cloudload.loading.workers.plan import Foreseen, Plan
from cloudload.rows.packing.tables import CURSOR_ORDINAL, REMNANT_SIZE, SIZE_ABSENT
from cloudload.rows.packing.tail import Stages, Tail, counts_of_sizes
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Position
from cloudload.run.run_tail import pack_run_tail
from cloudload.stats import TOKENS
from cloudload.system.arrays import Ints

_HEADER = 2


def join_sizes(plan: Plan, blocks: Sequence[Block], tokens_before_end: int) -> Ints:
    """Build this rank's message: int64 [n].

    `blocks` are the workers' blocks of sizes; empty if token lengths are known.
    `tokens_before_end` is the number of discarded tokens.
    """
    sizes: dict[int, Ints] = {}
    for worker, block in enumerate(blocks):
        lanes = plan.own_lanes(worker)
        stops = np.cumsum([_num_left(plan, lane) for lane in lanes])
        sizes.update(zip(lanes, np.split(block.lengths, stops[:-1]), strict=True))
    header = np.array([plan.world_index, tokens_before_end], np.int64)
    return np.concatenate([header, *(sizes[lane] for lane in sorted(sizes))])


def pack_rest(plan: Plan, stages: Stages, messages: Sequence[Ints]) -> Tail:
    """Pack the tail from the messages of all ranks.

    `stages` are the tail's stages at the position; empty if the run did not resume in its tail.
    Raises `StreamChangedError` if the position does not match the documents, and `DatasetError` if
    the whole run has no tokens.
    """
    if plan.lengths is not None:
        lengths = RunLengths(plan.recipe, plan.cache_root, plan.lengths)
        return lengths.pack_rest(plan.phase.start, plan.position.lanes.arrays, stages)
    return pack_run_tail(
        plan.recipe,
        start=plan.phase.start,
        stages=stages,
        ended=plan.position.lanes.arrays,
        sizes=_sizes_by_lane(plan, messages),
    )


def sum_tokens(messages: Sequence[Ints]) -> int:
    """Return the number of tokens that all ranks discarded, from their messages."""
    return sum(int(message[1]) for message in messages)


def find_lanes_end(plan: Plan) -> Position:
    """Return the plan's position, which in the phase `Foreseen` has the lanes at their end."""
    if not isinstance(plan.phase, Foreseen):
        return plan.position
    ended = plan.phase.ending.lanes
    return plan.position.with_lanes(cursors=ended.cursors, residues=ended.residues)


def count_rest(plan: Plan, position: Position, discarded: int) -> tuple[int, Ints]:
    """Return the number of tokens that are left over when a run ends at a position.

    Also returns the statistics of the documents that are not counted with any row: int64 [streams,
    counts]. The position may be before the tail. `discarded` is the number of tokens, on all ranks,
    in rows that were discarded although the lanes filled them. It is not used in the phase
    `Foreseen`.
    """
    tail = plan.tail
    assert tail is not None
    dropped, uncounted = tail.num_tokens(position.rows), np.zeros_like(position.counts)
    if position.rows < plan.phase.start:
        dropped += count_discarded(plan, position, discarded)
    elif not tail.num_rows:
        uncounted = count_remnants(plan, tail.remnants)
    return dropped, uncounted


def count_discarded(plan: Plan, position: Position, discarded: int) -> int:
    """Count the tokens of all ranks from a position to the row at which the lanes end.

    In the phase `Foreseen`, the number is computed from the lanes. Otherwise, it is `discarded`.
    """
    if not isinstance(plan.phase, Foreseen):
        return discarded
    left = plan.phase.ending.lanes.counts - position.counts
    return int(left[:, TOKENS].sum())


def count_remnants(plan: Plan, remnants: Ints) -> Ints:
    """Count the documents of a tail that has no rows, because no document has tokens left.

    `remnants` is int64 [remnants, 5]. Returns int64 [streams, counts].
    """
    recipe = plan.recipe
    [component] = recipe.components
    orders, counts = component.orders(plan.cache_root), np.zeros_like(plan.position.counts)
    remnants = remnants[remnants[:, REMNANT_SIZE] != SIZE_ABSENT]
    counted = counts_of_sizes(remnants[:, REMNANT_SIZE]).tolist()
    for (lane, ordinal, *_), count in zip(remnants.tolist(), counted, strict=True):
        epoch, position = component.lanes.epoch_position(lane, ordinal)
        counts[recipe.corpus.streams_of(orders(epoch)[position]), count] += 1
    return counts


def _sizes_by_lane(plan: Plan, messages: Sequence[Ints]) -> list[Ints]:
    sizes: list[Ints] = [np.empty(0, np.int64)] * plan.num_lanes
    for message in messages:
        lanes = range(int(message[0]), plan.num_lanes, plan.world_size)
        stops = _HEADER + np.cumsum([_num_left(plan, lane) for lane in lanes])
        parts = np.split(message, [_HEADER, *stops.tolist()])[1:-1]
        for lane, part in zip(lanes, parts, strict=True):
            sizes[lane] = part
    return sizes


def _num_left(plan: Plan, lane: int) -> int:
    """Return the number of ordinals, including holes, left in a lane at the plan's position."""
    end = plan.recipe.components[0].lanes.end(lane) or 0
    return end - int(plan.position.cursors[0, lane, CURSOR_ORDINAL])
