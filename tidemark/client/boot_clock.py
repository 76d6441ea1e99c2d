"""The clock for a member's leases and intervals. It continues while the machine is suspended.

``time.monotonic`` stops in a suspended machine, so a member that resumes would still consider an
expired lease valid. Systems without a boot-time clock use the monotonic one.
"""

from __future__ import annotations

import time


def _system_boot_ms() -> float:
    """Milliseconds since boot, including time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def _monotonic_ms() -> float:
    """Milliseconds of a monotonic clock, without time in suspend."""
    return time.monotonic() * 1000


boot_ms = _system_boot_ms if hasattr(time, "CLOCK_BOOTTIME") else _monotonic_ms
