"""Interrupt a call at any bytecode of cloudload's own frames, as Ctrl-C or a signal handler would.

visits = count_visits(call)          every bytecode that the call runs, in order
interrupt(call, 17)                  raises KeyboardInterrupt before the 17th of them
run_at(call, 17, handler)            calls `handler` there, in the same thread
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cloudload

PACKAGE = str(Path(cloudload.__file__).parent)
Visit = tuple[CodeType, int]
"""A bytecode: its code and its place in the code."""
_EXIT_CALLS = (("CALL", 2), ("CALL_FUNCTION", 3))


@functools.cache
def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


@functools.cache
def _list_exits(code: CodeType) -> frozenset[int]:
    """The places of a code that are about to call the `__exit__` of a `with` block.

    Python handles no signal between the end of the block and that call.
    """
    instructions, exits = list(dis.get_instructions(code)), set[int]()
    for number, first in enumerate(instructions):
        nones = instructions[number : number + 3]
        call = next((each for each in instructions[number + 3 :] if each.opname != "PRECALL"), None)
        is_exit = _is_none(first) and all(
            _is_none(each) or each.opname == "DUP_TOP" for each in nones
        )
        # Python 3.10 has CALL_FUNCTION, and ROT_TWO for the result of a `return` in the block
        if is_exit and call is not None and (call.opname, call.arg) in _EXIT_CALLS:
            is_result = instructions[number - 1].opname in ("SWAP", "ROT_TWO")
            exits.update(range(instructions[number - is_result].offset, call.offset + 1))
    return frozenset(exits)


def _is_none(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and instruction.argval is None


@contextmanager
def _watching(visit: Callable[[FrameType], None]) -> Iterator[None]:
    """Call `visit` before each bytecode of cloudload's frames in this thread.

    Omits the bytecodes at which Python never handles a signal; see `_list_exits`.
    """

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            if frame.f_lasti not in _list_exits(frame.f_code):
                visit(frame)
            return trace
        is_own = _is_own(frame.f_code)
        if is_own:
            frame.f_trace = trace  # without it, Python 3.13 reports bytecodes from the next call on
        frame.f_trace_opcodes, frame.f_trace_lines = is_own, False
        return trace if is_own else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def count_visits(call: Callable[[], object]) -> list[Visit]:
    """Run a call, and list the bytecodes that it visits."""
    visits: list[Visit] = []
    with _watching(lambda frame: visits.append((frame.f_code, frame.f_lasti))):
        call()
    return visits


def list_edges(visits: list[Visit]) -> list[int]:
    """List the first and the last visit of each distinct bytecode, as indices of visits."""
    first, last = dict[Visit, int](), dict[Visit, int]()
    for number, visit in enumerate(visits):
        first.setdefault(visit, number)
        last[visit] = number
    return sorted({*first.values(), *last.values()})


def run_at(
    call: Callable[[], object], visit: int, handler: Callable[[], object], *, first: str = ""
) -> bool:
    """Run a call, and call `handler` before its visit with index `visit`.

    Visits are counted from the start of the function `first`, if given. Returns False if the call
    has fewer visits. An exception of the handler ends the call.
    """
    left, has_begun = visit, not first

    def count(frame: FrameType) -> None:
        nonlocal left, has_begun
        has_begun = has_begun or frame.f_code.co_name == first
        left -= has_begun
        if left == -1:
            handler()

    with _watching(count):
        call()
    return left < 0


def interrupt(call: Callable[[], object], visit: int, *, first: str = "") -> bool:
    """Interrupt a call before a visit, as for `run_at`. Returns False if it ended before."""
    try:
        run_at(call, visit, _raise, first=first)
    except KeyboardInterrupt:
        return True
    return False


def _raise() -> None:
    raise KeyboardInterrupt
