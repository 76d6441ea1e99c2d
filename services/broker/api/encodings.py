"""Bodies on the wire in msgpack and JSON: chooses the encoding, decodes and encodes. Pure.

``Content-Type`` gives the encoding of a request's body; the default is msgpack. The answer has the
encoding that ``Accept`` names, or else that of the request. A call without a body, e.g. of a
browser or curl, is answered in JSON. Decoders raise only BadRequest and TooManyValues, even for
damaged input, duplicate keys, NaN, numbers with a million digits and deep nesting.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, cast

import msgpack

from services.broker.fields import shown
from services.broker.limits import MAPS_MAX, SCANNED_SIZE_MIN, VALUES_MAX
from shared.runtime.media_types import JSON, MSGPACK, Encoding, accepted, of_answer, of_request
from tidemark.errors import BadRequest, TooManyValues, UnsupportedMediaType

__all__ = [
    "JSON",
    "MSGPACK",
    "OCTETS",
    "RECORDS",
    "Encoding",
    "Items",
    "check_count",
    "check_octets",
    "decode",
    "encode",
    "is_long",
    "of_answer",
    "of_request",
    "pieces",
    "wants_records",
]

RECORDS: Final = "application/vnd.tidemark.records"
OCTETS: Final = "application/octet-stream"

Rest = Callable[[], None]


@functools.lru_cache(maxsize=256)
def check_octets(content_type: str | None) -> None:
    """Check the content type of a body that is bytes and no map. Raises UnsupportedMediaType."""
    name = (content_type or OCTETS).split(";", 1)[0].strip().lower()
    if name != OCTETS:
        raise UnsupportedMediaType(
            f"content type {shown(name)} is not understood here. Nothing was stored.",
            f"Send {OCTETS}.",
        )


@functools.lru_cache(maxsize=256)
def wants_records(accept: str | None) -> bool:
    """Return whether the client accepts raw commit log records."""
    return accept is not None and RECORDS in accept and RECORDS in accepted(accept)


def decode(data: bytes, encoding: Encoding, rest: Rest | None = None) -> object:
    """Decode a body into maps, lists, strings, bytes and numbers.

    rest: called repeatedly if the body is decoded in a thread, to pause for other work. Raises
    BadRequest. Raises TooManyValues before anything is decoded.
    """
    if not data:
        raise BadRequest("the request has no body. Nothing was stored.")
    if len(data) >= SCANNED_SIZE_MIN:
        check_count(data, encoding, rest)
    made = _without_duplicates if rest is None else functools.partial(_made_with_rests, rest)
    try:
        match encoding:
            case Encoding.MSGPACK:
                # surrogateescape keeps a string that is not UTF-8, so that the check of its field
                # can raise an error with the field's name.
                return cast(
                    object,
                    msgpack.unpackb(
                        data,
                        raw=False,
                        unicode_errors="surrogateescape",
                        strict_map_key=True,
                        object_pairs_hook=made,
                    ),
                )
            case Encoding.JSON:
                return cast(
                    object,
                    json.loads(
                        data.decode("utf-8"),
                        object_pairs_hook=made,
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


def is_long(data: bytes, encoding: Encoding) -> bool:
    """Return whether decoding and checking takes milliseconds, too long for the event loop."""
    if encoding is Encoding.MSGPACK:
        return len(data) > LONG_MSGPACK
    return len(data) > LONG_JSON or data.count(b"{") + data.count(b",") > LONG_VALUES


LONG_MSGPACK: Final = 1 << 13
LONG_JSON: Final = 1 << 16
LONG_VALUES: Final = 512
"""Largest body decoded on the event loop: bytes of msgpack, bytes and values of JSON."""


def check_count(data: bytes, encoding: Encoding, rest: Rest | None = None) -> None:
    """Raise TooManyValues if the body has more than VALUES_MAX values, or MAPS_MAX maps.

    The time is bounded, even for a body with many more values. Invalid msgpack or JSON passes this
    check; the decoder raises the error for it.
    """
    match encoding:
        case Encoding.MSGPACK:
            _check_msgpack(data, rest)
        case Encoding.JSON:
            # A fast upper bound first: most bodies stay below the limits.
            maps = values = 0
            for at in range(0, len(data), _COUNTED):  # in parts, with pauses in between
                end = at + _COUNTED
                if rest is not None:
                    rest()
                maps += data.count(b"{", at, end)
                values += data.count(b"[", at, end) + data.count(b",", at, end)
                if maps > MAPS_MAX or maps + values > VALUES_MAX:
                    _check_json(data, rest)
                    break


_COUNTED: Final = 1 << 18
"""Bytes of JSON whose commas and brackets are counted in one step."""
_WALKED: Final = 1 << 7
"""Values that are counted between two calls of ``rest``."""


def _check_msgpack(data: bytes, rest: Rest | None) -> None:
    """Scan value by value; the announced size of a list or map is added at once."""
    at, end, values, maps = 0, len(data), 1, 0
    walked = 0
    while at < end and walked < values:
        walked += 1
        if rest is not None and not walked % _WALKED:
            rest()
        code = data[at]
        at += 1
        kind, size = _MSGPACK[code]
        if kind == _FIXED:
            at += size
        elif kind == _SIZED:  # a length of size bytes, the type byte of an ext, the data
            at += size + int.from_bytes(data[at : at + size], "big") + (0xC7 <= code <= 0xC9)
        elif kind == _LIST:
            count = code & 15 if not size else int.from_bytes(data[at : at + size], "big")
            at += size
            values += count
        else:
            count = code & 15 if not size else int.from_bytes(data[at : at + size], "big")
            at += size
            values += 2 * count
            maps += 1
        if values > VALUES_MAX or maps > MAPS_MAX:
            raise _too_many()


_FIXED, _SIZED, _LIST, _MAP = range(4)


def _msgpack_kind(code: int) -> tuple[int, int]:
    """Return the kind of value that a first byte begins, and the size of its data or length."""
    if 0x80 <= code <= 0x8F:
        return _MAP, 0
    if 0x90 <= code <= 0x9F:
        return _LIST, 0
    if 0xA0 <= code <= 0xBF:
        return _FIXED, code & 31
    named = {
        **{0xC4: (_SIZED, 1), 0xC5: (_SIZED, 2), 0xC6: (_SIZED, 4)},
        **{0xC7: (_SIZED, 1), 0xC8: (_SIZED, 2), 0xC9: (_SIZED, 4)},
        **{0xCA: (_FIXED, 4), 0xCB: (_FIXED, 8)},
        **{0xCC + n: (_FIXED, 1 << n % 4) for n in range(8)},
        **{0xD4 + n: (_FIXED, (1 << n) + 1) for n in range(5)},
        **{0xD9: (_SIZED, 1), 0xDA: (_SIZED, 2), 0xDB: (_SIZED, 4)},
        **{0xDC: (_LIST, 2), 0xDD: (_LIST, 4), 0xDE: (_MAP, 2), 0xDF: (_MAP, 4)},
    }
    return named.get(code, (_FIXED, 0))


_MSGPACK: Final = tuple(map(_msgpack_kind, range(256)))
_JSON_MARK: Final = re.compile(rb'["{[,]')
_JSON_TEXT: Final = re.compile(rb'(?s)(?:[^"\\]{1,4096}|\\.){0,1024}')
"""Part of a string. It matches at once, whatever follows: a pattern of a whole string would search
a string without an end anew from each quote in it."""


def _check_json(data: bytes, rest: Rest | None) -> None:
    """Count the values and maps outside of strings, which may contain braces and commas."""
    at = values = maps = walked = 0
    while (mark := _JSON_MARK.search(data, at)) is not None:
        walked += 1
        if rest is not None and not walked % _WALKED:
            rest()
        first, at = data[mark.start()], mark.end()
        if first == _QUOTE:
            at = _after_string(data, at, rest)
            continue
        values += 1
        maps += first == _BRACE
        if values > VALUES_MAX or maps > MAPS_MAX:
            raise _too_many()


def _after_string(data: bytes, at: int, rest: Rest | None) -> int:
    """Return the position after the string whose text begins at ``at``."""
    while (text := _JSON_TEXT.match(data, at)) is not None and text.end() > at:
        at = text.end()
        if rest is not None and at - text.start() > PIECE:
            rest()
    return at + 1  # its closing quote, or the end of the body


_QUOTE, _BRACE = b'"{'


def _too_many() -> TooManyValues:
    return TooManyValues(
        f"the request body has more than {VALUES_MAX} values, or more than {MAPS_MAX} maps. "
        "Nothing was decoded or stored.",
        "Send fewer messages, keys and properties per request.",
        limit=VALUES_MAX,
        maps_limit=MAPS_MAX,
    )


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


def _made_with_rests(rest: Rest, pairs: Sequence[tuple[object, object]]) -> dict[object, object]:
    rest()
    return _without_duplicates(pairs)


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"{name} is not a JSON number. Nothing was stored.")


def encode(value: object, encoding: Encoding) -> bytes:
    """Encode an answer. Invalid Unicode, e.g. from a request's value in an error, is escaped."""
    match encoding:
        case Encoding.MSGPACK:
            return cast(
                bytes, msgpack.packb(value, unicode_errors="backslashreplace", default=_made)
            )
        case Encoding.JSON:
            return _json(value).encode("utf-8", "backslashreplace") + b"\n"


class Items:
    """A list in an answer whose values are built when they are encoded; usable only once."""

    __slots__ = ("count", "values")

    def __init__(self, count: int, values: Iterator[object]) -> None:
        """count: number of values."""
        self.count = count
        self.values = values


def pieces(value: object, encoding: Encoding) -> Iterator[bytes]:
    """Yield the same bytes as ``encode`` in pieces of a few kilobytes.

    In msgpack a text or body is not split, so a piece holds at least one.
    """
    match encoding:
        case Encoding.MSGPACK:
            yield from _msgpack_pieces(value, _PACKER)
        case Encoding.JSON:
            for text in _json_pieces(value):
                yield text.encode("utf-8", "backslashreplace")
            yield b"\n"


PIECE: Final = 1 << 14
"""Characters of a text that are encoded in one step."""
_SHORT: Final = 16
"""Largest list that is encoded in one step."""


def _made(value: object) -> object:
    if isinstance(value, Items):
        return list(value.values)
    raise TypeError(f"{type(value).__name__} has no form in msgpack")


def _shown(value: object) -> object:
    return list(value.values) if isinstance(value, Items) else str(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_shown)


_PACKER: Final = msgpack.Packer(unicode_errors="backslashreplace")


def _is_long(value: object) -> bool:
    match value:
        case Items():
            return True
        case list():
            return len(value) > _SHORT
        case str():
            return len(value) > PIECE
        case dict():
            return any(map(_is_long, value.values()))
        case _:
            return False


def _json_pieces(value: object) -> Iterator[str]:
    if not _is_long(value):
        yield _json(value)
    elif isinstance(value, str):
        yield '"'
        for at in range(0, len(value), PIECE):
            yield _json(value[at : at + PIECE])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        before = "{"
        for name, each in value.items():
            yield f"{before}{_json(name)}:"
            yield from _json_pieces(each)
            before = ","
        yield "}"
    else:
        assert isinstance(value, Items | list)
        before = "["
        for each in value.values if isinstance(value, Items) else value:
            yield before
            yield from _json_pieces(each)
            before = ","
        yield "]" if before == "," else "[]"


def _msgpack_pieces(value: object, packer: msgpack.Packer) -> Iterator[bytes]:
    if not _is_long(value) or isinstance(value, str):
        yield packer.pack(value)
    elif isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for name, each in value.items():
            yield packer.pack(name)
            yield from _msgpack_pieces(each, packer)
    else:
        assert isinstance(value, Items | list)
        yield packer.pack_array_header(value.count if isinstance(value, Items) else len(value))
        for each in value.values if isinstance(value, Items) else value:
            yield from _msgpack_pieces(each, packer)
