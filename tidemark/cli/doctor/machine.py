"""Checks this machine: its clocks, its limits for a process, and the Python in use.

Limits are those of the current process. A service that was started differently (a unit, a pod) has
its own, which its metrics show (``process_max_fds``).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidemark import __version__
from tidemark.cli.doctor.findings import About, Check, Finding
from tidemark.formats import native

MAPPED_FILES: Final = 64
QUEUE_FILES: Final = 512
CONNECTIONS: Final = 2048
"""Defaults of ``mapped_files_max``, ``queue_files_mapped_max`` and ``connections_max``."""
OTHER_DESCRIPTORS: Final = 256
OTHER_MAPPINGS: Final = 2048
"""Mappings of shared libraries, thread stacks and arenas."""
LOCKED_FILES: Final = 3
WATCH_S: Final = 1.0
STEP_MAX_MS: Final = 20.0
_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5
_MAX_ERROR_AT: Final = 3 * ctypes.sizeof(ctypes.c_long)
_TIMEX_SIZE: Final = 512
"""Size of the buffer in bytes; the kernel's struct timex has 208."""


def checks(settings: Mapping[str, Any] | None) -> list[Check]:
    """Return the checks. settings: the broker's, if known."""
    known = settings or {}
    return [
        Check("clock.boot", "this machine", lambda: [boot_clock()]),
        Check("clock.steps", "this machine", lambda: [steps()]),
        Check("clock.synchronised", "this machine", lambda: [synchronised()]),
        Check("limits.files", "this process", lambda: [open_files(known)]),
        Check("limits.mappings", "this machine", lambda: [mappings(known)]),
        Check("limits.memory-lock", "this process", lambda: memory_lock(known)),
        Check("python", "this process", lambda: [python()]),
    ]


def boot_clock() -> Finding:
    """Check that there is a clock that continues during suspend, since leases need it."""
    at = About("clock.boot", "this machine")
    try:
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError) as error:
        return at.error(
            "doctor-no-boot-clock",
            f"there is no CLOCK_BOOTTIME: {error}; a master would not notice a suspend",
            "Run nodes on Linux 2.6.39 or newer.",
        )
    cause = f"CLOCK_BOOTTIME is available: up for {seconds / 3600:.1f} h"
    return at.ok(cause, value=round(seconds), unit="s")


def steps() -> Finding:
    """Check for a second that the wall clock does not step."""
    before = time.time() - time.monotonic()
    time.sleep(WATCH_S)
    moved_ms = 1000 * (time.time() - time.monotonic() - before)
    cause = f"the wall clock moved {moved_ms:+.1f} ms against the monotonic one in {WATCH_S:.0f} s"
    finding = About("clock.steps", "this machine").warning(
        "doctor-clock-wrong",
        cause,
        "Let one service set the clock, and let it slew instead of step.",
        value=round(moved_ms, 1),
        limit=STEP_MAX_MS,
        unit="ms",
    )
    return finding.unless(abs(moved_ms) <= STEP_MAX_MS)


def synchronised() -> Finding:
    """Check that the kernel considers its clock synchronised (adjtimex, read only)."""
    at = About("clock.synchronised", "this machine")
    buffer = ctypes.create_string_buffer(_TIMEX_SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(buffer)
    if state < 0:
        reason = errno.errorcode.get(ctypes.get_errno(), "?")
        return at.unknown(f"adjtimex failed: {reason}")
    # struct timex: modes, offset, freq, maxerror, esterror, status: an int, then longs.
    size = ctypes.sizeof(ctypes.c_long)
    max_error_us = ctypes.c_long.from_buffer(buffer, _MAX_ERROR_AT).value
    status = ctypes.c_int.from_buffer(buffer, 5 * size).value
    error_ms = max_error_us / 1000
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        return at.warning(
            "doctor-clock-wrong",
            "this machine's clock is not synchronised, as the kernel reports",
            "Run chrony or systemd-timesyncd. Message times, retention and delays depend on "
            "the wall clock; leases do not.",
            value=error_ms,
            unit="ms",
        )
    cause = f"synchronised, with an error of at most {error_ms:.1f} ms"
    return at.ok(cause, value=error_ms, unit="ms")


def open_files(settings: Mapping[str, Any]) -> Finding:
    """Check the limit of descriptors: one per mapped file and per connection."""
    shape = settings.get("store") or {}
    needed = (
        int(shape.get("mapped_files_max", MAPPED_FILES))
        + int(shape.get("queue_files_mapped_max", QUEUE_FILES))
        + int(settings.get("connections_max", CONNECTIONS))
        + OTHER_DESCRIPTORS
    )
    return _descriptors(needed, "a broker")


def connections(settings: Mapping[str, Any]) -> Finding:
    """Check the limit of descriptors of a name service: one per connection."""
    return _descriptors(int(settings["connections_max"]) + OTHER_DESCRIPTORS, "a name service")


def _descriptors(needed: int, service: str) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if soft == resource.RLIM_INFINITY else soft
    finding = About("limits.files", "this process").error(
        "doctor-limit-low",
        f"{_limit(soft)} open files are allowed (hard limit {_limit(hard)}); {service} with these "
        f"settings may need {needed}",
        f"ulimit -n {needed}, LimitNOFILE= of the unit, or lower connections_max.",
        value=allowed,
        limit=needed,
        unit="descriptors",
    )
    return finding.unless(allowed >= needed)


def mappings(settings: Mapping[str, Any], *, proc: Path = Path("/proc")) -> Finding:
    """Check the limit of memory mappings: one per mapped file."""
    shape = settings.get("store") or {}
    needed = (
        int(shape.get("mapped_files_max", MAPPED_FILES))
        + int(shape.get("queue_files_mapped_max", QUEUE_FILES))
        + OTHER_MAPPINGS
    )
    allowed = int((proc / "sys/vm/max_map_count").read_text())
    finding = About("limits.mappings", "this machine").error(
        "doctor-limit-low",
        f"vm.max_map_count is {allowed}; a process of a node may need {needed}",
        "sysctl -w vm.max_map_count=65530",
        value=allowed,
        limit=needed,
        unit="mappings",
    )
    return finding.unless(allowed >= needed)


def memory_lock(settings: Mapping[str, Any]) -> list[Finding]:
    """Check the limit of locked memory, if the settings ask to lock log files."""
    if not settings.get("lock_files_memory"):
        return []
    shape = settings.get("store") or {}
    needed = LOCKED_FILES * int(shape.get("commit_log_file_size", 1 << 30))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    finding = About("limits.memory-lock", "this process").error(
        "doctor-limit-low",
        f"{_limit(soft)} bytes may be locked in memory; lock_files_memory needs {needed}",
        "LimitMEMLOCK= of the unit, or lock_files_memory = false.",
        value=None if soft == resource.RLIM_INFINITY else soft,
        limit=needed,
        unit="bytes",
    )
    return [finding.unless(soft == resource.RLIM_INFINITY or soft >= needed)]


def python() -> Finding:
    """Report the Python version, and whether the native implementation is used."""
    at = About("python", "this process")
    cause = f"tidemark {__version__}, Python {platform.python_version()}"
    if native.WHY_PURE:
        return at.warning(
            "doctor-pure-twins",
            f"{cause}; {native.WHY_PURE}",
            "Use the image, or install a C compiler and build again.",
            value="pure",
            limit="compiled",
        )
    return at.ok(f"{cause}, native modules", value="compiled")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
