"""One metric family as data, the source of instruments, help texts, pages and dashboards. Pure.

Names carry their unit; only counters end in ``_total``; a label's values come from a bounded set.
The scrape configuration adds the identity (cluster, broker, replica, service).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

NAMESPACE: Final = "tidemark_"
"""Prefix of all names except ``process_*``, which Prometheus client libraries have in common."""
OTHER: Final = "_other"
"""Label value of the series that combines all label sets beyond a limit."""

SECONDS_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""From a page cache hit to a failing disk."""
DELAY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    3600.0,
)  # fmt: skip
"""From a waiting consumer to one that has stopped for an hour."""
SIZE_BUCKETS: Final = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
REQUESTS_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Kind(enum.Enum):
    """Metric type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Fold(enum.Enum):
    """Rule that combines the numbers of several label sets into ``_other``."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NONE = "none"
    """The numbers cannot be combined; ``_other`` is left out."""


class Family(NamedTuple):
    """A metric family: its name and its static properties."""

    name: str
    """Includes namespace and unit, and ``_total`` for a counter."""
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    """Unit for readers: s, bytes, messages; ``–`` for a plain number."""
    meaning: str
    """One or two sentences: the help text, and a cell of docs/metrics.md."""
    alert: str = ""
    """Values worth an alert, in words; empty if there are none."""
    buckets: tuple[float, ...] = ()
    """Ascending upper bounds without infinity; histograms only."""
    fold: Fold = Fold.SUM
    """Applies to gauges; counters and histograms are always summed."""


def declared(module: Mapping[str, object]) -> tuple[Family, ...]:
    """Return every family of a catalogue module, in source order.

    module: its ``globals()``, so that a family in the module cannot be left out by mistake.
    """
    return tuple(each for each in module.values() if isinstance(each, Family))
