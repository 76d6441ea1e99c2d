"""Bodies on the wire: msgpack and JSON, which one, and what a broken one is told. Pure.

A request's body is what its ``Content-Type`` says; without one it is msgpack. The answer is in the
encoding that ``Accept`` names; if it names none of ours, in the request's; a call without a body,
as a browser or curl makes it, is answered in JSON. Decoders never raise anything but BadRequest:
damaged input, duplicate keys, NaN, numbers of a million digits and deep nesting included.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from enum import Enum
from typing import Final, NoReturn, cast

import msgpack

from services.broker.fields import shown
from tidemark.errors import BadRequest, UnsupportedMediaType

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
RECORDS: Final = "application/vnd.tidemark.records"
_MSGPACK_NAMES: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})


class Encoding(Enum):
    """How a body is written."""

    MSGPACK = MSGPACK
    JSON = JSON


@functools.lru_cache(maxsize=256)
def of_request(content_type: str | None) -> Encoding:
    """The encoding of a request's body; raises UnsupportedMediaType naming ours."""
    if content_type is None or not content_type.strip():
        return Encoding.MSGPACK
    name = content_type.split(";", 1)[0].strip().lower()
    if name in _MSGPACK_NAMES:
        return Encoding.MSGPACK
    if name == JSON:
        return Encoding.JSON
    raise UnsupportedMediaType(
        f"content type {shown(name)} is not understood. Nothing was stored.",
        f"Send {MSGPACK} or {JSON}; with curl: -H 'content-type: {JSON}'.",
    )


@functools.lru_cache(maxsize=256)
def of_answer(accept: str | None, content_type: str | None) -> Encoding:
    """The encoding for an answer; never fails, an error has to be told somehow."""
    if accept:
        named = _accepted(accept)
        for name in named:
            if name in _MSGPACK_NAMES:
                return Encoding.MSGPACK
            if name == JSON:
                return Encoding.JSON
    if content_type:
        name = content_type.split(";", 1)[0].strip().lower()
        if name in _MSGPACK_NAMES:
            return Encoding.MSGPACK
    return Encoding.JSON


@functools.lru_cache(maxsize=256)
def wants_records(accept: str | None) -> bool:
    """Whether raw commit log records are asked for."""
    return accept is not None and RECORDS in accept and RECORDS in _accepted(accept)


def _accepted(accept: str) -> list[str]:
    """Names of an Accept header, best first; those with q=0 left out."""
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


def decode(data: bytes, encoding: Encoding) -> object:
    """Turn a body into maps, lists, strings, bytes, numbers; raises BadRequest."""
    if not data:
        raise BadRequest("the request has no body. Nothing was stored.")
    try:
        match encoding:
            case Encoding.MSGPACK:
                # surrogateescape: a string that is not UTF-8 arrives as one, so that the check of
                # its field can name it; no field accepts it.
                return cast(
                    object,
                    msgpack.unpackb(
                        data,
                        raw=False,
                        unicode_errors="surrogateescape",
                        strict_map_key=True,
                        object_pairs_hook=_without_duplicates,
                    ),
                )
            case Encoding.JSON:
                return cast(
                    object,
                    json.loads(
                        data.decode("utf-8"),
                        object_pairs_hook=_without_duplicates,
                        parse_constant=_no_constant,
                    ),
                )
    except BadRequest:
        raise
    except (ValueError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        name = "msgpack" if encoding is Encoding.MSGPACK else "JSON"
        reason = str(error)[:200] or type(error).__name__
        raise BadRequest(
            f"the request body is not {name}: {reason}. Nothing was stored.",
            "Check the body, or the content-type if it is in another encoding.",
        ) from None


def _without_duplicates(pairs: Sequence[tuple[object, object]]) -> dict[object, object]:
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[object] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadRequest(
                    f"the key {shown(key)} appears twice in one map. Nothing was stored."
                )
            seen.add(key)
    return built


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"{name} is not a JSON number. Nothing was stored.")


def encode(value: object, encoding: Encoding) -> bytes:
    """Write an answer. Text that is not Unicode (a caller's own, shown back) is escaped."""
    match encoding:
        case Encoding.MSGPACK:
            return cast(bytes, msgpack.packb(value, unicode_errors="backslashreplace"))
        case Encoding.JSON:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
            return text.encode("utf-8", "backslashreplace") + b"\n"
