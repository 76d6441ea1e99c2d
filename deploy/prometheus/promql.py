"""As much of Prometheus' query language as our rules and panels need: words, names, times. Pure.

Not a parser: whether an expression is one, ``promtool`` says. This finds what it speaks of (metrics
with the labels that are asked of them, labels of groupings), and lets its times run faster.
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
    """One word of an expression."""

    kind: str
    text: str


class Used(NamedTuple):
    """What an expression speaks of."""

    metrics: dict[str, set[str]]
    """Every metric's name, with the labels that its selectors compare."""
    groupings: set[str]
    """Labels named in ``by (…)``, ``on (…)`` and their like."""


def tokens(expr: str) -> list[Token]:
    """Every word, spaces too: joined they are ``expr``. Raises ValueError at what is none."""
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
    """The names in an expression. Raises ValueError if brackets do not close."""
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
    """A word that is no function, aggregation (also with its grouping first) or operator."""
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
    """A duration such as ``1h30m`` in ms. Raises ValueError if it is none."""
    if not re.fullmatch(r"(?:\d+(?:ms|[smhdwy]))+", duration):
        raise ValueError(f"not a duration: {duration!r}")
    return sum(
        int(count) * _UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration)
    )


def faster(duration: str, factor: float) -> str:
    """The duration divided by factor, in whole ms, at least 1 unless it is 0."""
    whole = milliseconds(duration)
    return f"{max(1, round(whole / factor)) if whole else 0}ms"


def run_faster(expr: str, factor: float) -> str:
    """The expression with all its ranges, steps and offsets divided by factor.

    Plain numbers stay: ``> 10`` is a promise in seconds of the system, not of watching it.
    """
    return "".join(
        faster(token.text, factor) if token.kind == "duration" else token.text
        for token in tokens(expr)
    )
