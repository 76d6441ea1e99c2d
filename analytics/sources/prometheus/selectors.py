"""PromQL vector selectors: parsed and split into shards. Pure. Step before: options. Step after:
``plan``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from analytics.sources.option_values import BadOption

SHARDS_MAX: Final = 10
_SELECTOR: Final = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?\s*", re.DOTALL)
MS_US: Final = 1000


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
