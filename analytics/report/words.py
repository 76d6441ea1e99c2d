"""Numbers and statuses in words. Pure.

Lag in seconds may mean *age*, the time since the oldest unread message was stored, or *drain time*,
the time until all is read. The report uses these two terms and never lag. Unknown values are "not
known".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from analytics.schema import Stage
from analytics.statuses import TABLE, Level, Status, row_of

HELD_BACK: Final = "HELD_BACK"
"""Report status of a pair that has read all readable messages while more are stored."""
STAGE_WORDS: Final[Mapping[str, str]] = {
    Stage.APPEND: "producers wait to append",
    Stage.REPLICATION: "waiting for copies",
    Stage.DISPATCH: "waiting for dispatch (reput)",
    Stage.DELIVERY: "waiting to be fetched",
    Stage.PROCESSING: "being processed",
    Stage.MIXED: "no single stage",
}
SKEW_WORDS: Final[Mapping[str, str]] = {
    "hot_queue": "one queue takes far more than its share",
    "slow_member": "the queues behind belong to one member",
    "poison_message": "one message is delivered again and again",
    "unassigned_queue": "a queue that no member holds",
    "stuck_queue": "one queue stands still while the others move",
}
MOVED_WORDS: Final[Mapping[str, str]] = {
    "put": "times of sends",
    "put_wait": "waits of sends for their turn",
    "flush": "flush times",
    "network": "network times",
}
GAP_WORDS: Final[Mapping[str, str]] = {
    "unreachable": "did not answer",
    "timeout": "took too long to answer",
    "overload": "refused: too much was asked at once",
    "torn": "the answer broke off",
    "late": "asked too late",
    "down": "was down",
    "damaged": "held bytes that cannot be trusted",
    "vanished": "went away while it was read",
    "expired": "had already deleted it",
    "hidden": "has it and does not show it",
    "unscraped": "was down and scraped nothing",
}
NOT_KNOWN: Final = "not known"


def status_words(status: str) -> str:
    """A status in words."""
    if status == HELD_BACK:
        return "held back before it"
    return row_of(status).words if status in TABLE else status.lower().replace("_", " ")


def shown_status(status: str, of: str) -> str:
    """Status that the report shows for a pair: HELD_BACK if OK with a level other than NONE."""
    return HELD_BACK if status == Status.OK and of != Level.NONE else status


def subject_words(subject: str) -> str:
    """Subject of a forecast or an anomaly, ``broker=g0 group=a topic=b``, in words."""
    parts = [part.partition("=") for part in subject.split()]
    if not parts or not all(equals and value for _, equals, value in parts):
        return subject
    of = {name: value for name, _, value in parts}
    place = " of ".join(
        each
        for each in (
            of.get("replica", ""),
            of.get("broker", ""),
            of.get("cluster", ""),
        )
        if each
    )
    if "volume" in of:
        return f"volume {of['volume']} of {place}" if place else f"volume {of['volume']}"
    what = of.get("topic", "")
    if "group" in of:
        what = f"{of['group']} reads {what}" if what else f"group {of['group']}"
    elif what:
        what = f"topic {what}"
    return f"{what} on {place}" if what and place else what or place or subject


def duration(seconds: float | None) -> str:
    """A length of time with two parts at most: ``3 h 10 min``."""
    if seconds is None or math.isnan(seconds):
        return NOT_KNOWN
    if math.isinf(seconds):
        return "never" if seconds > 0 else NOT_KNOWN
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        hours, rest = divmod(minutes, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days = seconds / 86400
    return f"{days:.1f} days" if days < 100 else f"{days:,.0f} days"


def drain(p10: float | None, p50: float | None, p90: float | None) -> str:
    """Drain time, with its band of 8 in 10 times."""
    if p50 is None or math.isnan(p50):
        return NOT_KNOWN
    if math.isinf(p50):
        return "never at this pace"
    text = duration(p50)
    if p10 is None or p90 is None or duration(p10) == duration(p90):
        return text
    return f"{text} ({duration(p10)} to {duration(p90)})"


def number(value: float | None) -> str:
    """A count or a rate with three significant digits."""
    if value is None or math.isnan(value):
        return NOT_KNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e6:
        for scale, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if size >= scale:
                return f"{value / scale:.3g} {name}"
    if size >= 100 or value == int(value):
        return f"{round(value):,}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def byte_count(value: float | None) -> str:
    """Bytes in powers of 1024."""
    if value is None or math.isnan(value):
        return NOT_KNOWN
    for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.3g} {name}"
    return f"{round(value)} B"


def rate(value: float | None) -> str:
    """Messages per second."""
    return NOT_KNOWN if value is None else f"{number(value)}/s"


def share(value: float | None) -> str:
    """A share in percent."""
    if value is None or math.isnan(value):
        return NOT_KNOWN
    percent = value * 100
    return f"{percent:.1f} %" if 0 < percent < 1 or 99 < percent < 100 else f"{percent:.0f} %"


def moment(when: datetime | None, beside: datetime | None = None) -> str:
    """A time of day in UTC; with its date unless ``beside`` has the same."""
    if when is None:
        return NOT_KNOWN
    utc = when.astimezone(UTC)
    if beside is not None and utc.date() == beside.astimezone(UTC).date():
        return f"{utc:%H:%M:%S}" if utc.second else f"{utc:%H:%M}"
    return f"{utc:%d %b %H:%M}".lstrip("0")


def plural(count: int, one: str) -> str:
    """``1 pair``, ``2 pairs``."""
    return f"{count:,} {one if count == 1 else one + 's'}"
