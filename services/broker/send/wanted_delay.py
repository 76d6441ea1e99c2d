"""How long the sender of a message wants it to wait. Pure.

Before: ``messages`` reads a request. After: ``placing`` puts the message where it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from services.broker.fields import I64_MAX, whole_number
from tidemark.errors import BadRequest, DelayOutOfRange
from tidemark.formats.delay import DELAY_MS_MAX

DELAY_FIELDS: Final = ("delay_level", "deliver_at_ms", "delay_ms")


class Delay(NamedTuple):
    """How long a message is to wait: exactly one of the three is given."""

    level: int | None = None
    """1 … the number of configured levels."""
    after_ms: int | None = None
    """So long after it was stored."""
    at_ms: int | None = None
    """Until this time of the wall clock; how far ahead it may be is judged when it is stored."""


def wanted_delay(fields: Mapping[str, object], at: str, *, level_count: int) -> Delay | None:
    """What the fields of the message named ``at`` ask for; None: it is not to wait.

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
    """The refusal of a message that would wait too long, or whose time is none."""
    return DelayOutOfRange(
        f"{field} is {value}: a message can wait for {DELAY_MS_MAX} ms (40 days), and no time is "
        "negative. Nothing was stored.",
        "Send it later, or give an earlier time.",
        field=field,
        limit=DELAY_MS_MAX,
        **facts,
    )
