"""One metric family as data: what code counts, what help, pages and dashboards say. Pure.

Names carry their unit; ``_total`` stands on counters only; a label's values come from a bounded
set. Identity (cluster, broker, replica, service) is added by the scrape configuration.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

NAMESPACE: Final = "tidemark_"
"""Of all names but ``process_*``, which all programs that Prometheus knows have in common."""
OTHER: Final = "_other"
"""The label value under which everything beyond a bound is added up."""

SECONDS_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""From a page cache hit to a disk that is failing."""
DELAY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    3600.0,
)  # fmt: skip
"""From a consumer that waits to one that has stood still for an hour."""
SIZE_BUCKETS: Final = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
REQUESTS_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Kind(enum.Enum):
    """What a family's numbers mean."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Fold(enum.Enum):
    """What several label sets' numbers become when they are shown as one, ``_other``."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NONE = "none"
    """Together they mean nothing: left out."""


class Family(NamedTuple):
    """A name and everything that is known about it before anything is counted."""

    name: str
    """With namespace and unit, with ``_total`` of a counter."""
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    """As people read it: s, bytes, messages; ``–`` for a plain number."""
    meaning: str
    """One or two sentences: the help text, and the cell of docs/metrics.md."""
    alert: str = ""
    """What is worth attention, in words; empty if nothing is."""
    buckets: tuple[float, ...] = ()
    """Ascending upper bounds, without infinity; of a histogram only."""
    fold: Fold = Fold.SUM
    """Of a gauge; counters and histograms are always added up."""


def declared(module: Mapping[str, object]) -> tuple[Family, ...]:
    """Every family of a catalogue's module, as written from top to bottom.

    module: its ``globals()``. So none can be written down and then forgotten.
    """
    return tuple(each for each in module.values() if isinstance(each, Family))
