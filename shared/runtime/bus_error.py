"""What a read through a mapping meets when the file is not there: SIGBUS, with a sentence.

The kernel sends it to a process that touches a mapped page whose file was cut meanwhile, or whose
block the disk does not give back. Without a handler the process ends without a word. The handler
runs Python on the thread that met it: that thread was reading a mapping, hence inside no lock of
the allocator or of a stream, and never goes on. Linux only; elsewhere nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.errors import DamagedFile, ReadFailed, StoreError

SA_SIGINFO: Final = 4
SA_RESETHAND: Final = 0x80000000
"""A second SIGBUS, inside the handler, ends the process as if there were none."""
ADDRESS_AT: Final = 16
"""Where siginfo_t holds the address that was touched, on 64-bit machines."""
DELETED: Final = " (deleted)"


class _Action(ctypes.Structure):
    """glibc's and musl's ``struct sigaction``."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Place(NamedTuple):
    """What is mapped at an address."""

    path: Path
    offset: int
    """In the file."""


_kept: list[object] = []
"""The handler of this process: the kernel knows its address, and Python must not free it."""


def name_bus_errors(end: Callable[[StoreError], int]) -> None:
    """From now on a SIGBUS ends this process with the status that ``end`` returns.

    end: reports why the process ends. Call it once, before any file is mapped.
    """
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return

    def handle(_signum: int, info: int, _context: int) -> None:
        address = ctypes.c_uint64.from_address(info + ADDRESS_AT).value
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
        os._exit(end(bus_error(place_of(maps, address))))

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    handler = kind(handle)
    action = _Action(
        handler=ctypes.cast(handler, ctypes.c_void_p),
        flags=ctypes.c_int(SA_SIGINFO | SA_RESETHAND).value,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), None) == 0:
        _kept.append(handler)


def place_of(maps: str, address: int) -> Place | None:
    """The file mapped at an address, by ``/proc/self/maps``; None if there is none."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in fields[0].split("-"))
        if low <= address < high and len(fields) == 6 and fields[5].startswith("/"):
            return Place(Path(fields[5]), address - low + int(fields[2], 16))
    return None


def bus_error(place: Place | None) -> StoreError:
    """What a SIGBUS at that place of a file means."""
    if place is None:
        return ReadFailed(
            "memory of this process could not be read (SIGBUS). What was acknowledged at disk is "
            "safe.",
            "Look at the kernel's log for errors of memory or disk, then start again.",
        )
    path = Path(str(place.path).removesuffix(DELETED))
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    if place.offset >= size:
        return DamagedFile(
            f"{path} was cut to {size} bytes, or taken away, while this process had it mapped: "
            f"byte {place.offset} could not be read. The process ends; nothing was changed.",
            "Put the file back if it belongs to commitlog/, then start again; the start says what "
            "is missing, and makes anew what can be made from the log.",
            path=path,
            size=size,
            offset=place.offset,
        )
    return ReadFailed(
        f"the disk did not give back byte {place.offset} of {path} through a mapping. The process "
        "ends; nothing was changed.",
        "Look at the kernel's log for errors of this disk (dmesg, smartctl). If they last, move "
        "the store to another disk, or copy it from another replica.",
        path=path,
        offset=place.offset,
    )
