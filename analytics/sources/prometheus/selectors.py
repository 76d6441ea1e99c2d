"""PromQL vector selectors: parsed, narrowed by filters, split into shards. Pure.

Filters from Spark become matchers and time bounds. Spark applies all of them again, to filter the
rows of gaps as well. Step before: options and filters. Step after: ``plan``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from analytics.sources.option_values import BadOption, microseconds

SHARDS_MAX: Final = 10
_SELECTOR: Final = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?\s*", re.DOTALL)
_MATCHED: Final = {
    "metric": "__name__",
    "cluster": "cluster",
    "broker": "broker",
    "replica": "replica",
    "topic": "topic",
    "group": "group",
    "target": "instance",
}
"""Columns that are equal to a label, by the label."""
MS_US: Final = 1000


class Narrowed(NamedTuple):
    """Result of filters: additional matchers, and time bounds [microseconds since 1970]."""

    matchers: tuple[str, ...] = ()
    after_us: int | None = None
    """Exclusive."""
    until_us: int | None = None
    """Inclusive."""


def normal(selector: str) -> str:
    """A selector's matchers without braces; its name is one of them. Raises BadOption."""
    found = _SELECTOR.fullmatch(selector)
    if found is None or not (found[1] or found[2]):
        raise BadOption("selectors", selector, 'vector selectors like up{job="a"}, one per line')
    inner = (found[2] or "").strip().rstrip(",")
    name = f"__name__={quoted(found[1])}" if found[1] else ""
    return ",".join(part for part in (name, inner) if part)


def quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def exactly(text: str) -> str:
    """A regular expression that matches only this text."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def any_of(label: str, texts: Sequence[str]) -> str:
    """A matcher for one of several values."""
    if len(texts) == 1:
        return f"{label}={quoted(texts[0])}"
    return f"{label}=~{quoted('|'.join(exactly(text) for text in texts))}"


def shard_matcher(shard: int, shards: int) -> str | None:
    """A matcher for a share of the queues by their last digit; shard 0 has all series without a
    queue.

    None: there is only one shard. The shares are disjoint and complete, even for values that
    are not numbers.
    """
    if shards == 1:
        return None
    digits = {digit: digit % shards for digit in range(10)}
    if shard == 0:
        others = "".join(str(digit) for digit, owner in digits.items() if owner)
        return f'queue!~".*[{others}]"'
    own = "".join(str(digit) for digit, owner in digits.items() if owner == shard)
    return f'queue=~".*[{own}]"'


def narrowed(filters: Sequence[Any]) -> Narrowed:
    """Return the filters of Spark that the server can apply; each is recognised by its class name.
    The result may have more rows than the filters keep, never fewer."""
    found = Narrowed()
    for each in filters:
        kind = type(each).__name__
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None
        value = getattr(each, "value", None)
        if column == "ts" and isinstance(value, datetime):
            found = _bounded(found, kind, microseconds(value))
        elif column in _MATCHED:
            texts: tuple[Any, ...] = ()
            if kind in ("EqualTo", "EqualNullSafe"):
                texts = (value,)
            elif kind == "In" and value is not None:
                texts = tuple(value)
            # An empty text would also match series without the label, whose column is null.
            if texts and all(isinstance(text, str) and text for text in texts):
                matcher = any_of(_MATCHED[column], texts)
                found = found._replace(matchers=(*found.matchers, matcher))
    return found


def _bounded(found: Narrowed, kind: str, at_us: int) -> Narrowed:
    """Round bounds outwards to the server's milliseconds."""
    after, until = found.after_us, found.until_us
    if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo", "EqualNullSafe"):
        low = (at_us - 1) // MS_US * MS_US if kind != "GreaterThan" else at_us // MS_US * MS_US
        after = low if after is None else max(after, low)
    if kind in ("LessThan", "LessThanOrEqual", "EqualTo", "EqualNullSafe"):
        high = -(-at_us // MS_US) * MS_US
        until = high if until is None else min(until, high)
    return found._replace(after_us=after, until_us=until)
