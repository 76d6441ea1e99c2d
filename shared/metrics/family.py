"""One metric family as data, the source of instruments, help texts, pages and dashboards. Pure.

Names carry their unit; only counters end in ``_total``; a label's values come from a bounded set.
The scrape configuration adds the identity (cluster, broker, replica, service).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

NAMESPACE: Final = "tidemark_"
"""Prefix of all names but ``process_*`` and ``python_info``, which client libraries share."""
OTHER: Final = "_other"
"""Label value of the series that combines all label sets beyond a limit."""
Number = int | float
Reading = Number | Mapping[str, Number | None] | None
"""A family's value, or its values by the value of its only label. None: unknown."""
LABEL_SETS_MAX: Final = 256
"""Limit for a family without a limit of its own, so that a bug cannot flood the scraper."""

SECONDS_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""From a page cache hit to a failing disk."""
DELAY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    3600.0,
)  # fmt: skip
"""Bounds for delays: from those of a waiting consumer to those of one that was stopped for an
hour."""
SIZE_BUCKETS: Final = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
REQUESTS_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


_BASE_UNITS: Final = ("seconds", "bytes", "ratio")


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
    title: str = ""
    """Title of a dashboard's panel that shows only this family; empty if there is none."""
    alert: str = ""
    """Values worth an alert, in words; empty if there are none."""
    buckets: tuple[float, ...] = ()
    """Ascending upper bounds without infinity; histograms only."""
    fold: Fold = Fold.SUM
    """Applies to gauges; counters and histograms are always summed."""

    @property
    def base_unit(self) -> str:
        """Unit as OpenMetrics names it; empty if it has no name there."""
        name = self.name.removesuffix("_total")
        return next((unit for unit in _BASE_UNITS if name.endswith("_" + unit)), "")


def gauge(
    series: str, unit: str, meaning: str, *, title: str = "", alert: str = "", fold: Fold = Fold.SUM
) -> Family:
    """Declare a gauge. series: name and labels, as in ``tidemark_group_members{group}``."""
    return Family(*_named(series, Kind.GAUGE), unit, meaning, title, alert, fold=fold)


def counter(series: str, unit: str, meaning: str, *, title: str = "", alert: str = "") -> Family:
    """Declare a counter."""
    return Family(*_named(series, Kind.COUNTER), unit, meaning, title, alert)


def histogram(
    series: str, unit: str, meaning: str, *, buckets: tuple[float, ...], title: str = "",
    alert: str = "",
) -> Family:  # fmt: skip
    """Declare a histogram."""
    return Family(*_named(series, Kind.HISTOGRAM), unit, meaning, title, alert, buckets)


def _named(series: str, kind: Kind) -> tuple[str, Kind, tuple[str, ...]]:
    name, _, labels = series.removesuffix("}").partition("{")
    return name, kind, tuple(labels.split(",")) if labels else ()


def declared(module: Mapping[str, object]) -> tuple[Family, ...]:
    """Return every family of a catalogue module, in source order.

    module: its ``globals()``, so that a family in the module cannot be left out by mistake.
    """
    return tuple(each for each in module.values() if isinstance(each, Family))
