"""The system's clocks, and the identity of this boot of the kernel.

The only place of the services that reads a clock; the seam is ``tidemark.clock.Clock``.
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
        """Milliseconds since 1970-01-01 UTC; may step."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never step back within this process."""
        return time.monotonic()

    def boot_ms(self) -> int:
        """Milliseconds since boot, suspend included, equal in all processes."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class BootId(NamedTuple):
    """A random number of this boot of the kernel, in two slots' worth of bits."""

    high: int
    low: int


def boot_id(path: Path = BOOT_ID_PATH) -> BootId:
    """Read which boot this is. Unchanged: what the page cache held is still there.

    Raises OSError or ValueError where the kernel does not tell; guessing one would let a store
    trust a page cache that a power cut has emptied.
    """
    number = uuid.UUID(path.read_text(encoding="ascii").strip()).int
    return BootId(number >> 64, number & _LOW_64)


def utc_offset_s(wall_ms: int) -> int:
    """Local time minus UTC in seconds, at a wall clock time: index files bear local time."""
    return time.localtime(wall_ms / 1000).tm_gmtoff
