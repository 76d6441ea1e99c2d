"""Sentences of the report, made of several facts. Pure.

``words`` has single numbers and names. The templates place both on the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from analytics.report.facts import Facts, Forecast, MovedWith, OtherClock, Pair, QueueLag
from analytics.report.words import (
    GAP_WORDS,
    MOVED_WORDS,
    SKEW_WORDS,
    STAGE_WORDS,
    drain,
    duration,
    moment,
    number,
    plural,
    share,
    shown_status,
    status_words,
)
from analytics.schema import Stage
from analytics.statuses import LEVELS, REASON_WORDS, URGENT, Level, Reason, Status, row_of

SKEW_NAMED: Final = 1.25
"""Below this skew the queues count as even."""
LIMIT_WORDS: Final = {
    "disk": ("Full", "Not foreseen to fill"),
    "produce": ("More than its group can read", "Stays within what its group can read"),
    "age": ("As old as what is retained", "Stays younger than what is retained"),
}
"""Words for reaching the limit and for staying within it, by kind of forecast."""
_CODES: Final = re.compile(r"\b(?:" + "|".join(Status) + r")\b")


def level_counts(facts: Facts) -> dict[Level, int]:
    """Number of pairs by level."""
    found = dict.fromkeys(LEVELS, 0)
    for status, count in facts.counts.items():
        found[row_of(status).level] += count
    for pair in facts.pairs:
        # The two levels differ for an OK pair that is held back.
        found[row_of(pair.status).level] -= 1
        found[pair.level] += 1
    return found


def late_count(facts: Facts) -> int:
    """Number of pairs that are unknown now and were late when they were last known."""
    return sum(pair.was_late for pair in facts.pairs)


def headline(facts: Facts) -> str:
    """The state of the cluster in one line."""
    if facts.newest is None:
        return (
            f"Nothing is known of the time from {moment(facts.bins.start)} to "
            f"{moment(facts.bins.end)}"
        )
    counts, late = level_counts(facts), late_count(facts)
    urgent, unknown = sum(counts[each] for each in URGENT), counts[Level.UNKNOWN]
    of_late = f", {late:,} of them late when last seen" if late else ""
    if facts.total and unknown == facts.total:
        return f"Nothing is known of the {plural(unknown, 'pair')} of group and topic{of_late}"
    rest = f", {plural(unknown, 'pair')} not known{of_late}" if unknown else ""
    if urgent:
        of_page = f"{counts[Level.PAGE]:,} of them now" if counts[Level.TICKET] else "now"
        return (
            f"{urgent:,} of {plural(facts.total, 'pair')} of group and topic "
            f"need{'s' if urgent == 1 else ''} attention"
            f"{', ' + of_page if counts[Level.PAGE] else ''}{rest}"
        )
    if not rest and not counts[Level.INFO] and facts.total > 1:
        return f"All {facts.total:,} pairs of group and topic are in time"
    known = " that is known" if late else ""
    return f"No pair of group and topic{known} needs attention{rest}"


def pair_status(pair: Pair) -> str:
    """Status of a pair in words."""
    return status_words(shown_status(pair.status, pair.level))


def why(pair: Pair) -> str:
    """The cause of a status, and the stage with most of the time."""
    parts = [sentence(pair.cause) or f"It is {status_words(pair.status)}."]
    detail = (pair.blamed_detail or "").replace("_", " ")
    if pair.skew_kind and not detail:
        parts.append(sentence(SKEW_WORDS.get(pair.skew_kind, pair.skew_kind.replace("_", " "))))
    if pair.blamed is not None and pair.blamed in STAGE_WORDS and pair.blamed != Stage.MIXED:
        of = f" ({share(pair.blamed_share)})" if pair.blamed_share is not None else ""
        words = detail or STAGE_WORDS[pair.blamed]
        parts.append(f"Most of the time goes into {pair.blamed}{of}: {words}.")
    return " ".join(parts)


def moved_words(moved: Sequence[MovedWith]) -> str:
    """Return which series changed with the blamed stage, and how much earlier or later; empty if
    none."""
    parts = []
    for place, each in enumerate(moved):
        how = "with" if each.correlation > 0 else "against"
        when = "at the same time"
        if each.earlier_s:
            when = f"{duration(abs(each.earlier_s))} {'before' if each.earlier_s > 0 else 'after'}"
        measure = "rank correlation " if not place else ""
        evidence = f"{measure}{number(round(each.correlation, 2))} over {each.looks} samples"
        subject = MOVED_WORDS.get(each.what, each.what)
        parts.append(f"{subject} moved {how} it, {when} ({evidence})")
    return sentence("; ".join(parts))


def clock_words(clock: OtherClock | None) -> str:
    """Return the possible error of the age if another node's clock stamped the message."""
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


def sentence(text: str) -> str:
    """Text with a capital and a full stop; status codes are replaced by words."""
    text = _CODES.sub(lambda found: status_words(found[0]), text.strip())
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def objective_words(pair: Pair) -> str:
    """The objective of a pair, and the ratio of its age to the objective."""
    if not pair.objective_s:
        return ""
    times = (pair.age_s or 0.0) / pair.objective_s
    factor = number(round(times, 1) if times < 10 else round(times))
    return f"objective {duration(pair.objective_s)}" + (
        f", {factor} times that" if times >= 1.05 else ""
    )


def drain_time(pair: Pair) -> str:
    """Return the drain time in words."""
    if pair.lag == 0:
        return "nothing to read"
    return drain(pair.drain_p10_s, pair.drain_p50_s, pair.drain_p90_s)


def hidden_words(pair: Pair) -> str:
    """Messages that consumers cannot read yet, and messages that expired unread."""
    named = ((pair.hidden_lag, "more not visible yet"), (pair.lost, "lost unread"))
    return ", ".join(f"{number(count)} {words}" for count, words in named if count)


def queues_behind(pair: Pair) -> str:
    """Return the number of the pair's queues that lag, in words."""
    if pair.queues is None:
        return number(None)
    return f"of {pair.queues}" if pair.lagging is None else f"{pair.lagging} of {pair.queues}"


def queues_detail(pair: Pair) -> str:
    """Return the number of stalled and unknown queues, and of members."""
    named = ((pair.stuck, "stalled"), (pair.unknown, "not known"))
    found = [f"{count} {words}" for count, words in named if count]
    if pair.members and pair.status in (Status.STOPPED, Status.ABANDONED):
        found.append(f"no member reads it, {plural(pair.members, 'member')} in the group")
    elif pair.members is not None:
        found.append(plural(pair.members, "member") if pair.members else "no member")
    return ", ".join(found)


def skew_words(pair: Pair) -> str:
    """Return how the largest queue compares with the others; empty if that is not known."""
    if pair.skew is None:
        return ""
    if pair.skew == float("inf"):
        return ": the others have nothing"
    if pair.skew < SKEW_NAMED:
        return ": about alike"
    return f": the largest is {number(pair.skew)} times the mean of the others"


def queue_status(queue: QueueLag) -> str:
    """Status of a queue in words; empty if it is in time."""
    return "" if queue.status == Status.OK else status_words(queue.status)


def limit_words(one: Forecast) -> str:
    """Return when a forecast reaches its limit; empty if that is not foreseen."""
    if one.limit_p50_s is None:
        return ""
    soon, never = LIMIT_WORDS.get(one.kind, ("At its limit", "Stays within its limit"))
    if one.limit_p50_s == float("inf"):
        return f"{never}. "
    return f"{soon} in {drain(one.limit_p10_s, one.limit_p50_s, one.limit_p90_s)}. "


def unevaluated(facts: Facts) -> str:
    """Return which part of the time was not evaluated; empty if all of it was."""
    parts: list[str] = []
    if facts.known_share is not None and facts.known_share < 0.9995:
        parts.append(
            f"{share(facts.known_share)} of the report's time was evaluated; the rest is hatched."
        )
    if facts.newest is not None and facts.period_s:
        behind = (facts.bins.end - facts.newest).total_seconds()
        if behind > 4 * facts.period_s:
            parts.append(f"The newest evaluation is {duration(behind)} older than the report.")
    return " ".join(parts)


def reason_words(reason: str) -> str:
    """Return why something is not known; the part after a colon is the cause of the gap."""
    first, colon, gap = reason.partition(": ")
    if not first:
        return "no snapshot was seen, or needed values were missing"
    words = REASON_WORDS[Reason(first)] if first in REASON_WORDS else first.replace("_", " ")
    return f"{words}: the source {GAP_WORDS.get(gap, gap)}" if colon else words
