"""Facts of every process: versions, start time, resource usage. Read from /proc.

Resident size alone means little here: most of it is mapped log, which the kernel can reclaim. A
fact that cannot be read has no sample.
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
"""Store format of docs/formats.md; stores of another format are not opened."""
PROC: Final = Path("/proc")


def add_process_facts(
    registry: Registry, *, is_ready: Callable[[], bool], wire_version: str = "", proc: Path = PROC
) -> None:
    """Register the facts of this process.

    is_ready: whether ``/ready`` answers 200. wire_version: version of the frames between nodes;
    empty for a service that sends none.
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
    # Each of these takes the kernel a millisecond if thousands of files are mapped.
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
    """The kernel's data about this process. A fact that cannot be read is left out."""

    def __init__(self, proc: Path) -> None:
        """proc: the process's own directory."""
        self._proc = proc

    def memory(self) -> dict[Family, Reading]:
        """Return the families of MEMORY in bytes."""
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
        """Return the number of memory mappings."""
        try:
            count = (self._proc / "maps").read_bytes().count(b"\n")
        except OSError:
            return {}
        return {every.PROCESS_MAPPINGS: count}

    def open_descriptors(self) -> dict[Family, Reading]:
        """Return the number of open file descriptors, without the one that reads the directory."""
        try:
            count = sum(1 for _ in os.scandir(self._proc / "fd")) - 1
        except OSError:
            return {}
        return {every.PROCESS_OPEN_FDS: count}


def start_time(proc: Path = PROC) -> float | None:
    """Return the start time of this process [wall clock s]; None if it is unknown."""
    try:
        stat = (proc / "self/stat").read_text(encoding="ascii", errors="replace")
        boot = (proc / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # Field 22 of proc(5), counted from behind the name: the name may contain parentheses itself.
    ticks = int(stat.rpartition(")")[2].split()[19])
    for line in boot.splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return None


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
