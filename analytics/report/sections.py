"""The report's sections but the cards: course of all, forecasts, oddities, what is not known. Pure.

Each is empty where it has nothing to say, but those that must say that there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from analytics.report.axes import BYTES, COUNT, RATE, SECONDS
from analytics.report.bins import is_known
from analytics.report.cards import badge, drain_time, frame_of, status_words
from analytics.report.facts import Anomaly, Change, Facts, Forecast, Pair
from analytics.report.plots import Line, band, stacked, time_axis, timeline
from analytics.report.words import (
    GAP_SAID,
    drain,
    duration,
    moment,
    number,
    plural,
    rate,
    said,
    share,
    subject_words,
)
from analytics.statuses import BY_SEVERITY, REASON_WORDS, TABLE, Level, Reason, Status

FORECAST_SAID: Final = {
    "produce": ("messages per second to come", RATE),
    "disk": ("free bytes to come", BYTES),
    "age": ("age of the oldest unread message to come", SECONDS),
}
LIMIT_SAID: Final = {
    "disk": ("Full", "Not foreseen to fill"),
    "produce": ("More than its group can read", "Stays within what its group can read"),
    "age": ("As old as what is retained", "Stays younger than what is retained"),
}
"""What a forecast's limit means: when it is reached, and when it never is."""


def by_status(facts: Facts) -> str:
    """How many pairs had which status when."""
    found = [
        Line(_in_legend(status, facts), f"s-{status.lower()}", facts.by_status[status])
        for status in BY_SEVERITY
        if status in facts.by_status
    ]
    if not any(is_known(line.values) for line in found):
        return ""
    chart = stacked(
        "Pairs by status", "How many pairs had which status", COUNT, frame_of(facts), found
    )
    return f'<div class="card wide">{chart}</div>'


def _in_legend(status: Status, facts: Facts) -> str:
    """A status in words. Pairs that are held back before their group are among those in time: the
    tables tell them apart for the newest tick only."""
    held_back = any(pair.status == status and pair.level != Level.NONE for pair in facts.pairs)
    return "in time with what can be read" if status == Status.OK and held_back else said(status)


def changes(facts: Facts) -> str:
    """Against the report before."""
    if facts.previous_at is None:
        return ""
    since = escape(moment(facts.previous_at))
    if not facts.changes:
        body = f'<p class="note">Nothing has changed since the report of {since}.</p>'
    else:
        items = "".join(f"<li>{_change(each)}</li>" for each in facts.changes)
        body = f'<div class="card"><ul class="changes">{items}</ul></div>'
    return f"<h2>Changed since {since}</h2>{body}"


def _change(change: Change) -> str:
    name = (
        f"<b>{escape(change.group)}</b> reads <b>{escape(change.topic)}</b> "
        f'<span class="soft">on {escape(change.broker)}</span>'
    )
    now = escape(said(change.now)) if change.now else ""
    before = escape(said(change.before)) if change.before else ""
    match change.kind:
        case "new":
            label = '<span class="badge page">new</span>'
        case "over":
            label = '<span class="badge none">over</span>'
        case "gone":
            return f'<span class="badge unknown">gone</span> {name}: is no longer seen'
        case _:
            of = Level.UNKNOWN if change.now == Status.UNKNOWN else Level.INFO
            label = f'<span class="badge {of}">other</span>'
    was = f", was {before}" if before else ", was not there" if change.before is None else ""
    return f"{label} {name}: {now}{was}"


def course(facts: Facts) -> str:
    """The status of every pair that is drawn, over time."""
    shown = [*facts.attention, *facts.others]
    if not shown:
        return ""
    frame = frame_of(facts)
    rows = "".join(
        f'<div class="name">{escape(one.pair.group)} <span class="soft">reads</span> '
        f"{escape(one.pair.topic)}<small>{escape(one.pair.broker)}, now "
        f"{escape(status_words(one.pair))}</small></div>"
        f"{timeline(frame, one.course.status)}"
        for one in shown
    )
    seen = {status for one in shown for status in one.course.status if status}
    keys = "".join(
        f'<li><i class="key s-{status.lower()}"></i>{escape(said(status))}</li>'
        for status in BY_SEVERITY
        if status in seen and TABLE[status].is_known
    )
    return (
        f'<h2>Status over time</h2><div class="card"><div class="rows">{rows}'
        f"<span></span>{time_axis(frame)}</div>"
        f'<ul class="legend flush">{keys}'
        '<li><i class="key hatched"></i>not known</li></ul></div>'
    )


def forecasts(facts: Facts) -> str:
    """What is expected, with bands; and how full groups are."""
    drawn = [_forecast(each) for each in facts.forecasts if len(each.at) > 1]
    charts = f'<div class="two">{"".join(drawn)}</div>' if drawn else ""
    capacity = _capacity(facts)
    if not charts and not capacity:
        return (
            "<h2>Forecast</h2>"
            '<p class="note">Nothing is foreseen: no forecast was made within the last two '
            "days, or there is too little history for one.</p>"
        )
    return f"<h2>Forecast</h2>{charts}{capacity}"


def _forecast(one: Forecast) -> str:
    words, unit = FORECAST_SAID.get(one.kind, (one.kind, COUNT))
    chart = band(subject_words(one.subject), words, unit, one.at, one.p10, one.p50, one.p90)
    limit = _limit(one)
    error = ""
    if one.backtest_error is not None:
        error = f", error in retrospect {number(one.backtest_error)}"
    return (
        f'<div class="card">{chart}<p class="note below">'
        f"{escape(words[0].upper() + words[1:])}. {escape(limit)}"
        f"Model {escape(one.model)}{escape(error)}, made {escape(moment(one.issued_at))}.</p></div>"
    )


def _limit(one: Forecast) -> str:
    if one.limit_p50_s is None:
        return ""
    soon, never = LIMIT_SAID.get(one.kind, ("At its limit", "Stays within its limit"))
    if one.limit_p50_s == float("inf"):
        return f"{never}. "
    return f"{soon} in {drain(one.limit_p10_s, one.limit_p50_s, one.limit_p90_s)}. "


def _capacity(facts: Facts) -> str:
    rows = [
        [
            (
                "Group",
                f"{escape(one.group)}<small>{escape(one.topic)}"
                f"{' on ' + escape(one.broker) if one.broker else ''}</small>",
                "",
            ),
            ("Can read at most", _band(one.c_max_per_s, one.c_max_low_per_s), "n"),
            ("Used at busy times", escape(share(one.utilisation)), "n"),
            ("With", escape(plural(one.members, "member")) if one.members else "not known", "n"),
            ("Limited by", escape((one.limited_by or "not known").replace("_", " ")), ""),
            ("Seen in", escape(plural(one.minutes, "busy minute")), "n"),
        ]
        for one in facts.capacity
    ]
    return f'<div class="card">{table(rows)}</div>' if rows else ""


def _band(value: float | None, low: float | None) -> str:
    least = f"<small>{escape(rate(low))} at least</small>" if low is not None else ""
    return escape(rate(value)) + least


def anomalies(facts: Facts) -> str:
    """What is far from what was expected."""
    if not facts.anomalies:
        return ""
    rows = [
        [
            ("When", escape(moment(one.ts)), ""),
            (
                "What",
                f"{escape(subject_words(one.subject))}<small>{escape(one.signal)}</small>",
                "",
            ),
            ("Was", escape(number(one.value)), "n"),
            ("Expected", escape(number(one.expected)), "n"),
            ("Score", escape(number(one.score)), "n"),
        ]
        for one in facts.anomalies
    ]
    return (
        "<h2>Unusual</h2>"
        '<p class="note">Values far from those of the same hour in weeks before, or of the last '
        "hours. A score counts how many times the usual spread; 6 is told.</p>"
        f'<div class="card">{table(rows)}</div>'
    )


def _signal(one: Anomaly) -> str:
    return (
        one.signal.removesuffix("_seconds").replace("_per_second", "d per second").replace("_", " ")
    )


def _value(one: Anomaly, value: float) -> str:
    if one.signal.endswith("_per_second"):
        return rate(value)
    return duration(value) if one.signal.endswith("_seconds") else number(value)


def not_known(facts: Facts) -> str:
    """Gaps of the sources and unknown queues, by their cause."""
    parts: list[str] = []
    if facts.known_share is not None and facts.known_share < 0.9995:
        parts.append(
            f"{share(facts.known_share)} of the report's time was evaluated; the rest is hatched."
        )
    if facts.newest is not None and facts.period_s:
        behind = (facts.bins.end - facts.newest).total_seconds()
        if behind > 4 * facts.period_s:
            parts.append(f"The newest evaluation is {duration(behind)} older than the report.")
    gaps = [
        [
            ("Source", f"{escape(one.source)}<small>{escape(one.subject)}</small>", ""),
            ("From", escape(moment(one.from_ts)), ""),
            ("Until", escape(moment(one.to_ts, one.from_ts)), ""),
            ("Times", escape(number(one.count)), "n"),
            (
                "Cause",
                escape(GAP_SAID.get(one.reason, one.reason.replace("_", " ")))
                + (f"<small>{escape(one.detail)}</small>" if one.detail else ""),
                "",
            ),
        ]
        for one in facts.gaps
    ]
    queues = [
        [
            ("Queues", escape(number(one.queues)), "n"),
            ("Of", escape(plural(one.pairs, "pair")), ""),
            ("Cause", escape(reason_words(one.reason)), ""),
        ]
        for one in facts.unknowns
    ]
    body = f'<p class="note">{escape(" ".join(parts))}</p>' if parts else ""
    if gaps:
        body += f'<div class="card">{table(gaps)}</div>'
    if queues:
        body += f'<div class="card">{table(queues)}</div>'
    if not body:
        body = '<p class="note">Nothing: no source has a gap, and every queue is known.</p>'
    return f"<h2>Gaps, and what is not known</h2>{body}"


def reason_words(reason: str) -> str:
    """Why something is not known, in words; behind a colon the cause of the gap."""
    first, colon, gap = reason.partition(": ")
    if not first:
        return "no snapshot was seen, or needed values were missing"
    words = REASON_WORDS[Reason(first)] if first in REASON_WORDS else first.replace("_", " ")
    return f"{words}: the source {GAP_SAID.get(gap, gap)}" if colon else words


def all_pairs(facts: Facts) -> str:
    """Every pair in a line."""
    if not facts.pairs:
        return ""
    rows = [_row(pair) for pair in facts.pairs]
    left = ""
    if facts.pairs_left_out:
        left = f'<p class="note">{plural(facts.pairs_left_out, "pair")} more are not listed.</p>'
    return (
        f'<h2>All pairs</h2><details class="card"{" open" if len(rows) <= 12 else ""}>'
        f"<summary>{plural(facts.total, 'pair')} of group and topic, the worst first</summary>"
        f"{table(rows)}{left}</details>"
    )


def _row(pair: Pair) -> list[tuple[str, str, str]]:
    objective = f"<small>objective {escape(duration(pair.objective_s))}</small>"
    return [
        ("Status", badge(pair), ""),
        (
            "Group and topic",
            f"{escape(pair.group)}<small>{escape(pair.topic)} on {escape(pair.broker)}</small>",
            "",
        ),
        ("Age", escape(duration(pair.age_s)) + (objective if pair.objective_s else ""), "n"),
        (
            "Drain time",
            escape(drain_time(pair)),
            "n",
        ),
        ("Unread", escape(number(pair.lag)), "n"),
        (
            "In, read",
            f"{escape(rate(pair.produce_per_s))}, {escape(rate(pair.consume_per_s))}",
            "n",
        ),
    ]


def table(rows: Sequence[Sequence[tuple[str, str, str]]]) -> str:
    """Cells: heading, HTML, class. Narrow pages show each row as a small list."""
    heads = "".join(
        f'<th class="{kind}">{escape(name)}</th>' if kind else f"<th>{escape(name)}</th>"
        for name, _, kind in rows[0]
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-of="{escape(name)}"{" class=" + kind if kind else ""}><div>{html}</div></td>'
            for name, html, kind in row
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
