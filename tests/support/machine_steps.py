"""SIGKILL between two machine instructions: every content of shared memory while code runs.

Compiled code has no lines at which ``kill_points`` could stop it. But a process can be run one
instruction at a time by its parent (ptrace): what shared memory holds after each of them is what a
SIGKILL at that place would leave, the compiler's order of stores included.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Final

TRACE_ME: Final = 0
CONTINUE_ONE_INSTRUCTION: Final = 9
SEIZE: Final = 0x4206
SET_TRACER: Final = 0x59616D61
ANY_PROCESS: Final = -1
ANY_CHILD: Final = 0x40000000
"""For waitpid: also threads, and processes that are no children of this one."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_LIBC.ptrace.restype = ctypes.c_long


def shared_memory(size: int) -> mmap.mmap:
    """Zeros that a child process shares."""
    return mmap.mmap(-1, size)


def states_between_instructions(memory: mmap.mmap, act: Callable[[], object]) -> list[bytes]:
    """Every different content of memory while act ran, first and last included.

    act runs in a child process: nothing but memory shows what it did.
    """
    states = [memory[:]]
    child = os.fork()
    if child == 0:
        _run_traced(act)
    steps = 0
    try:
        _wait_for_stop(child, signal.SIGSTOP)
        while True:
            _ptrace(CONTINUE_ONE_INSTRUCTION, child)
            stopped_by = _wait_for_stop(child)
            now = memory[:]
            if now != states[-1]:
                states.append(now)
            if stopped_by != signal.SIGTRAP:
                break
            steps += 1
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it ended by itself
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert stopped_by == signal.SIGSTOP, f"the child got signal {stopped_by} at step {steps}"
    return states


def _run_traced(act: Callable[[], object]) -> None:
    """Run in the child: stop, act, stop, and be ended by the parent. Exit 1: act has raised."""
    try:
        _ptrace(TRACE_ME, 0)
        signal.raise_signal(signal.SIGSTOP)
        act()
        signal.raise_signal(signal.SIGSTOP)
    finally:
        traceback.print_exc()
        os._exit(1)


def _ptrace(request: int, process: int) -> None:
    if _LIBC.ptrace(request, process, None, None) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


def _wait_for_stop(process: int, expected: int | None = None) -> int:
    """The signal that stopped the process; AssertionError if it ended instead."""
    _, status = os.waitpid(process, 0)
    assert os.WIFSTOPPED(status), f"the child ended with status {status}"
    stopped_by = os.WSTOPSIG(status)
    assert expected is None or stopped_by == expected
    return stopped_by


def kill_this_process_after(instructions: int) -> None:
    """Return, run that many more instructions of this thread, and SIGKILL the process, for real."""
    _LIBC.prctl(SET_TRACER, ctypes.c_ulong(ANY_PROCESS))  # refused where nothing forbids it
    thread, process = threading.get_native_id(), os.getpid()
    ready, tell = os.pipe()
    if os.fork() == 0:
        try:
            _ptrace(SEIZE, thread)
            os.write(tell, b"1")
            os.waitpid(thread, ANY_CHILD)  # the SIGSTOP below; it never arrives
            for _ in range(instructions):
                _ptrace(CONTINUE_ONE_INSTRUCTION, thread)
                os.waitpid(thread, ANY_CHILD)
        finally:
            os.kill(process, signal.SIGKILL)
            os._exit(0)
    os.close(tell)
    os.read(ready, 1)
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
