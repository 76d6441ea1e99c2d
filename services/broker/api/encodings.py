"""Bodies on the wire: msgpack and JSON, which one, and what a broken one is told. Pure.

A request's body is what its ``Content-Type`` says; without one it is msgpack. The answer is in the
encoding that ``Accept`` names; if it names none of ours, in the request's; a call without a body,
as a browser or curl makes it, is answered in JSON. Decoders never raise anything but BadRequest and
TooManyValues:
damaged input, duplicate keys, NaN, numbers of a million digits and deep nesting included.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NoReturn, cast

import msgpack

from services.broker.api.fields import shown
from services.broker.api.limits import MAPS_MAX, SCANNED_SIZE_MIN, VALUES_MAX
from tidemark.errors import BadRequest, TooManyValues, UnsupportedMediaType

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
RECORDS: Final = "application/vnd.tidemark.records"
_MSGPACK_NAMES: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})

Rest = Callable[[], None]


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


def decode(data: bytes, encoding: Encoding, rest: Rest | None = None) -> object:
    """Turn a body into maps, lists, strings, bytes, numbers.

    rest: is called again and again, in a thread, for others to have their turn. Raises BadRequest,
    and TooManyValues before anything is decoded.
    """
    if not data:
        raise BadRequest("the request has no body. Nothing was stored.")
    if len(data) >= SCANNED_SIZE_MIN:
        check_count(data, encoding, rest)
    made = _without_duplicates if rest is None else functools.partial(_made_with_rests, rest)
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
    """Whether the loop may not wait while the body is decoded and checked: some milliseconds."""
    if encoding is Encoding.MSGPACK:
        return len(data) > LONG_MSGPACK
    return len(data) > LONG_JSON or data.count(b"{") + data.count(b",") > LONG_VALUES


LONG_MSGPACK: Final = 1 << 13
LONG_JSON: Final = 1 << 16
LONG_VALUES: Final = 512
"""Bytes, and values of JSON: what has more is decoded in a thread."""


def check_count(data: bytes, encoding: Encoding, rest: Rest | None = None) -> None:
    """Raise TooManyValues if the body has more than VALUES_MAX values, or MAPS_MAX maps.

    It takes no longer for a body that has many times as many. What is no msgpack or JSON passes:
    the decoder says what is wrong with it.
    """
    match encoding:
        case Encoding.MSGPACK:
            _check_msgpack(data, rest)
        case Encoding.JSON:
            # An upper bound first, at the speed of memory: most bodies stay below it.
            maps = values = 0
            for at in range(0, len(data), _COUNTED):  # in parts: the loop has its turn in between
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
"""Values that are counted one by one between two calls of ``rest``."""


def _check_msgpack(data: bytes, rest: Rest | None) -> None:
    """Walk from value to value; what a list or a map announces counts at once."""
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
        elif kind == _SIZED:  # a length of so many bytes, then the bytes and, of ext, the type
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
    """(kind, bytes) of a value's first byte: those behind it, or those of its length."""
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
_JSON_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{[,]')


def _check_json(data: bytes, rest: Rest | None) -> None:
    """Count what is outside of strings: a text may be full of braces and commas."""
    values = maps = 0
    for token in _JSON_TOKENS.finditer(data):
        first = data[token.start()]
        if first == _QUOTE:
            continue
        values += 1
        if rest is not None and not values % _WALKED:
            rest()
        maps += first == _BRACE
        if values > VALUES_MAX or maps > MAPS_MAX:
            raise _too_many()


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
    """Write an answer. Text that is not Unicode (a caller's own, shown back) is escaped."""
    match encoding:
        case Encoding.MSGPACK:
            return cast(
                bytes, msgpack.packb(value, unicode_errors="backslashreplace", default=_made)
            )
        case Encoding.JSON:
            return _json(value).encode("utf-8", "backslashreplace") + b"\n"


class Items:
    """A list in an answer whose values are made when they are encoded, once."""

    __slots__ = ("count", "values")

    def __init__(self, count: int, values: Iterator[object]) -> None:
        """count: of the values."""
        self.count = count
        self.values = values


def pieces(value: object, encoding: Encoding) -> Iterator[bytes]:
    """The same bytes as ``encode``, a few kilobytes of them at a time.

    Of msgpack a piece is at least one text or one body.
    """
    match encoding:
        case Encoding.MSGPACK:
            yield from _msgpack_pieces(value, _PACKER)
        case Encoding.JSON:
            for text in _json_pieces(value):
                yield text.encode("utf-8", "backslashreplace")
            yield b"\n"


PIECE: Final = 1 << 14
"""Characters of a text that are encoded at once."""
_SHORT: Final = 16
"""Values of a list that are encoded at once."""


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
