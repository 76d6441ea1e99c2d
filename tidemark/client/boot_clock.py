"""The clock that leases and intervals of a member are told by: it goes on while the machine sleeps.

``time.monotonic`` stands still in a suspended machine, and a member that woke up would take its
lease for young. Systems without such a clock get the monotonic one.
"""

from __future__ import annotations

import time


def _system_boot_ms() -> float:
    """Milliseconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def _monotonic_ms() -> float:
    """Milliseconds that never step back, suspend left out."""
    return time.monotonic() * 1000


boot_ms = _system_boot_ms if hasattr(time, "CLOCK_BOOTTIME") else _monotonic_ms
