"""SIGBUS handler: reports which mapped file could not be read before the process ends.

The kernel sends SIGBUS to a process that touches a mapped page whose file was truncated meanwhile,
or whose block the disk cannot read. Without a handler the process ends without a message. The
handler runs Python code on the thread that received the signal. That is safe: the thread was
reading a mapping, so it holds no lock of the allocator or of a stream, and it never continues.
Linux only; on other systems nothing changes.
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
"""The handler is removed on entry, so a second SIGBUS inside it ends the process by default."""
ADDRESS_AT: Final = 16
"""Offset of the faulting address in siginfo_t on 64-bit machines."""
DELETED: Final = " (deleted)"


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Place(NamedTuple):
    """A file and the offset in it that are mapped at an address."""

    path: Path
    offset: int
    """Offset in the file."""


_kept: list[object] = []
"""Keeps the handler alive: the kernel holds only its address, so Python must not free it."""


def name_bus_errors(end: Callable[[StoreError], int]) -> None:
    """Install a handler: a SIGBUS ends this process with the status that ``end`` returns.

    end: reports the error and returns the exit status. Call this once, before any file is mapped.
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
    """Return the file mapped at an address according to ``/proc/self/maps``, or None."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in fields[0].split("-"))
        if low <= address < high and len(fields) == 6 and fields[5].startswith("/"):
            return Place(Path(fields[5]), address - low + int(fields[2], 16))
    return None


def bus_error(place: Place | None) -> StoreError:
    """Return the error that a SIGBUS at that place means."""
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
