"""What every process says of itself: what runs, since when, what it uses. Read from /proc.

Resident size alone says little here: most of it is mapped log, which the kernel takes back. A fact
that cannot be read has no sample.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shared.metrics.catalogue import every
from shared.metrics.family import Family
from shared.metrics.registry import Reading, Registry
from shared.metrics.tables import Table
from tidemark import __version__

STORE_FORMAT: Final = "1"
"""Of docs/formats.md: stores of another one are not opened."""
PROC: Final = Path("/proc")


def add_process_facts(
    registry: Registry, *, is_ready: Callable[[], bool], wire_version: str = "", proc: Path = PROC
) -> None:
    """Let the registry show the facts of this process.

    is_ready: whether ``/ready`` says 200. wire_version: of the frames between nodes; empty for a
    service that sends none.
    """
    labels = [(__version__, platform.python_version(), wire_version, STORE_FORMAT)]
    registry.read_table((every.NODE_INFO,), lambda: Table(labels, [[1]]))
    started_s = start_time(proc)
    facts = ProcessFacts(proc / "self")
    for family, function in (
        (every.READY, lambda: int(is_ready())),
        (every.UP_SINCE_TIMESTAMP_SECONDS, lambda: started_s),
        (every.PROCESS_MAX_FDS, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        (every.PROCESS_CPU_SECONDS_TOTAL, _cpu_seconds),
    ):
        registry.read(family, function)
    # With thousands of files mapped the kernel takes a millisecond for each.
    registry.read_pass(tuple(MEMORY), facts.memory, apart=True)
    registry.read_pass((every.PROCESS_MAPPINGS,), facts.mappings, apart=True)
    registry.read_pass((every.PROCESS_OPEN_FDS,), facts.open_descriptors, apart=True)


MEMORY: Final = {
    every.PROCESS_ANONYMOUS_MEMORY_BYTES: "RssAnon",
    every.PROCESS_RESIDENT_MEMORY_BYTES: "VmRSS",
    every.PROCESS_VIRTUAL_MEMORY_BYTES: "VmSize",
}
"""Fields of ``status`` in proc(5)."""


class ProcessFacts:
    """What the kernel knows of this process. None where it does not say."""

    def __init__(self, proc: Path) -> None:
        """proc: the process' own directory."""
        self._proc = proc

    def memory(self) -> dict[Family, Reading]:
        """MEMORY, in bytes."""
        try:
            status = (self._proc / "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        kibibytes = {
            name: int(value.split()[0])
            for name, _, value in (line.partition(":") for line in status.splitlines())
            if name in MEMORY.values() and value.split()
        }
        return {
            family: kibibytes[field] * 1024
            for family, field in MEMORY.items()
            if field in kibibytes
        }

    def mappings(self) -> dict[Family, Reading]:
        """Memory mappings."""
        try:
            count = (self._proc / "maps").read_bytes().count(b"\n")
        except OSError:
            return {}
        return {every.PROCESS_MAPPINGS: count}

    def open_descriptors(self) -> dict[Family, Reading]:
        """Open file descriptors, but the one that looks."""
        try:
            count = sum(1 for _ in os.scandir(self._proc / "fd")) - 1
        except OSError:
            return {}
        return {every.PROCESS_OPEN_FDS: count}


def start_time(proc: Path = PROC) -> float | None:
    """When this process started [wall clock s], as the kernel notes it; None if it does not say."""
    try:
        stat = (proc / "self/stat").read_text(encoding="ascii", errors="replace")
        boot = (proc / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # Behind the name, which is in parentheses and may hold any: field 22 of proc(5).
    ticks = int(stat.rpartition(")")[2].split()[19])
    for line in boot.splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return None


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
