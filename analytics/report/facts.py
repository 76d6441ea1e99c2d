"""Content of a report as values; ``report.json`` has the same. Pure.

An unknown field is None, never 0. Times are UTC. In JSON a time is an ISO 8601 string, and a number
has at most nine digits. A drain time without an end is the string ``inf``, because JSON has no
infinite numbers. Step before: ``gather``. Step after: ``page`` draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from analytics.statuses import Level

VERSION: Final = 1
"""Version of report.json. Within a version, fields are only added."""

Values = Sequence[float | None]
"""One value for each bin of the report; None: not known."""


@dataclass(frozen=True, slots=True)
class Bins:
    """How the time of the report is cut for drawing: start ≤ time < end."""

    start: datetime
    end: datetime
    width_s: float
    count: int


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Last known state of one queue of a pair."""

    queue: int
    lag: int | None
    age_s: float | None
    status: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Last known state of a pair of group and topic on a broker set."""

    pair_id: int
    cluster: str
    broker: str
    group: str
    topic: str
    status: str
    level: Level
    since: datetime | None
    seen: datetime
    """The newest tick with a row of it."""
    cause: str
    age_s: float | None
    objective_s: float | None
    lag: int | None
    hidden_lag: int | None
    """Messages that are stored but not readable yet."""
    drain_p10_s: float | None
    drain_p50_s: float | None
    drain_p90_s: float | None
    drain_method: str | None
    produce_per_s: float | None
    consume_per_s: float | None
    progress: float | None
    members: int | None
    queues: int | None
    lagging: int | None
    stuck: int | None
    unknown: int | None
    lost: int | None
    skew: float | None
    skew_kind: str | None
    blamed: str | None
    blamed_share: float | None
    blamed_detail: str | None
    was_late: bool = False
    """It is unknown now, and was late when it was last known."""


@dataclass(frozen=True, slots=True)
class Course:
    """Values of a pair over the time of the report, by bin."""

    age_s: Values
    """Largest value within each bin."""
    produce_per_s: Values
    consume_per_s: Values
    lag: Values
    stages_s: Mapping[str, Values]
    status: Sequence[str | None]
    """Worst status within each bin; None: no row."""


@dataclass(frozen=True, slots=True)
class MovedWith:
    """A series that changed together with the time of the blamed stage: further evidence."""

    what: str
    """``put``, ``put_wait``, ``flush``, ``network``: see ``moved``."""
    earlier_s: float
    """Time by which it moved before the stage; below 0: after the stage."""
    correlation: float
    """Rank correlation of differences, −1 … 1."""
    looks: int
    """Number of samples at which both were known; report.json keeps this name."""


@dataclass(frozen=True, slots=True)
class OtherClock:
    """The age of a pair's oldest message is by the clock of an earlier master, which differs."""

    low_s: float | None
    """Bounds of the age; None: not known."""
    high_s: float | None
    is_known: bool
    """Whether the difference of the clocks was measured."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A pair that needs attention, or had a problem within the time of the report."""

    pair: Pair
    course: Course
    over_objective: float | None
    """Share of the known time in which its age exceeded the objective."""
    evidence: Sequence[str]
    queues: Sequence[QueueLag]
    moved_with: Sequence[MovedWith] = ()
    other_clock: OtherClock | None = None
    """None: there is one clock, or the clocks differ by at most a second."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one quantity, with the band that it stays within 8 of 10 times."""

    subject: str
    kind: str
    issued_at: datetime
    model: str
    backtest_error: float | None
    at: Sequence[datetime]
    p10: Values
    p50: Values
    p90: Values
    limit_p10_s: float | None
    """Time until its limit is reached; None: not foreseen."""
    limit_p50_s: float | None
    limit_p90_s: float | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Largest rate of a group, from minutes in which unread messages were always ready."""

    cluster: str
    broker: str | None
    group: str
    topic: str
    day: datetime
    c_max_per_s: float | None
    c_max_low_per_s: float | None
    utilisation: float | None
    members: int | None
    queues: int | None
    limited_by: str | None
    minutes: int


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A value that is far from the expected one."""

    ts: datetime
    subject: str
    signal: str
    value: float
    expected: float
    score: float


@dataclass(frozen=True, slots=True)
class GapFact:
    """Times without rows of a source, for one subject and one reason."""

    source: str
    subject: str
    reason: str
    detail: str
    count: int
    from_ts: datetime | None
    to_ts: datetime | None
    rows_lost: int | None


@dataclass(frozen=True, slots=True)
class UnknownFact:
    """Number of queues with an unknown value, by the reason."""

    reason: str
    queues: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a pair since the previous report."""

    kind: str
    """``new``, ``over``, ``other``, ``gone``."""
    cluster: str
    broker: str
    group: str
    topic: str
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Content of a report."""

    title: str
    made_at: datetime
    bins: Bins
    period_s: float | None
    newest: datetime | None
    """The newest evaluated tick; None: none in the time of the report."""
    known_share: float | None
    """Share of the ticks of the report that were evaluated."""
    counts: Mapping[str, int]
    """Pairs by their last known status."""
    by_status: Mapping[str, Values]
    """Number of pairs by status and bin."""
    attention: Sequence[Attention]
    others: Sequence[Attention]
    """Pairs that are in time now, but had a problem before."""
    pairs: Sequence[Pair]
    """All pairs, worst first, up to a maximum."""
    pairs_left_out: int
    attention_left_out: int
    forecasts: Sequence[Forecast]
    capacity: Sequence[Capacity]
    anomalies: Sequence[Anomaly]
    gaps: Sequence[GapFact]
    unknowns: Sequence[UnknownFact]
    previous_at: datetime | None
    changes: Sequence[Change] = field(default_factory=tuple)

    @property
    def total(self) -> int:
        """Number of pairs."""
        return sum(self.counts.values())


def to_json(facts: Facts) -> str:
    """The facts as text; equal facts give equal text."""
    plain = _plain(asdict(facts))
    text = json.dumps({"version": VERSION, **plain}, ensure_ascii=False, separators=(",", ":"))
    return text + "\n"


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value
