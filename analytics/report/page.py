"""Facts to one HTML file: no script, nothing from a network, readable on a telephone. Pure.

Before: ``gather``. After: whoever opens the file. The policy in its head forbids the browser what
the page does not need, so a name of a topic that is made like a script stays a name.
"""

from __future__ import annotations

from html import escape
from typing import Final

from analytics.report import sections
from analytics.report.cards import badge, card
from analytics.report.facts import Facts
from analytics.report.style import style
from analytics.report.words import duration, moment, plural
from analytics.statuses import LEVELS, URGENT, Level, row_of

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HATCH: Final = (
    '<svg class="hidden" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="0" x2="0" y1="0" '
    'y2="6"/></pattern></defs></svg>'
)
"""What unknown parts of a stack are filled with."""
NAMED_MAX: Final = 60
"""Names before the first plot."""
TILES: Final = (
    (Level.PAGE, "look now"),
    (Level.TICKET, "look today"),
    (Level.INFO, "only to know"),
    (Level.UNKNOWN, "not known"),
    (Level.NONE, "in time"),
)


def page(facts: Facts) -> str:
    """The whole file."""
    body = "".join(
        (
            _tiles(facts),
            _names(facts),
            sections.by_status(facts),
            sections.changes(facts),
            _attention(facts),
            sections.course(facts),
            sections.forecasts(facts),
            sections.anomalies(facts),
            sections.not_known(facts),
            sections.all_pairs(facts),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Lag of {escape(facts.title)}</title>"
        f"<style>{style()}</style></head>"
        f"<body>{HATCH}{_header(facts)}<main>{body}</main>{_footer(facts)}</body></html>\n"
    )


def counts(facts: Facts) -> dict[Level, int]:
    """Pairs by how soon somebody should look."""
    found = dict.fromkeys(LEVELS, 0)
    for status, count in facts.counts.items():
        found[row_of(status).level] += count
    for pair in facts.pairs:  # in time with all that is visible, and held back before it
        found[row_of(pair.status).level] -= 1
        found[pair.level] += 1
    return found


def headline(facts: Facts) -> str:
    """The state of the cluster in one line."""
    if facts.newest is None:
        return (
            f"Nothing is known of the time from {moment(facts.bins.start)} to "
            f"{moment(facts.bins.end)}"
        )
    found = counts(facts)
    urgent = found[Level.PAGE] + found[Level.TICKET]
    rest = []
    late = _late(facts)
    of_late = f", {late:,} of them late when last seen" if late else ""
    if facts.total and found[Level.UNKNOWN] == facts.total:
        return f"Nothing is known of the {plural(facts.total, 'pair')} of group and topic{of_late}"
    if found[Level.UNKNOWN]:
        rest.append(f"{plural(found[Level.UNKNOWN], 'pair')} not known{of_late}")
    if not urgent:
        first = (
            f"All {facts.total:,} pairs of group and topic are in time"
            if not rest and not found[Level.INFO] and facts.total > 1
            else "No pair of group and topic that is known needs attention"
            if late
            else "No pair of group and topic needs attention"
        )
        return ", ".join([first, *rest])
    first = (
        f"{urgent:,} of {plural(facts.total, 'pair')} of group and topic "
        f"need{'s' if urgent == 1 else ''} attention"
    )
    if found[Level.PAGE]:
        rest.insert(0, f"{found[Level.PAGE]:,} of them now" if found[Level.TICKET] else "now")
    return ", ".join([first, *rest])


def _late(facts: Facts) -> int:
    """Pairs that are not known, and were late when they were."""
    return sum(pair.was_late for pair in facts.pairs)


def _header(facts: Facts) -> str:
    bins = facts.bins
    span = duration((bins.end - bins.start).total_seconds())
    period = ""
    if facts.period_s:
        period = f", evaluated every {duration(facts.period_s)}"
    return (
        f'<header><p class="over">Lag of {escape(facts.title)}</p>'
        f"<h1>{escape(headline(facts))}</h1>"
        f'<p class="soft">{escape(moment(bins.start))} to {escape(moment(bins.end, bins.start))} '
        f"UTC ({escape(span)}{escape(period)}), made {escape(moment(facts.made_at))}</p></header>"
    )


def _tiles(facts: Facts) -> str:
    if facts.newest is None:
        return ""
    found = counts(facts)
    tiles = "".join(
        f'<li class="{name}{"" if found[name] else " zero"}"><span>{escape(words)}</span>'
        f"<b>{found[name]:,}</b></li>"
        for name, words in TILES
    )
    return f'<ul class="tiles" aria-label="Pairs by how soon to look">{tiles}</ul>'


def _names(facts: Facts) -> str:
    """Everything that needs attention by name, before the first plot."""
    # Cards are few; the list of all pairs has every one of them, in the same order.
    found = [each for each in facts.pairs if each.level in URGENT or each.was_late]
    if not found:
        return ""
    items = "".join(
        f"<li>{badge(each)} <b>{escape(each.group)}</b> "
        f'<span class="soft">reads {escape(each.topic)} on {escape(each.broker)}</span></li>'
        for each in found[:NAMED_MAX]
    )
    urgent = sum(counts(facts)[each] for each in URGENT)
    left = urgent + _late(facts) - len(found[:NAMED_MAX])
    if left > 0:
        items += f'<li class="soft">and {left:,} more</li>'
    return f'<ul class="names" aria-label="What needs attention">{items}</ul>'


def _attention(facts: Facts) -> str:
    if facts.newest is None:
        return ""
    if not facts.attention:
        unknown = counts(facts)[Level.UNKNOWN]
        words = "Nothing. Every pair is within its objective."
        if unknown:
            words = (
                f"Of {plural(unknown, 'pair')} nothing is known; why, is said below. "
                "No other needs attention."
            )
        return f'<h2>What needs attention</h2><p class="note">{words}</p>'
    left = ""
    if facts.attention_left_out:
        left = (
            f'<p class="note">{plural(facts.attention_left_out, "pair")} more, less urgent, '
            "are in the list of all pairs.</p>"
        )
    cards = "".join(card(one, facts) for one in facts.attention)
    return f"<h2>What needs attention, and why</h2>{cards}{left}"


def _footer(facts: Facts) -> str:
    words = (
        (
            "Age",
            "how old the oldest unread message is, by the time at which it was stored. "
            "It is measured; where it is worked out from offsets, it is off by a tick at most.",
        ),
        (
            "Drain time",
            "how long until all that is unread now is read, at the pace of the last minutes. "
            "Not the age: a young backlog may take hours.",
        ),
        (
            "Objective",
            "how old the oldest unread message of a group may be; each group has its own.",
        ),
        ("Pair", "a consumer group and a topic that it reads, on one set of brokers."),
        ("Hatched", "nobody knows: there was no sample, or it could not be trusted. It is not 0."),
    )
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in words)
    return (
        f"<footer><dl>{rows}</dl><p>Times are UTC. <code>report.json</code> beside this file has "
        f"the same facts. Bins of {escape(duration(facts.bins.width_s))}.</p></footer>"
    )
