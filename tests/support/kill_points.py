"""SIGKILL between two instructions, in one process: end running code at its n-th step.

A power cut or SIGKILL may come between any two stores into a mapping, where no operation of the
disk gives a test the chance to crash. The interpreter's own tracing does: it stops the code under
test before its n-th line or bytecode instruction. What ``finally`` blocks then do must not count,
so ``at_kill`` runs first and is where a test keeps the bytes as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from tests.support.sim_disk import SimCrash

PRODUCT: Final = ("/shared/files/", "/services/reput/", "/tidemark/formats/", "/services/broker/")

_Trace = Callable[[FrameType, str, Any], Any]


class Steps:
    """Counts steps; ``taken`` says how far the code got."""

    def __init__(self) -> None:
        self.taken = 0


@contextmanager
def killed_at(
    step: int | None,
    *,
    within: tuple[str, ...] = PRODUCT,
    instructions: bool = False,
    at_kill: Callable[[], None] = lambda: None,
) -> Iterator[Steps]:
    """Raise SimCrash before the step-th line (or instruction) of the named files; None: never.

    within: parts of file names; code elsewhere runs uncounted and is never stopped inside.
    """
    steps = Steps()

    def in_frame(frame: FrameType, event: str, argument: object) -> _Trace:
        if event == ("opcode" if instructions else "line"):
            steps.taken += 1
            if steps.taken == step:
                at_kill()
                raise SimCrash(f"killed at step {step}")
        return in_frame

    def on_call(frame: FrameType, event: str, argument: object) -> _Trace | None:
        name = frame.f_code.co_filename
        if not any(part in name for part in within):
            return None
        frame.f_trace_opcodes = instructions
        frame.f_trace_lines = not instructions
        return in_frame

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield steps
    finally:
        sys.settrace(before)
