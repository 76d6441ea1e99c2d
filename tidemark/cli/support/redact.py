"""Removes secrets and all data of messages before they leave the machine. Pure.

There are two steps. The first knows the format: of a log line only facts are kept, of a traceback
only its locations. The second knows the secrets and searches every byte of the bundle for them.
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
"""Shorter secrets would match everywhere; ha accepts none below 16 bytes."""
FROM_MESSAGES: Final = re.compile(
    r"body|keys?|propert|tags?|header|payload|secret|token|password|passwd|credential|authorization"
    r"|cookie|unique_id|sharding",
    re.IGNORECASE,
)
"""Names of fields whose values may come from a message or be a secret."""
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s\"']+@")
"""Matches up to the last ``@``, because a password may contain one."""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._-]{8,}")
_PLACE: Final = re.compile(r'^\s*File "[^"]+", line \d+, in .*$')


def log_line(line: str) -> str | None:
    """Redact one line of a service's log; None if it must be left out.

    Lines of other formats (another program's, a partial line) can contain anything.
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
            kept[name] = str(value).partition(":")[0]  # the kind of error without its text
        elif name == "message" and (facts["event"] in ("library", "uncaught") or "error" in facts):
            kept[name] = LEFT_OUT  # the text of a library, or of an error
        else:
            kept[name] = value_of(name, value)
    return json.dumps(kept, ensure_ascii=False)


def value_of(name: str, value: object) -> object:
    """Return a named value, or its replacement."""
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
    """Return the locations of a traceback: files, lines and functions, without source or errors."""
    return [line.strip() for line in stack.splitlines() if _PLACE.match(line)]


def text(value: str) -> str:
    """Remove user names and passwords from addresses, and tokens of headers."""
    return _BEARER.sub(rf"\1 {LEFT_OUT}", _USER_INFO.sub(f"{LEFT_OUT}@", value))


def settings(values: object) -> object:
    """Return settings with redacted addresses; paths of secrets are kept."""
    match values:
        case str():
            return text(values)
        case dict():
            return {str(name): settings(value) for name, value in values.items()}
        case list() | tuple():
            return [settings(value) for value in values]
        case _:
            return values


def encodings_of(secret: bytes) -> list[bytes]:
    """Return the forms of a secret in a text: raw, hex, and base64 at any alignment."""
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
    """Return (data without the secrets, number of occurrences)."""
    count = 0
    for secret in secrets:
        for encoding in sorted(encodings_of(secret), key=len, reverse=True):
            found = data.count(encoding)
            if found:
                data = data.replace(encoding, LEFT_OUT.encode())
                count += found
    return data, count
