"""Checks of single fields: each takes a value and its name, and applies a rule. Pure.

The error for a wrong value contains the field's name and the given value. A name is a path in the
request, e.g. ``messages[3].properties.colour``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Final

from tidemark.errors import BadName, BadRequest

SHOWN_MAX: Final = 60
NAME_SIZE_MAX: Final = 127
"""Bytes of a topic's name (docs/formats.md, 2.10)."""
GROUP_PREFIXED_SIZE_MAX: Final = 255
"""Bytes of a %RETRY% or %DLQ% topic's name (docs/formats.md, 2.10)."""
NAME_RULE: Final = "1 to 127 of the characters a-z A-Z 0-9 _ - % |"
_CHARACTER: Final = "[%|a-zA-Z0-9_-]"
NAME_PATTERN: Final = (
    f"^(%RETRY%{_CHARACTER}{{0,248}}|%DLQ%{_CHARACTER}{{0,250}}|{_CHARACTER}{{1,127}})\\Z"
)
"""Matches a topic's or group's name (docs/formats.md, 2.10); in JSON Schema ``\\Z`` is ``$``."""
_NAME: Final = re.compile(NAME_PATTERN)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1


def shown(value: object) -> str:
    """Return a given value in a form for an error message: short and escaped."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "a map" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a huge number"  # repr of a very long integer is refused by Python itself
    # Truncated before repr: repr of a 16 MiB string costs more than the request.
    text = repr(value[: SHOWN_MAX + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def table(value: object, at: str) -> Mapping[str, object]:
    """Check that the value is a map with string keys, and return it."""
    if not isinstance(value, dict):
        raise BadRequest(f"{at} must be a map, not {shown(value)}.", field=at)
    for key in value:
        if not isinstance(key, str):
            raise BadRequest(f"{at} has the key {shown(key)}; keys are strings.", field=at)
    return value


def known_fields(
    fields: Mapping[str, object], known: Collection[str], prefix: str
) -> Mapping[str, object]:
    """Return the same map; raise BadRequest if it has an unknown field.

    Otherwise a misspelt field would silently get its default.
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
    """Check that the value is a string of valid Unicode, and return it."""
    if not isinstance(value, str):
        raise BadRequest(f"{at} must be a string, not {shown(value)}.", field=at)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{at} is not UTF-8 text.", field=at) from None
    return value


def whole_number(value: object, at: str, low: int, high: int) -> int:
    """Return a whole number in [low, high]. A boolean is refused; 3.0 counts as 3."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadRequest(
            f"{at} must be a whole number from {low} to {high}, not {shown(value)}.", field=at
        )
    return value


def parameter_int(text: str, name: str, low: int = -I64_MAX - 1, high: int = I64_MAX) -> int:
    """Parse a whole number in a query or a path."""
    # A regular expression because int() also accepts "1_000", "+1", " 1" and non-ASCII digits.
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise BadRequest(
            f"{name} must be a whole number from {low} to {high}, not {shown(text)}.", field=name
        )
    return int(text)


@functools.lru_cache(maxsize=1024)
def plain_name(text: str) -> str | None:
    """Return the text if it is a valid topic name without escapes; else None."""
    try:
        return check_name(text) if "%" not in text else None
    except BadName:
        return None


def check_name(name: str, what: str = "topic") -> str:
    """Return the name if it is a valid topic name; raise BadName if not."""
    if not _NAME.match(name):
        is_prefixed = name.startswith(("%RETRY%", "%DLQ%"))
        limit = GROUP_PREFIXED_SIZE_MAX if is_prefixed else NAME_SIZE_MAX
        raise BadName(
            f"{what} {shown(name)} is not a name: {NAME_RULE}.",
            "Choose another name.",
            field=what,
            limit=limit,
        )
    return name
