"""RocketMQ's JSON dialect, and typed access to its values (docs/formats.md, section 15.1). Pure.

The dialect is fastjson's: pretty-printed with tabs, and maps with integer keys have them unquoted
({0:12,1:7}), which JSON parsers reject. Tidemark writes the same and reads both forms.
``formats.metadata_json`` defines the content of the files.
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
"""Deeper values are rejected when read, so that writing them back cannot overflow the stack."""

# Strings come first, so that a number inside one is not taken for a key. Possessive quantifiers:
# a damaged file of megabytes must not take minutes.
_STRING_OR_BARE_KEY: Final = re.compile(
    r'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))|([{,]\s*+)(-?[0-9]++)(?=\s*+:)', re.DOTALL
)


class MetadataUnreadable(ValueError):
    """The text is not valid for the file; the message names the place."""


def loads(text: str) -> Json:
    """Parse a text; unquoted integer keys become strings. Raises MetadataUnreadable."""
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
    """Write like fastjson: tabs, sorted keys, unquoted integer keys, lists in one line.

    The keys of a map are either all strings or all integers.
    """
    return _dump(value, "")


def _quote_key(match: re.Match[str]) -> str:
    return match[1] or f'{match[2]}"{match[3]}"'


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


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
    """One JSON object with typed access; a missing or null member gives the default."""

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
        """A member without conversion; None if it is missing."""
        return self._members.get(key)

    def sub(self, key: str) -> Fields:
        """A member that is an object itself."""
        return Fields(self._members.get(key), f"{key} of {self._what}")

    def integer(
        self,
        key: str,
        default: int,
        *,
        limits: tuple[int, int] = I32,
        minimum: int | None = None,
    ) -> int:
        """A member that is a whole number within limits."""
        value = self._members.get(key)
        if value is None:
            return default
        low = limits[0] if minimum is None else minimum
        # bool is an int in Python, not in JSON.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limits[1]:
            raise self._wrong(key, f"a whole number in {low}…{limits[1]}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A member that is true or false."""
        value = self._members.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def string(self, key: str, default: str) -> str:
        """A member that is a string."""
        value = self._members.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not is_text(value):
            raise self._wrong(key, "a string")
        return value

    def _wrong(self, key: str, wanted: str) -> MetadataUnreadable:
        return MetadataUnreadable(f"{key} of {self._what} is not {wanted}")


def is_text(value: str) -> bool:
    """Whether the value has no lone surrogates, which JSON can contain and UTF-8 cannot."""
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
