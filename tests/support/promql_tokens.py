"""The part of PromQL that our rules and panels need: words, names, times. Pure.

It is not a parser; ``promtool`` checks the syntax. This module finds the names in an expression
(metrics with the labels of their selectors, labels of groupings), and scales its times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<variable>\$\{?\w+(?::\w+)?\}?)
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![\w.]))
    |(?P<number>0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<word>[a-zA-Z_][\w:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>@:])""",
    re.VERBOSE,
)
GROUPING: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS: Final = GROUPING | {"and", "or", "unless", "bool", "offset", "atan2", "start", "end"}
_NUMBERS: Final = frozenset({"inf", "nan"})
_COMPARISONS: Final = frozenset({"=", "!=", "=~", "!~"})


class Token(NamedTuple):
    """One token of an expression."""

    kind: str
    text: str


class Used(NamedTuple):
    """Names that an expression contains."""

    metrics: dict[str, set[str]]
    """Name of every metric with the labels in its selectors."""
    groupings: set[str]
    """Labels in ``by (…)``, ``on (…)`` and similar clauses."""


def tokens(expr: str) -> list[Token]:
    """Split expr into tokens, including spaces. Raises ValueError for an invalid token."""
    found: list[Token] = []
    at = 0
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise ValueError(f"no word of a query at {expr[at : at + 20]!r}")
        found.append(Token(str(match.lastgroup), match.group()))
        at = match.end()
    return found


def used(expr: str) -> Used:
    """Return the names in an expression. Raises ValueError if brackets do not close."""
    words = [token for token in tokens(expr) if token.kind != "space"]
    metrics: dict[str, set[str]] = {}
    groupings: set[str] = set()
    at = 0
    while at < len(words):
        kind, text = words[at]
        after = words[at + 1].text if at + 1 < len(words) else ""
        if kind == "word" and text in GROUPING and after == "(":
            end = _closing(words, at + 1, ")")
            groupings |= {word.text for word in words[at + 1 : end] if word.kind == "word"}
            at = end
        elif text == "{":
            raise ValueError(f"a selector without a metric's name: {expr}")
        elif kind == "word" and _names_a_metric(words, at, after):
            labels = metrics.setdefault(text, set())
            if after == "{":
                end = _closing(words, at + 1, "}")
                labels |= set(_compared(words[at + 2 : end]))
                at = end
        at += 1
    return Used(metrics, groupings)


def _names_a_metric(words: list[Token], at: int, after: str) -> bool:
    """Whether a word is no function, aggregation (even with its grouping first) or operator."""
    text = words[at].text
    return not (
        text in _WORDS
        or text.lower() in _NUMBERS
        or after == "("
        or after in ("by", "without")
        or (at + 1 < len(words) and words[at + 1].kind == "word" and after in ("by", "without"))
    )


def _compared(words: list[Token]) -> Iterator[str]:
    for word, after in pairwise(words):
        if word.kind == "word" and after.text in _COMPARISONS:
            yield word.text


def _closing(words: list[Token], at: int, bracket: str) -> int:
    for end in range(at, len(words)):
        if words[end].text == bracket:
            return end
    raise ValueError(f"no {bracket} after {words[at - 1].text}")


def milliseconds(duration: str) -> int:
    """Convert a duration such as ``1h30m`` to ms. Raises ValueError if it is invalid."""
    if not re.fullmatch(r"(?:\d+(?:ms|[smhdwy]))+", duration):
        raise ValueError(f"not a duration: {duration!r}")
    return sum(
        int(count) * _UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration)
    )


def faster(duration: str, factor: float) -> str:
    """Divide the duration by factor, in whole ms, at least 1 unless it is 0."""
    whole = milliseconds(duration)
    return f"{max(1, round(whole / factor)) if whole else 0}ms"


def run_faster(expr: str, factor: float) -> str:
    """Divide all ranges, steps and offsets of the expression by factor.

    Plain numbers stay unchanged: ``> 10`` is a limit of the system, not a time of evaluation.
    """
    return "".join(
        faster(token.text, factor) if token.kind == "duration" else token.text
        for token in tokens(expr)
    )
