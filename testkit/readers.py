"""Checks that a reader of the converter must pass, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record
from cloudload.tools.convert.inputs import list_inputs, list_units
from testkit.examples import EXAMPLES

BLOCK_SIZES = (1, 700, 1 << 20)


def read_records(
    inputs: Any, *, block_bytes: int = 1 << 20, keep: Sequence[str] = (), **options: Any
) -> list[Record]:
    """All records of the inputs, in order."""
    settings = {"format": "auto", "split": None} | options
    fields = Fields(["text", "id", *keep])
    return [
        record
        for unit in list_units(list_inputs(inputs, **settings), block_bytes)
        for block in unit.blocks(BlockStart(), block_bytes, fields)
        for record in block.records("text")
    ]


def check_blocks(inputs: Any, *, keep: Sequence[str] = (), **options: Any) -> None:
    """Check that records do not depend on the block size, and that a reader can start at any block.

    For each unit, the check starts readers at no more than `EXAMPLES` evenly spaced blocks.
    """
    settings = {"format": "auto", "split": None} | options
    fields = Fields(["text", "id", *keep])
    expected = read_records(inputs, keep=keep, **options)
    assert len(expected) > 2
    for size in BLOCK_SIZES:
        assert read_records(inputs, block_bytes=size, keep=keep, **options) == expected
        units = list_units(list_inputs(inputs, **settings), size)
        cut = [(unit, list(unit.blocks(BlockStart(), size, fields))) for unit in units]
        assert max(len(blocks) for _, blocks in cut) > 1 or size > 700
        for unit, blocks in cut:
            if unit.size is not None:
                assert sum(block.input_bytes for block in blocks) == unit.size
            for number in range(0, len(blocks), 1 + len(blocks) // EXAMPLES):
                rest = list(unit.blocks(blocks[number].start, size, fields))
                assert list(map(_describe, rest)) == list(map(_describe, blocks[number:]))


def _describe(block: InputBlock) -> tuple[int, int, list[Record]]:
    start = block.start
    return start.offset, start.line, list(block.records("text"))
