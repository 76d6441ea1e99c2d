"""A pair that needs attention, drawn: why, the numbers, its course, its queues. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from analytics.report.axes import RATE, SECONDS
from analytics.report.bins import is_known
from analytics.report.course import STAGES
from analytics.report.facts import (
    Attention,
    Course,
    Facts,
    MovedWith,
    OtherClock,
    Pair,
    QueueLag,
)
from analytics.report.plots import Frame, Limit, Line, lines, stacked
from analytics.report.words import (
    MOVED_SAID,
    SKEW_SAID,
    STAGE_SAID,
    drain,
    duration,
    moment,
    number,
    rate,
    said,
    share,
    shown_status,
)
from analytics.schema import Stage
from analytics.statuses import Status

SKEW_SHOWN: Final = 2.0
"""From this on a queue stands out, and bars are drawn at once."""
SKEW_TOLD: Final = 1.25
"""Below it no queue is larger than the others in any way that matters."""
QUEUES_TOLD: Final = 2
"""Fewer queues than this are no matter of skew."""
_CODES: Final = re.compile(r"\b(?:" + "|".join(Status) + r")\b")
_STAGE_NAMES: Final = {
    "replication": "replication",
    "dispatch": "dispatch",
    "delivery": "delivery",
    "processing": "processing",
}


def frame_of(facts: Facts) -> Frame:
    """The report's time."""
    bins = facts.bins
    return Frame(bins.start, bins.end, bins.count)


def card(one: Attention, facts: Facts) -> str:
    """One pair in detail."""
    pair, course, frame = one.pair, one.course, frame_of(facts)
    return (
        f'<article class="card pair {pair.level}">{head(pair, facts)}'
        f'<p class="why">{escape(why(pair))}</p>{_notes(one)}{_numbers(one)}'
        f'<div class="plots">{_age(pair, course, frame)}{_rates(course, frame)}'
        f"{_stages(course, frame)}</div>{_queues(pair, one.queues)}{_evidence(one.evidence)}"
        "</article>"
    )


def head(pair: Pair, facts: Facts) -> str:
    """Its status and its name."""
    since = ""
    if pair.since is not None:
        since = f'<span class="soft">since {escape(moment(pair.since, facts.made_at))}</span>'
    return (
        f'<div class="head">{badge(pair)}<h3>{escape(pair.group)} '
        f'<span class="soft">reads</span> {escape(pair.topic)}</h3>'
        f'<span class="soft">on {escape(pair.broker)}'
        f"{' of ' + escape(pair.cluster) if pair.cluster else ''}</span>{since}</div>"
    )


def badge(pair: Pair) -> str:
    """Its status in words, coloured by how soon somebody should look."""
    return f'<span class="badge {pair.level}">{escape(status_words(pair))}</span>'


def status_words(pair: Pair) -> str:
    """Its status in words."""
    return said(shown_status(pair.status, pair.level))


def why(pair: Pair) -> str:
    """A sentence: the cause, and the stage that it waits for."""
    parts = [_sentence(pair.cause) or f"It is {said(pair.status)}."]
    detail = stage_detail(pair.blamed_detail)
    if pair.skew_kind and not detail:
        parts.append(_sentence(SKEW_SAID.get(pair.skew_kind, pair.skew_kind.replace("_", " "))))
    if pair.blamed is not None and pair.blamed in STAGE_SAID and pair.blamed != Stage.MIXED:
        of = f" ({share(pair.blamed_share)})" if pair.blamed_share is not None else ""
        told = detail or STAGE_SAID[pair.blamed]
        parts.append(f"Most of the time goes into {pair.blamed}{of}: {told}.")
    return " ".join(parts)


def moved_words(moved: Sequence[MovedWith]) -> str:
    """A sentence: what moved with the blamed stage, how much earlier or later."""
    parts = []
    for place, each in enumerate(moved):
        how = "with" if each.correlation > 0 else "against"
        when = "at the same time"
        if each.earlier_s:
            when = f"{duration(abs(each.earlier_s))} {'before' if each.earlier_s > 0 else 'after'}"
        measure = "rank correlation " if not place else ""
        looks = f"{measure}{number(round(each.correlation, 2))} over {each.looks} looks"
        subject = MOVED_SAID.get(each.what, each.what)
        parts.append(f"{subject} moved {how} it, {when} ({looks})")
    return _sentence("; ".join(parts))


def clock_words(clock: OtherClock | None) -> str:
    """A sentence: how far the age may be off since another node's clock stamped the message."""
    if clock is None:
        return ""
    stored = "An earlier master stored its oldest message, "
    if not clock.is_known:
        return (
            f"{stored}and how far the two clocks differ is not known: nor is how exact the age is."
        )
    if clock.low_s is None or clock.high_s is None:
        return f"{stored}by a clock that may differ by more than a second: so may the age."
    between = f"between {duration(clock.low_s)} and {duration(clock.high_s)}"
    return f"{stored}by a clock that may differ by more than a second: the age lies {between}."


def _notes(one: Attention) -> str:
    told = (moved_words(one.moved_with), clock_words(one.other_clock))
    return "".join(f'<p class="note">{escape(words)}</p>' for words in told if words)


def _sentence(text: str) -> str:
    text = _CODES.sub(lambda found: said(found[0]), text.strip())
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _numbers(one: Attention) -> str:
    pair = one.pair
    burn = ""
    if pair.age_s is not None and pair.objective_s:
        times = pair.age_s / pair.objective_s
        burn = f"objective {duration(pair.objective_s)}"
        if times >= 1.05:
            burn += f", {number(round(times, 1) if times < 10 else round(times))} times that"
    elif pair.objective_s:
        burn = f"objective {duration(pair.objective_s)}"
    rows = [
        ("Age", duration(pair.age_s), burn),
        (
            "Drain time",
            drain_time(pair),
            {"time": "from the pace of stored time", "count": "from messages and rates"}.get(
                pair.drain_method or "", ""
            ),
        ),
        ("Unread messages", number(pair.lag), _hidden(pair)),
        (
            "Comes in, is read",
            f"{rate(pair.produce_per_s)}, {rate(pair.consume_per_s)}",
            _progress(pair),
        ),
        ("Blamed stage", pair.blamed or "none", STAGE_SAID.get(pair.blamed or "", "")),
        ("Queues behind", _queue_count(pair), _queue_detail(pair)),
    ]
    if one.over_objective is not None:
        rows.append(
            ("Above its objective", share(one.over_objective), "of the report's known time")
        )
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        + (f"<small>{escape(small)}</small>" if small else "")
        + "</dd></div>"
        for name, value, small in rows
    )
    return f'<dl class="numbers">{cells}</dl>'


def drain_time(pair: Pair) -> str:
    """How long until all that is unread is read."""
    if pair.lag == 0:
        return "nothing to read"
    return drain(pair.drain_p10_s, pair.drain_p50_s, pair.drain_p90_s)


def stage_detail(detail: str | None) -> str:
    """What more is known of the blamed stage."""
    return (detail or "").replace("_", " ")


def _hidden(pair: Pair) -> str:
    found = []
    if pair.hidden_lag:
        found.append(f"{number(pair.hidden_lag)} more not visible yet")
    if pair.lost:
        found.append(f"{number(pair.lost)} lost unread")
    return ", ".join(found)


def _progress(pair: Pair) -> str:
    if pair.progress is None:
        return ""
    return f"{number(round(pair.progress, 2))} s of stored time read per second"


def _queue_count(pair: Pair) -> str:
    if pair.queues is None:
        return number(None)
    if pair.lagging is None:
        return f"of {pair.queues}"
    return f"{pair.lagging} of {pair.queues}"


def _queue_detail(pair: Pair) -> str:
    found = [
        f"{count} {word}"
        for count, word in ((pair.stuck, "stalled"), (pair.unknown, "not known"))
        if count
    ]
    if pair.members is not None:
        found.append("no member" if not pair.members else f"{pair.members} members")
    return ", ".join(found).replace("1 members", "1 member")


def _age(pair: Pair, course: Course, frame: Frame) -> str:
    limit = Limit("objective", pair.objective_s) if pair.objective_s else None
    told = f"Age of the oldest unread message, now {duration(pair.age_s)}"
    shown = [Line("age", "age", course.age_s)]
    return lines("Age of the oldest unread message", told, SECONDS, frame, shown, limit)


def _rates(course: Course, frame: Frame) -> str:
    shown = [
        Line("comes in", "produce", course.produce_per_s),
        Line("is read", "consume", course.consume_per_s),
    ]
    told = "Messages per second that come in and that are read"
    return lines("In and out", told, RATE, frame, shown, None)


def _stages(course: Course, frame: Frame) -> str:
    if not any(is_known(values) for values in course.stages_s.values()):
        return ""
    shown = [
        Line(_STAGE_NAMES[stage], stage, course.stages_s[stage])
        for stage in STAGES
        if stage in course.stages_s
    ]
    told = "Distance from the newest record, split by the stage in which it arises"
    return stacked("Where the time goes", told, SECONDS, frame, shown)


def _queues(pair: Pair, queues: Sequence[QueueLag]) -> str:
    if len(queues) < QUEUES_TOLD or not any(queue.lag or queue.lag is None for queue in queues):
        return ""
    most = max((queue.lag or 0 for queue in queues), default=0) or 1
    rows: list[str] = []
    for queue in queues:
        if queue.lag is None:
            bar = '<i class="hatched" title="not known"></i>'
        else:
            bar = (
                f'<i class="s-{escape(queue.status.lower())}" '
                f'style="width:{100 * queue.lag / most:.1f}%"></i>'
            )
        status = "" if queue.status == Status.OK else f" {said(queue.status)}"
        rows.append(
            f'<span>queue {queue.queue}</span><span class="bar">{bar}</span>'
            f'<span class="end">{escape(number(queue.lag))}'
            f'<span class="soft">{escape(status)}</span></span>'
        )
    left = (pair.queues or len(queues)) - len(queues)
    more = f" (the {len(queues)} with most)" if left > 0 else ""
    skew = ""
    if pair.skew is not None:
        skew = (
            ": the others have nothing"
            if pair.skew == float("inf")
            else f": the largest is {number(pair.skew)} times the mean of the others"
            if pair.skew >= SKEW_TOLD
            else ": about alike"
        )
    bars = f'<div class="bars">{"".join(rows)}</div>'
    if pair.skew_kind is None and (pair.skew is None or pair.skew < SKEW_SHOWN):
        # All alike: the bars say nothing that the sum does not.
        return (
            f"<details><summary>Unread messages by queue{more}{escape(skew)}</summary>"
            f"{bars}</details>"
        )
    return (
        f'<figure class="queues"><figcaption>Unread messages by queue{more}'
        f'<span class="unit">{escape(skew)}</span></figcaption>{bars}</figure>'
    )


def _evidence(evidence: Sequence[str]) -> str:
    if not evidence:
        return ""
    items = "".join(f"<li>{escape(each)}</li>" for each in evidence)
    return f"<details><summary>The numbers behind this status</summary><ul>{items}</ul></details>"
