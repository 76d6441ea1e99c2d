"""Decodes a broker's answer into a success or into a typed error by its code.

The error class is the one of ``tidemark.errors`` with that code. An unknown code of a later broker
becomes a TidemarkError that keeps the code. ``transport`` uses this module.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgpack
import msgspec

from tidemark import errors

T = TypeVar("T")
MSGPACK: Final = "application/msgpack"
RECORDS: Final = "application/vnd.tidemark.records"


class Answer(NamedTuple):
    """A successful answer: headers and body as received."""

    headers: Mapping[str, str]
    body: bytes

    def map(self) -> dict[str, Any]:
        """Decode the body; raises BrokenAnswer if it is not a msgpack map."""
        try:
            value = msgpack.unpackb(self.body, strict_map_key=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise errors.BrokenAnswer(f"the broker's answer is not msgpack: {error}") from error
        if not isinstance(value, dict):
            raise errors.BrokenAnswer(f"the broker's answer is a {type(value).__name__}, not a map")
        return cast(dict[str, Any], value)

    def decoded(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """Decode the body into the decoder's type; raises BrokenAnswer if it is not of that
        type."""
        try:
            return decoder.decode(self.body)
        except (ValueError, msgspec.DecodeError) as error:
            raise errors.BrokenAnswer(f"the broker's answer is not understood: {error}") from error

    def number(self, header: str) -> int:
        """A whole number from a header. Raises BrokenAnswer if it is missing or not a number."""
        try:
            return int(self.headers[header])
        except (KeyError, ValueError) as error:
            raise errors.BrokenAnswer(
                f"the broker's answer has no number in header {header}"
            ) from error


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> errors.TidemarkError:
    """Return the typed error for a failed answer; BrokenAnswer if it has no error code."""
    try:
        if headers.get("Content-Type", "").startswith(MSGPACK):
            wire = msgpack.unpackb(body, strict_map_key=False)
        else:
            wire = json.loads(body)
        code = str(wire["code"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        start = body[:200].decode("utf-8", "replace")
        broken = errors.BrokenAnswer(f"HTTP status {status} without an error code: {start!r}")
        broken.facts["http_status"] = status
        return broken
    facts = {name: value for name, value in wire.items() if name not in _ERROR_FIELDS}
    retriable = wire.get("retriable") is True
    kind = (
        _kinds().get((code, retriable))
        or _kinds().get((code, not retriable))
        or errors.kind_of_later(code, str(wire.get("title", "")), status, retriable)
    )
    # Not kind(...): some errors take other arguments than a message, advice and facts.
    error = kind.__new__(kind)
    errors.TidemarkError.__init__(
        error, str(wire.get("detail", "")), str(wire.get("advice", "")), **facts
    )
    return error


_ERROR_FIELDS: Final = frozenset({"code", "title", "detail", "advice", "retriable", "status"})


@functools.cache
def _kinds() -> dict[tuple[str, bool], type[errors.TidemarkError]]:
    """Every error class of ``tidemark.errors`` by its code and retriable flag."""
    found: dict[tuple[str, bool], type[errors.TidemarkError]] = {}
    pending: list[type[errors.TidemarkError]] = [errors.TidemarkError]
    while pending:
        kind = pending.pop()
        if kind.__module__ == errors.__name__:
            found.setdefault((kind.code, kind.retriable), kind)
            pending.extend(kind.__subclasses__())
    return found
