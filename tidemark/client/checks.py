"""Checks one message before it is sent, so that an invalid one fails alone and at once. Pure.

A message shares its request with messages of other callers, and a broker rejects a request as a
whole. Therefore everything that can be checked without the broker is checked here by the broker's
own rules (``services/broker/messages``). A wrong type is a TypeError; a wrong value is the error
that the broker would answer. The broker checks what only it knows: the maximum body size, the
number of delay levels, its clock. Step before: ``client``. Step after: ``producer`` packs the
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidemark import errors
from tidemark.formats import properties
from tidemark.formats.delay import DELAY_MS_MAX

I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1
TIMEOUT_MS_MAX: Final = 60_000
"""Maximum time in which a broker waits for the ack level of a send."""
NOTHING_SENT: Final = "Nothing was sent."


def check_body(body: object) -> None:
    """Raise TypeError unless body is contiguous bytes."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"body must be bytes, not {type(body).__name__}; encode it first")
    if isinstance(body, memoryview) and not body.c_contiguous:
        raise TypeError("body is a memoryview with gaps; send bytes(body)")


def check_send(topic: object, ack: object, timeout_ms: object) -> None:
    """Raise TypeError or BadRequest for an invalid argument other than the message."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a string, not {type(topic).__name__}")
    if ack is not None and not isinstance(ack, str):
        raise TypeError(f"ack must be a string, not {type(ack).__name__}")
    if timeout_ms is not None:
        check_whole(timeout_ms, "timeout_ms", 1, TIMEOUT_MS_MAX)


def check_whole(value: object, name: str, low: int, high: int) -> None:
    """Raise TypeError unless value is an int, BadRequest if it is outside [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise errors.BadRequest(
            f"{name} must be from {low} to {high}, not {_shown(value)}. {NOTHING_SENT}", field=name
        )


def check_text(value: object, name: str) -> None:
    """Raise TypeError unless value is a string, BadProperty if a record cannot hold the text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if not value:
        raise errors.BadProperty(
            f"{name} is empty; a record cannot store an empty value. {NOTHING_SENT}",
            "Leave it out.",
            field=name,
        )
    if "\x01" in value or "\x02" in value:
        raise errors.BadProperty(
            f"{name} contains 0x01 or 0x02, which separate properties. {NOTHING_SENT}", field=name
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise errors.BadRequest(
                f"{name} is not UTF-8 text: {error.reason}. {NOTHING_SENT}", field=name
            ) from None


def check_queue(queue: object) -> None:
    """Raise TypeError or BadRequest unless it is a queue number or the name of a queue."""
    if isinstance(queue, str) and "/" in queue:
        parse_queue(queue)
    else:
        check_whole(queue, "queue", 0, I32_MAX)


def parse_queue(name: str) -> tuple[str, int]:
    """Return broker group and number of a queue that is written as ``g0/3``. Raises BadRequest."""
    broker_group, slash, number = name.rpartition("/")
    if not (slash and broker_group and number.isascii() and number.isdigit()):
        raise errors.BadRequest(
            f"queue is {name!r}; in a cluster a queue is written as BROKER_GROUP/NUMBER. "
            f"{NOTHING_SENT}",
            "Write for example g0/3.",
            field="queue",
        )
    return broker_group, int(number)


def check_no_string(keys: object) -> None:
    """Raise TypeError for a single string: its letters would be taken as the keys."""
    if isinstance(keys, str | bytes) or not hasattr(keys, "__iter__"):
        raise TypeError('keys must be a list of strings: keys=["order-1"]')


def check_keys(keys: object) -> list[str]:
    """Return the keys as a list. Raises TypeError, BadProperty."""
    check_no_string(keys)
    assert isinstance(keys, Iterable)
    listed = list(keys)
    for index, key in enumerate(listed):
        check_text(key, f"keys[{index}]")
        if " " in key:
            raise errors.BadProperty(
                f"keys[{index}] contains a space, which separates keys. {NOTHING_SENT}",
                field=f"keys[{index}]",
            )
    return listed


def check_properties(given: object) -> dict[str, str]:
    """Return a checked copy of the properties. Raises TypeError, BadProperty."""
    if not isinstance(given, Mapping):
        raise TypeError(f"properties must be a map of strings, not {type(given).__name__}")
    pairs = dict(given)
    for name, value in pairs.items():
        check_text(name, "a property's name")
        if properties.is_refused(name):
            raise errors.BadProperty(
                f"properties.{name}: the name is reserved for the store. {NOTHING_SENT}",
                "Use another name; tags, keys and sharding_key are arguments of their own.",
                field=f"properties.{name}",
            )
        check_text(value, f"properties.{name}")
    return pairs


def check_properties_size(size: int) -> None:
    """Raise BadProperty if too large. size: bytes of names and values without the broker's own."""
    if size > properties.PROPERTIES_SIZE_MAX:
        raise errors.BadProperty(
            f"properties, tags and keys together take {size} bytes; a record holds at most "
            f"{properties.PROPERTIES_SIZE_MAX}. {NOTHING_SENT}",
            "Put large values into the body.",
            field="properties",
            limit=properties.PROPERTIES_SIZE_MAX,
        )


def check_delay(*, delay_level: object, delay_ms: object, deliver_at_ms: object) -> tuple[str, int]:
    """Return the name and value of the one delay argument that is given.

    Only the broker checks how far in the future a time may be, because that depends on its clock.
    Raises TypeError, BadRequest, DelayOutOfRange.
    """
    given = [
        (name, value)
        for name, value in (
            ("delay_level", delay_level),
            ("delay_ms", delay_ms),
            ("deliver_at_ms", deliver_at_ms),
        )
        if value is not None
    ]
    if len(given) != 1:
        names = " and ".join(name for name, _ in given)
        raise errors.BadRequest(
            f"a message has {names}; only one of them may set its delivery time. {NOTHING_SENT}",
            field=given[1][0],
        )
    ((name, value),) = given
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if name == "delay_level":
        low, high = 1, I32_MAX  # the broker checks the number of levels
    elif name == "delay_ms":
        low, high = 0, DELAY_MS_MAX
    else:
        low, high = 0, I64_MAX
    if not low <= value <= high:
        raise errors.DelayOutOfRange(
            f"{name} is {_shown(value)}: the maximum delay is {DELAY_MS_MAX} ms (40 days), "
            f"levels start at 1, and times are not negative. {NOTHING_SENT}",
            "Send it later, or give an earlier time.",
            field=name,
            limit=DELAY_MS_MAX,
        )
    return name, value


def _shown(value: int) -> str:
    """Format a number for a message; Python refuses to format very large ones."""
    return str(value) if value.bit_length() <= 128 else "a huge number"
