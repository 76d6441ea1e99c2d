"""Typed access to the members of an unpacked msgpack map. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgpack

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[Value, Value] | None"

I64_MAX: Final = 2**63 - 1
I32_MIN: Final = -(2**31)
I32_MAX: Final = 2**31 - 1


class StateRecordUnreadable(ValueError):
    """The body is not a state record or lacks a required field; the message names the field."""


def unpacked(body: bytes | bytearray | memoryview) -> Value:
    """Unpack a body. Raises StateRecordUnreadable."""
    try:
        # Keys may be of any type: queues and levels are numbers. TypeError: a list as a key.
        value: Value = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateRecordUnreadable(f"not msgpack: {error}") from None
    return value


def is_number(value: Value, high: int) -> bool:
    """Whether value is an integer in 0…high; a bool does not count, although it is an int."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high


class TypedFields:
    """One map. Every method raises StateRecordUnreadable if the member is of another type."""

    def __init__(self, value: Value, what: str) -> None:
        """what: name of the map in error messages."""
        if not isinstance(value, dict):
            raise StateRecordUnreadable(f"{what} is not a map")
        self.members = value
        self._what = what

    def value(self, name: str) -> Value:
        """The member as it is; None if it is missing."""
        return self.members.get(name)

    def integer(
        self, name: str, default: int | None = None, *, low: int = 0, high: int = I64_MAX
    ) -> int:
        """An integer in low…high."""
        value = self.members.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number in {low}…{high}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """An integer from 0 on; None if it is missing or nil."""
        return None if self.members.get(name) is None else self.integer(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.members.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self.members.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def items(self, name: str) -> list[Value]:
        """A list; empty if it is missing."""
        value = self.members.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def strings(self) -> dict[str, str]:
        """Return the whole map, from strings to strings."""
        found = {}
        for name, value in self.members.items():
            if not isinstance(name, str):
                raise StateRecordUnreadable(f"a name in {self._what} is not a string")
            if not isinstance(value, str):
                raise self._wrong(name, "a string")
            found[name] = value
        return found

    def maps(self) -> dict[str, Value]:
        """Return the whole map, from strings to values of any type."""
        found = {}
        for name, value in self.members.items():
            if not isinstance(name, str):
                raise StateRecordUnreadable(f"a name in {self._what} is not a string")
            found[name] = value
        return found

    def numbers(self) -> dict[int, int]:
        """Return the whole map, from numbers (of queues or levels) to offsets."""
        found = {}
        for number, value in self.members.items():
            if not is_number(number, I32_MAX) or not is_number(value, I64_MAX):
                raise StateRecordUnreadable(f"{self._what} is not a map of numbers to offsets")
            assert isinstance(number, int)
            assert isinstance(value, int)
            found[number] = value
        return found

    def _wrong(self, name: str, wanted: str) -> StateRecordUnreadable:
        return StateRecordUnreadable(f"{name} of {self._what} is not {wanted}")
