"""Facts of every process: versions, start time, resource usage.

The library's collectors read most of them. Resident size alone means little here: most of it is
mapped log, which the kernel can reclaim; so anonymous memory and mappings are read as well. A fact
that cannot be read has no sample.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client import PlatformCollector, ProcessCollector

from shared.metrics.catalogue import every
from shared.metrics.family import Reading
from shared.metrics.registry import Readings, Registry
from tidemark import __version__

STORE_FORMAT: Final = "1"
"""Store format of docs/formats.md; stores of another format are not opened."""
SELF: Final = Path("/proc/self")


def add_process_facts(
    registry: Registry, *, is_ready: Callable[[], bool], wire_version: str = ""
) -> None:
    """Register the facts of this process.

    is_ready: whether ``/ready`` answers 200. wire_version: version of the frames between nodes;
    empty for a service that sends none.
    """
    info = registry.gauge(every.NODE_INFO)
    info.labels(__version__, platform.python_version(), wire_version, STORE_FORMAT).set(1)
    registry.read(every.READY, lambda: int(is_ready()))
    started = {metric.name: metric for metric in ProcessCollector(registry=registry).collect()}.get(
        every.PROCESS_START_TIME_SECONDS.name
    )
    started_s = None if started is None else started.samples[0].value
    registry.read(every.UP_SINCE_TIMESTAMP_SECONDS, lambda: started_s)
    PlatformCollector(registry=registry)
    # Each takes the kernel a millisecond if thousands of files are mapped: one per iteration.
    for family, function in (
        (every.PROCESS_ANONYMOUS_MEMORY_BYTES, anonymous_memory_bytes),
        (every.PROCESS_MAPPINGS, mappings),
    ):
        registry.register(Readings((family,), lambda f=family, read=function: {f: read()}))  # type: ignore[misc]


def anonymous_memory_bytes() -> Reading:
    """Return the anonymous resident memory, ``RssAnon`` in proc(5)."""
    try:
        status = (SELF / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024 if "RssAnon" in fields else None


def mappings() -> Reading:
    """Return the number of memory mappings."""
    try:
        return (SELF / "maps").read_bytes().count(b"\n")
    except OSError:
        return None
