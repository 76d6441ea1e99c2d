"""Finds the end of a request in the bytes of its connection, and recognises plain sends. Pure.

A plain send has a short head, a body of announced size, a topic without escapes, and no header that
asks for more than to store the body. A batch request is one if its parameters have no escapes.
``connections`` gives it to ``direct_sends`` (write path, step 1) and every other request to
aiohttp. A head that is not exactly as HTTP has it is aiohttp's, which refuses it.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

import msgspec

from services.broker.api import encodings
from services.broker.api.encodings import Encoding
from services.broker.api.traces import HEADER as TRACE_HEADER
from services.broker.fields import plain_name
from services.broker.schema.messages import BatchQuery
from services.broker.schema.parsing import query
from shared.runtime.connections import HEADERS_MAX
from tidemark.errors import BadRequest, UnsupportedMediaType

HEAD_END: Final = b"\r\n\r\n"
HEAD_SIZE_MAX: Final = 1024
"""Bytes of a plain send's head, with HEAD_END."""
HEADS_KEPT: Final = 512
"""Heads whose meaning is kept: a client sends the same few again and again."""
BATCHES: Final = b"/batches"
"""Part of the head of every batch request."""
_SEND: Final = re.compile(r"POST /v1/topics/([^/%?#\s]+)/messages HTTP/1\.1")
_BATCH: Final = re.compile(
    rb"POST /v1/topics/([^/%?#\s]+)/batches(?:\?([A-Za-z0-9_=&.:-]+))? HTTP/1\.1\r\n"
)
_UNIQUE_ID: Final = re.compile(
    rb"POST [^ ?\r]+\?(?:[^ \r]*&)?unique_id=([A-Za-z0-9_.:-]{1,128})[& ]"
)
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\t]*)")
_SIZE: Final = re.compile(r"[0-9]{1,10}")
_ANY_SIZE: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})[ \t]*\r\n")
_NOT_PLAIN: Final = frozenset(
    {
        "content-encoding",
        "expect",
        "proxy-connection",
        "sec-websocket-key1",
        "trailer",
        "transfer-encoding",
        "upgrade",
        TRACE_HEADER.lower(),
    }
)
_METHODS: Final = (b"get ", b"post ", b"put ", b"delete ")
"""Methods whose requests end where Content-Length says; after CONNECT, no body follows."""
_NO_KNOWN_SIZE: Final = (b"\r\ntransfer-encoding", b"\r\nupgrade")


class Form(msgspec.Struct, frozen=True):
    """What is known of a send before its body is read."""

    topic: str
    encoding: Encoding | None
    """Encoding of the body; None: it has the entries of a batch."""
    batch: BatchQuery | None
    """Parameters of a batch request; None: it is another send."""


class SendHead(Form, frozen=True):
    """The head of a plain send."""

    body_size: int
    """Announced size of the body [bytes]."""
    accepted: Encoding
    """Encoding of the answer."""


class _Headers(NamedTuple):
    """The headers that matter to a plain send."""

    body_size: int
    content_type: str | None
    accept: str | None


@functools.lru_cache(maxsize=HEADS_KEPT)
def send_head(head: bytes) -> SendHead | None:
    """Return what a head says, or None if it is not the head of a plain send of messages.

    head: request line and headers, without HEAD_END."""
    request_line, _, lines = head.partition(b"\r\n")
    matched = _SEND.fullmatch(request_line.decode("latin-1"))
    if matched is None or (topic := plain_name(matched[1])) is None:
        return None
    headers = _headers(lines)
    if headers is None:
        return None
    try:
        encoding = encodings.of_request(headers.content_type)
    except UnsupportedMediaType:
        return None
    accepted = encodings.of_answer(headers.accept, headers.content_type)
    return SendHead(topic, encoding, None, headers.body_size, accepted)


def batch_head(head: bytes) -> SendHead | None:
    """Return what the head of a batch request says; None if it is none, or an unusual one."""
    own = _UNIQUE_ID.match(head)
    if own is None:
        return _batch_head(head)
    # The rest of the head is the same in the next request.
    found = _batch_head(b"%bx%b" % (head[: own.start(1)], head[own.end(1) :]))
    if found is None or found.batch is None:
        return None
    batch = msgspec.structs.replace(found.batch, unique_id=own[1].decode("ascii"))
    return msgspec.structs.replace(found, batch=batch)


@functools.lru_cache(maxsize=HEADS_KEPT)
def _batch_head(head: bytes) -> SendHead | None:
    line = _BATCH.match(head)
    if line is None or (topic := plain_name(line[1].decode("latin-1"))) is None:
        return None
    headers = _kept_headers(head[line.end() :])
    if headers is None:
        return None
    pairs = [] if line[2] is None else line[2].decode("ascii").split("&")
    given = {
        name: value for name, equals, value in (each.partition("=") for each in pairs) if equals
    }
    if len(given) != len(pairs):
        return None
    try:
        asked = query(given, BatchQuery)
        encodings.check_octets(headers.content_type)
    except (BadRequest, UnsupportedMediaType):
        return None
    accepted = encodings.of_answer(headers.accept, headers.content_type)
    return SendHead(topic, None, asked, headers.body_size, accepted)


def _headers(raw: bytes) -> _Headers | None:
    """Parse header lines; None if they are not those of a plain send."""
    lines = raw.decode("latin-1").split("\r\n") if raw else []
    if len(lines) > HEADERS_MAX:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) in headers or name in _NOT_PLAIN:
            return None
        headers[name] = header[2].strip(" \t")
    if "host" not in headers or headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    size = headers.get("content-length", "")
    if _SIZE.fullmatch(size) is None:
        return None
    return _Headers(int(size), headers.get("content-type"), headers.get("accept"))


_kept_headers = functools.lru_cache(maxsize=HEADS_KEPT)(_headers)


def missing_bytes(missing: int, data: bytes) -> int | None:
    """Return how many bytes a request lacks after data; 0: data ends with a request.

    missing: what the request lacked before; 0: data begins a request. Returns None if that cannot
    be known: data ends within a head, contains more than one request, or a body has no announced
    size. A doubt is None, because otherwise a body could be taken for a request.
    """
    if not missing:
        end = data.find(HEAD_END)
        if end < 0:
            return None
        head = data[: end + len(HEAD_END)].lower()
        if not head.startswith(_METHODS) or any(name in head for name in _NO_KNOWN_SIZE):
            return None
        sizes = _ANY_SIZE.findall(head)
        if len(sizes) != head.count(b"content-length") or len(sizes) > 1:
            return None
        missing = len(head) + sum(map(int, sizes))
    left = missing - len(data)
    return left if left >= 0 else None
