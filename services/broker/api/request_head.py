"""Finds the end of a request in the bytes of its connection, and recognises plain sends. Pure.

A plain send has a short head, a body of announced size, a topic without escapes, and no header that
asks for more than to store the body. ``connections`` gives it to ``direct_sends`` (write path, step
1) and every other request to aiohttp. A head that is not exactly as HTTP has it is aiohttp's, which
refuses it.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from services.broker.api import encodings
from services.broker.api.encodings import Encoding
from services.broker.api.traces import HEADER as TRACE_HEADER
from services.broker.fields import plain_name
from shared.runtime.connections import HEADERS_MAX
from tidemark.errors import UnsupportedMediaType

HEAD_END: Final = b"\r\n\r\n"
HEAD_SIZE_MAX: Final = 1024
"""Bytes of a plain send's head, with HEAD_END."""
HEADS_KEPT: Final = 512
"""Heads whose meaning is kept: a client sends the same few again and again."""
_SEND: Final = re.compile(r"POST /v1/topics/([^/%?#\s]+)/messages HTTP/1\.1")
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


class SendHead(NamedTuple):
    """The head of a plain send."""

    topic: str
    body_size: int
    """Announced size of the body [bytes]."""
    encoding: Encoding
    """Encoding of the body."""
    accepted: Encoding
    """Encoding of the answer."""


@functools.lru_cache(maxsize=HEADS_KEPT)
def send_head(head: bytes) -> SendHead | None:
    """Return what a head says, or None if it is not the head of a plain send.

    head: request line and headers, without HEAD_END."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    matched = _SEND.fullmatch(request_line)
    if matched is None or (topic := plain_name(matched[1])) is None or len(lines) > HEADERS_MAX:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) in headers or name in _NOT_PLAIN:
            return None
        headers[name] = header[2].strip(" \t")
    if "host" not in headers or headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    size, content_type = headers.get("content-length", ""), headers.get("content-type")
    if _SIZE.fullmatch(size) is None:
        return None
    try:
        encoding = encodings.of_request(content_type)
    except UnsupportedMediaType:
        return None
    accepted = encodings.of_answer(headers.get("accept"), content_type)
    return SendHead(topic, int(size), encoding, accepted)


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
