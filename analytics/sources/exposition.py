"""Parser of Prometheus' text format and of OpenMetrics. Pure.

Each line is matched by one regular expression. A known series is found by its text, so a scrape
like the previous one costs one look-up per line. Unreadable lines are counted, and some are kept as
examples. Exemplars and comments are ignored. Step before: ``scrape`` got an answer. Step after:
``labelled`` makes batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.sampled import unescaped
from analytics.sources.labelled import PLAIN, Floats, Ints, Series, series

KNOWN_MAX: Final = 1_000_000
"""Series that a parser remembers. With more it starts again, in case names change at each
scrape."""
SHOWN_MAX: Final = 5
"""Number of unreadable lines kept as examples."""
SHOWN_SIZE: Final = 120
_PLAIN: Final = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{(?:group="([^"\\]*)",?)?(?:topic="([^"\\]*)",?)?'
    r'(?:queue="([0-9]{1,9})")?\} ([^ ]+)'
).fullmatch
"""Matches nearly all lines: those of Tidemark for groups, topics and queues."""
_LABELS: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"').findall
_LINE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*"
    r'(?:\{((?:[ \t]*[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*,?)*)[ \t]*\})?'
    r"(?<=[ \t}])[ \t]*([^ \t#{}]+)(?:[ \t]+(-?[0-9][0-9.eE+-]*))?[ \t]*(?:#.*)?"
).fullmatch
"""Matches name, labels, value, time, and an exemplar, which is ignored."""


class Parsed(NamedTuple):
    """Content of one answer."""

    series: list[Series]
    """Series that the parser knows; the list grows with each answer."""
    at: Ints
    """Index of the series of each sample."""
    values: Floats
    ts_us: Ints | None
    """Times in the lines, 0 for those without; None if no line has one."""
    is_whole: bool
    """The answer ended as its format requires. A truncated answer must not count."""
    unreadable: int
    shown: list[str]
    """Examples of unreadable lines, shortened."""


class Parser:
    """Parser of one target. Labels of the target are added to every series and override those of a
    line."""

    def __init__(self, target: Mapping[str, str]) -> None:
        """target: labels, including ``instance``."""
        self._target = dict(target)
        self._base = series(target)
        self._series: list[Series] = []
        self._known: dict[str, int] = {}
        self._is_plain = not self._base.labels and PLAIN.isdisjoint(self._target)
        self._label_sets: dict[str, Series] = {}
        """Other labels by their text, because buckets of histograms share them."""

    def parse(self, text: str, *, openmetrics: bool) -> Parsed:
        """Parse one answer. openmetrics: whether its content type is OpenMetrics; such an answer
        ends with ``# EOF``."""
        if len(self._known) > KNOWN_MAX:
            self._series, self._known, self._label_sets = [], {}, {}
        lines = text.split("\n")
        ends_well = lines.pop() == ""
        has_end = False
        known = self._known
        at: list[int] = []
        values: list[float] = []
        times: dict[int, int] = {}
        bad: list[str] = []
        bad_count = 0
        for number, line in enumerate(lines):
            name, _, text_of = line.rpartition(" ")
            place = known.get(name)
            if place is not None:
                value = _number(text_of)
                if value is not None:
                    at.append(place)
                    values.append(value)
                    continue
            plain = _PLAIN(line) if self._is_plain else None
            if plain is not None:
                value = _number(plain[5])
                if value is not None:
                    at.append(self._plain_place(name, plain))
                    values.append(value)
                    continue
            if line.startswith("#"):
                if line != "# EOF":
                    continue
                has_end = True
                behind = [line for line in lines[number + 1 :] if line.strip()]
                bad_count += len(behind)
                bad += [line[:SHOWN_SIZE] for line in behind[: SHOWN_MAX - len(bad)]]
                break
            found = _LINE(line)
            value = None if found is None else _number(found[3])
            at_us = None
            if found is not None and found[4] is not None:
                at_us = _time_us(found[4], openmetrics=openmetrics)
                value = None if at_us is None else value
            if found is None or value is None:
                if line.strip():
                    bad_count += 1
                    if len(bad) < SHOWN_MAX:
                        bad.append(line[:SHOWN_SIZE])
                continue
            if at_us is not None:
                times[len(at)] = at_us
            at.append(self._place(line[: found.start(3)].rstrip(" \t"), found[1], found[2] or ""))
            values.append(value)
        return Parsed(
            self._series,
            np.array(at, np.int64),
            np.array(values, np.float64),
            _spread(times, len(at)) if times else None,
            ends_well and bool(lines) and (has_end or not openmetrics),
            bad_count,
            bad,
        )

    def _place(self, text: str, name: str, labels: str) -> int:
        """Index of a series; a new one gets the next index."""
        place = self._known.get(text)
        if place is None:
            place = self._known[text] = len(self._series)
            self._series.append(self._made(name, labels))
        return place

    def _plain_place(self, text: str, plain: re.Match[str]) -> int:
        """Add a series without other labels, which needs no sorting or joining."""
        metric, group, topic, queue, _ = plain.groups()
        base = self._base
        place = self._known[text] = len(self._series)
        self._series.append(
            Series(
                base.target, metric, base.cluster, base.broker, base.replica, base.service,
                group or None, topic or None, None if queue is None else int(queue), "",
            )
        )  # fmt: skip
        return place

    def _made(self, name: str, labels: str) -> Series:
        of = self._label_sets.get(labels)
        if of is None:
            own = {key: unescaped(value) for key, value in _LABELS(labels)}
            of = self._label_sets[labels] = series({**own, **self._target})
        return of._replace(metric=name)


def _number(text: str) -> float | None:
    """Parse a number; reject forms that only Python accepts, such as 1_000 or other scripts."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _time_us(text: str, *, openmetrics: bool) -> int | None:
    """Parse the time of a line: seconds in OpenMetrics, milliseconds in the text format."""
    try:
        return round(float(text) * (1_000_000 if openmetrics else 1_000))
    except (ValueError, OverflowError):
        return None


def _spread(times: Mapping[int, int], count: int) -> Ints:
    found = np.zeros(count, np.int64)
    for place, at_us in times.items():
        found[place] = at_us
    return found
