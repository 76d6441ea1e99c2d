"""mlock of a whole file through its own mapping. Part of the real disk (``os_disk``).

Python's mmap has no mlock, and gives its address only for a writable mapping. So this module calls
the C library directly.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

PROT_READ: Final = 1
MAP_SHARED: Final = 1
MAP_FAILED: Final = ctypes.c_void_p(-1).value

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_LIBC.mlock.argtypes = _LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class OsPageLock:
    """Keeps the pages of a file in memory until ``release`` or the end of the process."""

    __slots__ = ("_address", "_size")

    def __init__(self, descriptor: int, size: int) -> None:
        """Read and lock the whole file. Raises OSError: ENOMEM, EPERM or EAGAIN if the system does
        not allow it."""
        address = _LIBC.mmap(None, size, PROT_READ, MAP_SHARED, descriptor, 0)
        if address == MAP_FAILED:
            raise _last_error()
        if _LIBC.mlock(address, size) != 0:
            error = _last_error()
            _LIBC.munmap(address, size)
            raise error
        self._address: int | None = address
        self._size = size

    def release(self) -> None:
        """Unmap, which also unlocks; a second call does nothing."""
        address, self._address = self._address, None
        if address is not None:
            _LIBC.munmap(address, self._size)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
