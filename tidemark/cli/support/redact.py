"""What must not leave the machine is taken out: secrets, and all that came from a message. Pure.

Two nets. The first knows the shape: of a log line only facts stay, of a traceback its places. The
second knows the secrets themselves and looks through every byte of the bundle at the end.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any, Final

LEFT_OUT: Final = "<left out>"
VALUE_SIZE_MAX: Final = 500
LINE_SIZE_MAX: Final = 16 << 10
SECRET_SIZE_MIN: Final = 6
"""Shorter ones would be found everywhere; ha takes none below 16 bytes."""
FROM_MESSAGES: Final = re.compile(
    r"body|keys?|propert|tags?|header|payload|secret|token|password|passwd|credential|authorization"
    r"|cookie|unique_id|sharding",
    re.IGNORECASE,
)
"""Names of fields whose values may be a message's, or a secret."""
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s\"']+@")
"""Up to the last ``@``: a password may have one itself."""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._-]{8,}")
_PLACE: Final = re.compile(r'^\s*File "[^"]+", line \d+, in .*$')


def log_line(line: str) -> str | None:
    """One line of a service's log without what it may have from a message; None: leave it out.

    Lines that are not ours (another program's, half a line) can hold anything, and are left out.
    """
    if len(line) > LINE_SIZE_MAX:
        return None
    try:
        facts = json.loads(line)
    except ValueError:
        return None
    if not isinstance(facts, dict) or not isinstance(facts.get("event"), str):
        return None
    kept: dict[str, Any] = {}
    for name, value in facts.items():
        if name == "stack":
            kept[name] = places(str(value))
        elif name == "error":
            kept[name] = str(value).partition(":")[0]  # the kind of error, not what it says
        elif name == "message" and (facts["event"] in ("library", "uncaught") or "error" in facts):
            kept[name] = LEFT_OUT  # of others' making, or with the error's words in it
        else:
            kept[name] = value_of(name, value)
    return json.dumps(kept, ensure_ascii=False)


def value_of(name: str, value: object) -> object:
    """A named value, or what stands in its place."""
    if FROM_MESSAGES.search(name) and not isinstance(value, int | float | None):
        return LEFT_OUT
    match value:
        case str():
            return text(value if len(value) <= VALUE_SIZE_MAX else value[:VALUE_SIZE_MAX] + "…")
        case dict():
            return {str(key): value_of(str(key), inner) for key, inner in value.items()}
        case list():
            return [value_of(name, inner) for inner in value]
        case _:
            return value


def places(stack: str) -> list[str]:
    """Where a traceback passed: files, lines and functions, not the text of lines or errors."""
    return [line.strip() for line in stack.splitlines() if _PLACE.match(line)]


def text(value: str) -> str:
    """Without user names and passwords in addresses, and without tokens of headers."""
    return _BEARER.sub(rf"\1 {LEFT_OUT}", _USER_INFO.sub(f"{LEFT_OUT}@", value))


def settings(values: object) -> object:
    """Settings as they are, addresses without what is before their ``@``; paths of secrets stay."""
    match values:
        case str():
            return text(values)
        case dict():
            return {str(name): settings(value) for name, value in values.items()}
        case list() | tuple():
            return [settings(value) for value in values]
        case _:
            return values


def disguises(secret: bytes) -> list[bytes]:
    """A secret as it could stand in a text: raw, in hex, in base64 however it is aligned."""
    found = {secret, secret.strip()}
    for plain in tuple(found):
        found |= {plain.hex().encode(), plain.hex().upper().encode()}
        for lead in range(3):
            whole = base64.b64encode(b"\0" * lead + plain)
            # The first and last characters depend on the neighbours.
            start, end = -(-lead * 8 // 6) + (lead > 0), len(whole) - 4
            found |= {whole[start:end], whole[start:end].translate(bytes.maketrans(b"+/", b"-_"))}
    return [each for each in found if len(each) >= SECRET_SIZE_MIN]


def without(data: bytes, secrets: Iterable[bytes]) -> tuple[bytes, int]:
    """(data without any of the secrets, how many were found)."""
    count = 0
    for secret in secrets:
        for disguise in sorted(disguises(secret), key=len, reverse=True):
            found = data.count(disguise)
            if found:
                data = data.replace(disguise, LEFT_OUT.encode())
                count += found
    return data, count
