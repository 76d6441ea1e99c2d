"""The system's clocks, and the identity of this boot of the kernel.

This is the only module of the services that reads a clock; callers use ``tidemark.clock.Clock``.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final, NamedTuple

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
_LOW_64: Final = (1 << 64) - 1


class SystemClock:
    """The clocks of this machine."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Seconds that never go back within this process."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, including suspend; the same in all processes."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class BootId(NamedTuple):
    """A random 128-bit number of this boot of the kernel, split to fit two position slots."""

    high: int
    low: int


def boot_id(path: Path = BOOT_ID_PATH) -> BootId:
    """Read the id of this boot. While it is unchanged, the page cache has kept its contents.

    Raises OSError or ValueError if the kernel does not provide it. A guessed id would let a store
    trust a page cache that a power cut has emptied.
    """
    number = uuid.UUID(path.read_text(encoding="ascii").strip()).int
    return BootId(number >> 64, number & _LOW_64)


def utc_offset_s(wall_ms: int) -> int:
    """Local time minus UTC in seconds at a wall clock time; index files store local time."""
    return time.localtime(wall_ms / 1000).tm_gmtoff
