"""Content of a report as values: ``report.json`` holds the same. Pure.

Every field that may be unknown is None then, never 0. Times are UTC. In JSON a time is a text of
ISO 8601, a number has nine digits at most, and a drain time without an end is the text ``inf``:
JSON has no infinite numbers.
Step before: ``gather``. Step after: ``page`` draws them.
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
"""Version of report.json; fields are only added while it stays."""

Values = Sequence[float | None]
"""One for each bin of the report's time; None: not known."""


@dataclass(frozen=True, slots=True)
class Bins:
    """How the report's time is cut for drawing: start ≤ time < end."""

    start: datetime
    end: datetime
    width_s: float
    count: int


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One queue of a pair, as it was last seen."""

    queue: int
    lag: int | None
    age_s: float | None
    status: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of group and topic on a broker set, as it was last seen."""

    pair_id: int
    cluster: str
    broker: str
    group: str
    topic: str
    status: str
    level: Level
    since: datetime | None
    seen: datetime
    """The newest tick about it."""
    cause: str
    age_s: float | None
    objective_s: float | None
    lag: int | None
    hidden_lag: int | None
    """Messages that are stored and not readable yet."""
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
    """It is not known now, and was late when it was known last."""


@dataclass(frozen=True, slots=True)
class Course:
    """Values of a pair over the report's time, by bins."""

    age_s: Values
    """The largest within each bin."""
    produce_per_s: Values
    consume_per_s: Values
    lag: Values
    stages_s: Mapping[str, Values]
    status: Sequence[str | None]
    """The worst within each bin; None: nothing was seen."""


@dataclass(frozen=True, slots=True)
class MovedWith:
    """A series that changed together with the blamed stage's time: further evidence."""

    what: str
    """``put``, ``put_wait``, ``flush``, ``network``: see ``moved``."""
    earlier_s: float
    """Time by which it moved before the stage; below 0: after."""
    correlation: float
    """Rank correlation of differences, −1 … 1."""
    looks: int
    """Number of samples at which both were known; report.json keeps this name."""


@dataclass(frozen=True, slots=True)
class OtherClock:
    """The age of a pair's oldest message is by the clock of an earlier master, which is off."""

    low_s: float | None
    """Bounds of the age; None: not known."""
    high_s: float | None
    is_known: bool
    """Whether the difference of the clocks was measured."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A pair that needs a person, or that had trouble within the report's time."""

    pair: Pair
    course: Course
    over_objective: float | None
    """The part of the known time in which its age was above the objective."""
    evidence: Sequence[str]
    queues: Sequence[QueueLag]
    moved_with: Sequence[MovedWith] = ()
    other_clock: OtherClock | None = None
    """None: the clocks are one, or within a second."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one quantity, with the band in which it stays 8 of 10 times."""

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
    """What a group can read at most, seen over minutes in which work was always there."""

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
    """A value far from what was expected."""

    ts: datetime
    subject: str
    signal: str
    value: float
    expected: float
    score: float


@dataclass(frozen=True, slots=True)
class GapFact:
    """Times without rows of a source, of one subject and for one reason."""

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
    """Change of a pair since the report before."""

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
    """The newest tick evaluated; None: there is none in the report's time."""
    known_share: float | None
    """Ticks that were evaluated, of those that the report's time has."""
    counts: Mapping[str, int]
    """Pairs by their status, as they were last seen."""
    by_status: Mapping[str, Values]
    """How many pairs had a status, by bins."""
    attention: Sequence[Attention]
    others: Sequence[Attention]
    """Pairs in time now that had trouble before."""
    pairs: Sequence[Pair]
    """All pairs, worst first, up to a bound."""
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
