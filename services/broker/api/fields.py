"""Checks of single fields: a value, its name, its rule. Pure.

A wrong one is named, together with what was given.
Names are paths a caller can follow: ``messages[3].properties.colour``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from tidemark.errors import BadName, BadRequest

SHOWN_MAX: Final = 60
NAME_SIZE_MAX: Final = 127
"""Bytes of a topic's name (store layout 2.10)."""
GROUP_PREFIXED_SIZE_MAX: Final = 255
"""Bytes of a %RETRY% or %DLQ% topic's name (store layout 2.10)."""
NAME_RULE: Final = "1 to 127 of the characters a-z A-Z 0-9 _ - % |"
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
I64_MAX: Final = (1 << 63) - 1

T = TypeVar("T")


def shown(value: object) -> str:
    """A given value as it may stand in a sentence: short, escaped, never huge."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "a map" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a huge number"  # repr of a very long integer is refused by Python itself
    # Cut before repr: repr of a 16 MiB string costs more than the request.
    text = repr(value[: SHOWN_MAX + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def table(value: object, at: str) -> Mapping[str, object]:
    """A map with string keys."""
    if not isinstance(value, dict):
        raise BadRequest(f"{at} must be a map, not {shown(value)}.", field=at)
    for key in value:
        if not isinstance(key, str):
            raise BadRequest(f"{at} has the key {shown(key)}; keys are strings.", field=at)
    return value


def known_fields(
    fields: Mapping[str, object], known: Collection[str], prefix: str
) -> Mapping[str, object]:
    """The same map, if it has no field that we would ignore.

    A misspelt field must not silently mean its default.
    """
    unknown = fields.keys() - known
    if unknown:
        name = min(unknown)
        raise BadRequest(
            f"{shown(prefix + name[:SHOWN_MAX])} is not a field of this call.",
            "It has: " + ", ".join(sorted(known)) + ".",
            field=prefix + name[:SHOWN_MAX],
        )
    return fields


def string(value: object, at: str) -> str:
    """Unicode text."""
    if not isinstance(value, str):
        raise BadRequest(f"{at} must be a string, not {shown(value)}.", field=at)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{at} is not UTF-8 text.", field=at) from None
    return value


def whole_number(value: object, at: str, low: int, high: int) -> int:
    """A whole number in [low, high]; True is none although Python thinks so, 3.0 is 3."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadRequest(
            f"{at} must be a whole number from {low} to {high}, not {shown(value)}.", field=at
        )
    return value


def one_of(value: object, at: str, choices: Sequence[T]) -> T:
    """One of a few words."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise BadRequest(
        f"{at} must be one of {', '.join(map(str, choices))}, not {shown(value)}.", field=at
    )


def parameter_int(text: str, name: str, low: int = -I64_MAX - 1, high: int = I64_MAX) -> int:
    """A whole number in a query or a path."""
    # fullmatch and not int(): int() takes "1_000", "+1", " 1" and digits of every script.
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise BadRequest(
            f"{name} must be a whole number from {low} to {high}, not {shown(text)}.", field=name
        )
    return int(text)


@functools.lru_cache(maxsize=1024)
def plain_name(text: str) -> str | None:
    """The text if it is a topic's name as it stands, without escapes; else None."""
    try:
        return check_name(text) if "%" not in text else None
    except BadName:
        return None


def check_name(name: str, what: str = "topic") -> str:
    """A topic's name that may be asked for; whether it exists is another question."""
    limit = GROUP_PREFIXED_SIZE_MAX if name.startswith(("%RETRY%", "%DLQ%")) else NAME_SIZE_MAX
    if not _NAME.fullmatch(name) or len(name) > limit:
        raise BadName(
            f"{what} {shown(name)} is not a name: {NAME_RULE}.",
            "Choose another name.",
            field=what,
            limit=limit,
        )
    return name
