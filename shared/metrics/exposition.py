"""Formats values as lines of text, a few hundred at a time. Pure.

A line consists of a family's name, a label set's text, which is cached between scrapes, and the
number. Before: ``registry`` took the values. After: ``endpoint`` sends the pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from shared.metrics.instruments import Buckets, Samples, Taken
from shared.metrics.text import Format, Number, bound_text, end, head, number

LINES_AT_ONCE: Final = 128
"""Lines of one piece: about a tenth of a millisecond, and 12 KiB."""


def pieces(taken: Sequence[Taken], form: Format) -> Iterator[str]:
    """Yield the whole text in pieces of whole lines. Each family's values are freed once they are
    formatted: freeing those of 100,000 series at once would take milliseconds."""
    waiting = list(reversed(taken))
    del taken
    while waiting:
        family = waiting.pop()
        yield head(family.family, form)
        if isinstance(family, Buckets):
            yield from _buckets(family)
        else:
            yield from _samples(family)
    yield end(form)


def _samples(taken: Samples) -> Iterator[str]:
    name = taken.family.name
    for start in range(0, len(taken.texts), LINES_AT_ONCE):
        piece = slice(start, start + LINES_AT_ONCE)
        yield "".join(
            [
                # value * 0 is 0 unless the value is infinite or NaN, which are rare.
                f"{name}{text} {+value}\n" if value * 0 == 0 else _odd(name, text, value)
                for text, value in zip(taken.texts[piece], taken.values[piece], strict=True)
                if value is not None
            ]
        )


def _odd(name: str, text: str, value: Number) -> str:
    """Format an infinite value; NaN gives no line, because it means unknown."""
    return f"{name}{text} {number(value)}\n" if value == value else ""


def _buckets(taken: Buckets) -> Iterator[str]:
    name = taken.family.name
    bounds = [*(bound_text(bound) for bound in taken.family.buckets), "+Inf"]
    tails = [f'le="{bound}"}} ' for bound in bounds]
    at_once = max(1, LINES_AT_ONCE // (len(bounds) + 2))
    for start in range(0, len(taken.texts), at_once):
        lines: list[str] = []
        for text, counts in zip(
            taken.texts[start : start + at_once],
            taken.counts[start : start + at_once],
            strict=True,
        ):
            before = f"{name}_bucket{text[:-1]}," if text else f"{name}_bucket{{"
            *each, total = counts
            below = list(itertools.accumulate(each))
            lines += [f"{before}{tail}{count}\n" for tail, count in zip(tails, below, strict=True)]
            lines.append(f"{name}_count{text} {below[-1]}\n{name}_sum{text} {number(total)}\n")
        yield "".join(lines)
