"""JSON or msgpack: which encoding a request has, and which its answer gets. Pure.

``Content-Type`` gives the encoding of a request's body; the default is msgpack. The answer has the
encoding that ``Accept`` names, or else that of the request. A call without a body, e.g. of a
browser or curl, is answered in JSON.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import Final

import msgspec

from tidemark.errors import UnsupportedMediaType

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
_MSGPACK_NAMES: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
_SHOWN_MAX: Final = 60


class Encoding(StrEnum):
    """Encoding of a body."""

    MSGPACK = MSGPACK
    JSON = JSON


@functools.lru_cache(maxsize=256)
def of_request(content_type: str | None) -> Encoding:
    """Return the encoding of a request's body. Raises UnsupportedMediaType."""
    if content_type is None or not content_type.strip():
        return Encoding.MSGPACK
    name = _name(content_type)
    if name in _MSGPACK_NAMES:
        return Encoding.MSGPACK
    if name == JSON:
        return Encoding.JSON
    raise UnsupportedMediaType(
        f"content type {name[:_SHOWN_MAX]!r} is not understood. Nothing was stored.",
        f"Send {MSGPACK} or {JSON}; with curl: -H 'content-type: {JSON}'.",
    )


@functools.lru_cache(maxsize=256)
def of_answer(accept: str | None, content_type: str | None) -> Encoding:
    """Return the encoding of an answer. Never raises, because errors need an encoding as well."""
    for name in accepted(accept) if accept else ():
        if name in _MSGPACK_NAMES:
            return Encoding.MSGPACK
        if name == JSON:
            return Encoding.JSON
    if content_type and _name(content_type) in _MSGPACK_NAMES:
        return Encoding.MSGPACK
    return Encoding.JSON


def accepted(accept: str) -> list[str]:
    """Return the names in an Accept header, best first, without those with q=0."""
    weighted: list[tuple[float, str]] = []
    for part in accept.split(",")[:32]:
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if weight > 0:
            weighted.append((-weight, name))
    return [name for _, name in sorted(weighted, key=lambda pair: pair[0])]


def encoded(value: object, encoding: Encoding) -> bytes:
    """Encode a struct, or what JSON has a form for; JSON ends with a line end."""
    if encoding is Encoding.MSGPACK:
        return msgspec.msgpack.encode(value)
    return msgspec.json.encode(value) + b"\n"


def _name(content_type: str) -> str:
    return content_type.split(";", 1)[0].strip().lower()
