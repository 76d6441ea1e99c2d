"""The JSON that RocketMQ speaks, and typed questions to it (docs/formats.md, section 15.1). Pure.

The dialect is fastjson's: pretty-printed with tabs, and maps whose keys are integers have them bare
({0:12,1:7}), which no JSON parser takes. We write the same and read both forms.
What the files hold is ``formats.metadata_json``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Writable: TypeAlias = (
    "bool | int | float | str | Sequence[Writable] | Mapping[str, Writable] "
    "| Mapping[int, int] | None"
)

I32: Final = (-(2**31), 2**31 - 1)
I64: Final = (-(2**63), 2**63 - 1)
DEPTH_MAX: Final = 64
"""Deeper values are refused on reading, so that writing what was read cannot overflow the stack."""

# Strings come first, so that a number inside one is not taken for a key. Possessive: a damaged
# file of megabytes must not take minutes.
_STRING_OR_BARE_KEY: Final = re.compile(
    r'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))|([{,]\s*+)(-?[0-9]++)(?=\s*+:)', re.DOTALL
)


class MetadataUnreadable(ValueError):
    """The text is not what the file should hold; the message names the place."""


def loads(text: str) -> Json:
    """Parse; bare integer keys become strings. Raises MetadataUnreadable."""
    try:
        value: Json = json.loads(
            _STRING_OR_BARE_KEY.sub(_quote_key, text),
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise MetadataUnreadable("nested too deeply") from None
    except ValueError as error:
        raise MetadataUnreadable(f"not JSON: {error}") from None
    if _is_deeper(value, DEPTH_MAX):
        raise MetadataUnreadable("nested too deeply")
    return value


def dumps(value: Writable) -> str:
    """Write as fastjson does: tabs, keys sorted, integer keys bare, lists in one line.

    Every key in a map is a string or every key is an integer.
    """
    return _dump(value, "")


def _quote_key(match: re.Match[str]) -> str:
    return match[1] or f'{match[2]}"{match[3]}"'


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of range")
    return number


def _dump(value: Writable, indent: str) -> str:
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        if all(isinstance(key, int) for key in value):
            pairs = ",".join(f"{key}:{number}" for key, number in sorted(value.items()))
            return f"{{{pairs}\n{indent}}}"
        inner = indent + "\t"
        lines = [
            f"\n{inner}{json.dumps(key, ensure_ascii=False)}:{_dump(member, inner)}"
            for key, member in sorted(value.items())
        ]
        return "{" + ",".join(lines) + f"\n{indent}}}"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Fields:
    """One JSON object, asked for typed members; a missing or null one is the default."""

    def __init__(self, value: Json, what: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise MetadataUnreadable(f"{what} is not an object")
        self._members = value
        self._what = what

    def names(self) -> list[str]:
        """The members' names. Raises MetadataUnreadable if one is not text."""
        for name in self._members:
            if not is_text(name):
                raise MetadataUnreadable(f"a name in {self._what} is not text: {name!a}")
        return list(self._members)

    def member(self, key: str) -> Json:
        """A member as it is; None if it is missing."""
        return self._members.get(key)

    def sub(self, key: str) -> Fields:
        """A member that is an object."""
        return Fields(self._members.get(key), f"{key} of {self._what}")

    def integer(
        self,
        key: str,
        default: int,
        *,
        limits: tuple[int, int] = I32,
        minimum: int | None = None,
    ) -> int:
        """A whole number within limits."""
        value = self._members.get(key)
        if value is None:
            return default
        low = limits[0] if minimum is None else minimum
        # bool is an int in Python, not in JSON.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limits[1]:
            raise self._wrong(key, f"a whole number in {low}…{limits[1]}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._members.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def string(self, key: str, default: str) -> str:
        """Text."""
        value = self._members.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not is_text(value):
            raise self._wrong(key, "a string")
        return value

    def _wrong(self, key: str, wanted: str) -> MetadataUnreadable:
        return MetadataUnreadable(f"{key} of {self._what} is not {wanted}")


def is_text(value: str) -> bool:
    """False for half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_deeper(value: Json, depth: int) -> bool:
    if isinstance(value, dict):
        return not depth or any(_is_deeper(member, depth - 1) for member in value.values())
    if isinstance(value, list):
        return not depth or any(_is_deeper(member, depth - 1) for member in value)
    return False
