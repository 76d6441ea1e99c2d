"""Parses the delay that a send asks for. Pure.

Step before: ``messages`` reads a request. Step after: ``placing`` puts the message into a delay
topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from services.broker.fields import I64_MAX, whole_number
from tidemark.errors import BadRequest, DelayOutOfRange
from tidemark.formats.delay import DELAY_MS_MAX

DELAY_FIELDS: Final = ("delay_level", "deliver_at_ms", "delay_ms")


class Delay(NamedTuple):
    """The delay of a message: exactly one of the three fields is given."""

    level: int | None = None
    """1 … the number of configured levels."""
    after_ms: int | None = None
    """Delay after the store time."""
    at_ms: int | None = None
    """Due time by the wall clock; its limit is checked when the message is stored."""


def wanted_delay(fields: Mapping[str, object], at: str, *, level_count: int) -> Delay | None:
    """Return the delay in the fields of the message named ``at``; None: it is not delayed.

    level_count: how many delay levels there are. Raises BadRequest, DelayOutOfRange.
    """
    given = [name for name in DELAY_FIELDS if fields.get(name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise BadRequest(
            f"{at} has {' and '.join(given)}; one of them says when it is delivered. "
            "Nothing was stored.",
            field=f"{at}.{given[1]}",
        )
    (name,) = given
    value = whole_number(fields[name], f"{at}.{name}", -I64_MAX - 1, I64_MAX)
    if name == "delay_level":
        if not 1 <= value <= level_count:
            raise DelayOutOfRange(
                f"{at}.delay_level is {value}; there are the levels 1 to {level_count}. "
                "Nothing was stored.",
                "Use one of these, or delay_ms for any time.",
                field=f"{at}.delay_level",
                limit=level_count,
            )
        return Delay(level=value)
    if value < 0 or (name == "delay_ms" and value > DELAY_MS_MAX):
        raise out_of_range(f"{at}.{name}", value)
    return Delay(after_ms=value) if name == "delay_ms" else Delay(at_ms=value)


def out_of_range(field: str, value: int, **facts: int) -> DelayOutOfRange:
    """Return the error for a message whose delay is too long or not a valid time."""
    return DelayOutOfRange(
        f"{field} is {value}: a message can wait for {DELAY_MS_MAX} ms (40 days), and no time is "
        "negative. Nothing was stored.",
        "Send it later, or give an earlier time.",
        field=field,
        limit=DELAY_MS_MAX,
        **facts,
    )
