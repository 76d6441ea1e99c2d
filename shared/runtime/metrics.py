"""What the metrics of all services share: a registry of their own, process facts, buckets.

Metrics carry their unit in the name and the definition in the help text; labels stay few and
bounded. A registry is made per service object and not per module, so that several run in one test.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""From a page cache hit to a disk that is failing."""

FORMAT_VERSION: Final = "1"


class MemoryCollector(Collector):
    """Anonymous memory and mappings of this process, read from /proc when asked.

    Resident size alone says little here: most of it is mapped log, which the kernel takes back.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc

    def collect(self) -> Iterable[Metric]:
        """Read the kernel's numbers; nothing where /proc is missing."""
        try:
            status = (self._proc / "status").read_text(encoding="ascii", errors="replace")
            maps = (self._proc / "maps").read_bytes().count(b"\n")
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                yield GaugeMetricFamily(
                    "tidemark_process_anonymous_memory_bytes",
                    "Anonymous resident memory (RssAnon): grows only with what the process keeps.",
                    value=int(line.split()[1]) * 1024,
                )
        yield GaugeMetricFamily(
            "tidemark_process_mappings",
            "Memory mappings of the process; bounded by the mapped-file settings.",
            value=maps,
        )


def new_registry(service: str, version: str) -> CollectorRegistry:
    """Make a registry that already knows process facts and the build."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    registry.register(MemoryCollector())
    Gauge(
        "tidemark_build_info",
        "Always 1; the labels say which service, version and store format run here.",
        ["service", "version", "store_format"],
        registry=registry,
    ).labels(service, version, FORMAT_VERSION).set(1)
    return registry
