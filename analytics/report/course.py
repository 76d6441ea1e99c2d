"""Details of a few pairs: values by bin, present state of the queues, numbers after a status.

Step before: ``overview`` chose the pairs. Step after: ``gather``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.age import CLOCK_OFF, CLOCK_UNKNOWN, CLOCKS
from analytics.report.bins import by_pair, places, ranks, spread, summed
from analytics.report.facts import Attention, Bins, Course, MovedWith, OtherClock, Pair, QueueLag
from analytics.report.moved import moved_with
from analytics.report.overview import LOOK_BACK_TICKS, latest
from analytics.report.words import duration, moment, number, rate
from analytics.statuses import BY_SEVERITY
from analytics.tables import TableRoot

QUEUES_MAX: Final = 24
"""Maximum number of queues drawn per pair: those with most lag, and some of unknown lag."""
UNKNOWN_MIN: Final = 6
"""Number of these that may be queues of unknown lag, whatever the others have."""
STAGES: Final = ("replication", "dispatch", "delivery", "processing")
_LAG_COLUMNS: Final = (
    "tick", "pair_id", "series_id", "lag", "age_seconds", "age_low_seconds", "age_high_seconds",
    "age_method", "status", "evidence",
)  # fmt: skip
_MEANS: Final = ("produce_per_second", "consume_per_second")
_SECONDS: Final = "_seconds"
EVIDENCE_WORDS: Final = {
    "alone_seconds": "without a member for",
    "still_seconds": "commit unmoved for",
    "stall_after_seconds": "taken as stalled after",
    "kept_seconds": "retained for",
    "lag": "unread messages",
    "lost": "messages lost",
    "ahead": "messages ahead of the end",
}
"""Names for the numbers of rules whose own names do not read as phrases."""


def details(
    tables: TableRoot, pairs: Sequence[Pair], bins: Bins, newest: datetime, period_s: float
) -> list[Attention]:
    """Return the pairs, in the same order, with the values that the report draws."""
    if not pairs:
        return []
    ids = {pair.pair_id for pair in pairs}
    lag = by_pair(_lag_by_bin(tables, bins, ids))
    stages = by_pair(_stages_by_bin(tables, bins, ids))
    queues, evidence, clocks = _queues(tables, ids, newest, period_s)
    beside = moved_with(tables, pairs, bins.start, newest, period_s)
    empty = pa.table({})
    return [
        _detail(
            pair,
            bins,
            lag.get(pair.pair_id, empty),
            stages.get(pair.pair_id, empty),
            queues.get(pair.pair_id, []),
            evidence.get((pair.pair_id, pair.status), ""),
            beside.get(pair.pair_id, ()),
            clocks.get(pair.pair_id),
        )
        for pair in pairs
    ]


def _lag_by_bin(tables: TableRoot, bins: Bins, ids: Collection[int]) -> pa.Table:
    columns = ("age_max_seconds", "objective_seconds", "lag_sum", "status", *_MEANS)

    def pieces() -> Iterator[pa.Table]:
        for piece in _with_bins(tables, "pair_lag", columns, bins, ids):
            over = pc.greater(piece["age_max_seconds"], piece["objective_seconds"])
            yield piece.append_column("rank", ranks(piece["status"])).append_column(
                "over", over.cast(pa.int64())
            )

    how = [("age_max_seconds", "max"), ("lag_sum", "max"), ("rank", "max")]
    how += [("over", "sum"), ("over", "count")]
    how += [(column, each) for column in _MEANS for each in ("sum", "count")]
    return summed(pieces(), ["pair_id", "bin"], how)


def _stages_by_bin(tables: TableRoot, bins: Bins, ids: Collection[int]) -> pa.Table:
    terms = [f"{stage}{_SECONDS}" for stage in STAGES]
    how = [(term, each) for term in terms for each in ("sum", "count")]
    return summed(_with_bins(tables, "stages", terms, bins, ids), ["pair_id", "bin"], how)


def _with_bins(
    tables: TableRoot, table: str, columns: Sequence[str], bins: Bins, ids: Collection[int]
) -> Iterator[pa.Table]:
    """Rows of these pairs with a column ``bin``."""
    wanted = ["tick", "pair_id", *columns]
    for piece in tables.scan(
        table, since=bins.start, before=bins.end, columns=wanted, pair_ids=ids
    ):
        yield piece.append_column("bin", places(piece, "tick", bins))


def _queues(
    tables: TableRoot, ids: Collection[int], newest: datetime, period_s: float
) -> tuple[dict[int, list[QueueLag]], dict[tuple[int, str], str], dict[int, OtherClock]]:
    """Return the present queues of each pair, evidence per pair and status, and bounds by other
    clocks."""
    since = newest - timedelta(seconds=period_s * LOOK_BACK_TICKS)
    until = newest + timedelta(microseconds=1)
    rows = latest(
        tables.read("lag", since=since, before=until, columns=_LAG_COLUMNS, pair_ids=ids),
        "series_id",
    )
    names = tables.read(
        "series",
        columns=["series_id", "pair_id", "queue"],
        pair_ids=ids,
    )
    numbers = dict(zip(names["series_id"].to_pylist(), names["queue"].to_pylist(), strict=True))
    queues: dict[int, list[QueueLag]] = {}
    evidence: dict[tuple[int, str], str] = {}
    clocks: dict[int, OtherClock] = {}
    for row in sorted(rows.to_pylist(), key=lambda each: -(each["age_seconds"] or 0.0)):
        pair, status = row["pair_id"], row["status"]
        if row["evidence"]:
            evidence.setdefault((pair, status), row["evidence"])
        if (clock := other_clock(row)) is not None:
            clocks.setdefault(pair, clock)
        if row["series_id"] in numbers:
            queues.setdefault(pair, []).append(
                QueueLag(numbers[row["series_id"]], row["lag"], row["age_seconds"], status)
            )
    for pair, found in queues.items():
        queues[pair] = _drawn(found)
    return queues, evidence, clocks


def _drawn(found: list[QueueLag]) -> list[QueueLag]:
    """Return the queues with most lag, and queues whose lag is unknown; by number."""
    known = [each for each in found if each.lag is not None]
    known.sort(key=lambda each: (-(each.lag or 0), each.queue))
    unknown = sorted((each for each in found if each.lag is None), key=lambda each: each.queue)
    unknown = unknown[: max(UNKNOWN_MIN, QUEUES_MAX - len(known))]
    return sorted((*known[: QUEUES_MAX - len(unknown)], *unknown), key=lambda each: each.queue)


def other_clock(row: Mapping[str, Any]) -> OtherClock | None:
    """Bounds of the age if another clock stamped the head of a row of lag; None otherwise."""
    method = row["age_method"] or ""
    if not method.endswith((CLOCKS[CLOCK_OFF], CLOCKS[CLOCK_UNKNOWN])):
        return None
    known = method.endswith(CLOCKS[CLOCK_OFF])
    return OtherClock(row["age_low_seconds"], row["age_high_seconds"], known)


def _detail(
    pair: Pair,
    bins: Bins,
    lag: pa.Table,
    stages: pa.Table,
    queues: list[QueueLag],
    evidence: str,
    beside: Sequence[MovedWith],
    clock: OtherClock | None,
) -> Attention:
    worst = spread(lag, "rank_max", bins)
    over = sum(each or 0 for each in lag["over_sum"].to_pylist()) if lag.num_rows else 0
    known = sum(lag["over_count"].to_pylist()) if lag.num_rows else 0
    return Attention(
        pair,
        Course(
            age_s=spread(lag, "age_max_seconds_max", bins),
            produce_per_s=spread(lag, f"{_MEANS[0]}_sum", bins, f"{_MEANS[0]}_count"),
            consume_per_s=spread(lag, f"{_MEANS[1]}_sum", bins, f"{_MEANS[1]}_count"),
            lag=spread(lag, "lag_sum_max", bins),
            stages_s={
                stage: spread(stages, f"{stage}_seconds_sum", bins, f"{stage}_seconds_count")
                for stage in STAGES
            },
            status=[None if each is None else BY_SEVERITY[int(each)] for each in worst],
        ),
        over / known if known else None,
        evidence_in_words(evidence),
        queues,
        beside,
        clock,
    )


def evidence_in_words(text: str) -> list[str]:
    """A rule's numbers, each as a short phrase; the text itself if it is not an object."""
    if not text:
        return []
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    if not isinstance(found, dict):
        return [text]
    return [_phrase(str(name), value) for name, value in found.items() if value is not None]


def _phrase(name: str, value: Any) -> str:
    if name in EVIDENCE_WORDS and isinstance(value, int | float):
        text = duration(value) if name.endswith(_SECONDS) else number(value)
        return f"{EVIDENCE_WORDS[name]}: {text}"
    for ending, in_words in (("_seconds", duration), ("_per_second", rate)):
        if name.endswith(ending) and isinstance(value, int | float):
            return f"{name.removesuffix(ending).replace('_', ' ')}: {in_words(value)}"
    words = name.replace("_", " ")
    match value:
        case bool():
            return f"{words}: {'yes' if value else 'no'}"
        case int() | float():
            return f"{words}: {number(value)}"
        case str() if name.endswith(("_ts", "since")) and value[:4].isdigit():
            return f"{words}: {_moment(value)}"
    return f"{words}: {value}"


def _moment(text: str) -> str:
    try:
        return moment(datetime.fromisoformat(text))
    except ValueError:
        return text
