"""Which heads are those of plain sends, and where requests end."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.api.encodings import Encoding
from services.broker.api.request_head import (
    BATCHES,
    HEAD_END,
    SendHead,
    batch_head,
    missing_bytes,
    send_head,
)
from services.broker.schema.messages import BatchQuery

LINE = b"POST /v1/topics/orders/messages HTTP/1.1"
SEND = LINE + b"\r\nHost: node\r\nContent-Length: 12\r\nContent-Type: application/msgpack"
M, J = Encoding.MSGPACK, Encoding.JSON


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (SEND, SendHead("orders", M, None, 12, M)),
        (SEND + b"\r\nAccept: application/json", SendHead("orders", M, None, 12, J)),
        (SEND + b"\r\nConnection: Keep-Alive", SendHead("orders", M, None, 12, M)),
        (SEND + b"\r\nX-Anything: of value", SendHead("orders", M, None, 12, M)),
        (
            LINE + b"\r\nhost:x\r\ncontent-length:3\r\ncontent-type:\tapplication/json ",
            SendHead("orders", J, None, 3, J),
        ),
        (SEND.replace(b"orders", b"a|b_c-d"), SendHead("a|b_c-d", M, None, 12, M)),
    ],
)
def test_the_head_of_a_plain_send_is_recognised(head: bytes, expected: SendHead) -> None:
    assert send_head(head) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET" + SEND[4:],
        SEND.replace(b"1.1", b"1.0"),
        SEND.replace(b"orders", b"%6Frders"),
        SEND.replace(b"orders", b"a/b"),
        SEND.replace(b"messages HTTP", b"messages?x=1 HTTP"),
        SEND.replace(b" HTTP", b"  HTTP"),
        SEND.replace(b"Content-Length: 12\r\n", b""),
        SEND.replace(b": 12", b": +12"),
        SEND.replace(b": 12", b": 12, 12"),
        SEND.replace(b": 12", b": 99999999999"),
        SEND + b"\r\nContent-Length: 12",
        SEND + b"\r\nContent-Length: 13",
        SEND + b"\r\nTransfer-Encoding: chunked",
        SEND + b"\r\nContent-Encoding: gzip",
        SEND + b"\r\nConnection: close",
        SEND + b"\r\nUpgrade: websocket",
        SEND + b"\r\nExpect: 100-continue",
        SEND + b"\r\nTidemark-Trace: a",
        SEND + b"\r\nProxy-Connection: close",
        SEND + b"\r\nSec-WebSocket-Key1: a",
        SEND.replace(b"Host: node\r\n", b""),
        SEND.replace(b"application/msgpack", b"text/plain"),
        SEND + b"\r\n folded: line",
        SEND + b"\r\nName : value",
        SEND + b"\r\nNo colon",
        SEND + b"\r\nA: \x00",
        SEND + b"\r\nA: b\nC: d",
        SEND + b"\r\n" + b"\r\n".join(b"A%d:b" % n for n in range(70)),
    ],
)
def test_any_other_head_is_aiohttps(head: bytes) -> None:
    assert send_head(head) is None


BATCH_LINE = b"POST /v1/topics/orders/batches HTTP/1.1"
BATCH = BATCH_LINE + b"\r\nHost: node\r\nContent-Length: 12"


@pytest.mark.parametrize(
    ("head", "accepted", "asked"),
    [
        (BATCH, J, BatchQuery()),
        (BATCH + b"\r\nContent-Type: application/octet-stream", J, BatchQuery()),
        (BATCH + b"\r\nAccept: application/msgpack", M, BatchQuery()),
        (
            BATCH.replace(
                b"batches HTTP",
                b"batches?queue=3&unique_id=A.b_c:d-1&ack=disk&timeout_ms=7&retry=true HTTP",
            ),
            J,
            BatchQuery(3, "A.b_c:d-1", "disk", 7, "true"),
        ),
    ],
)
def test_the_head_of_a_batch_is_recognised(
    head: bytes, accepted: Encoding, asked: BatchQuery
) -> None:
    assert batch_head(head) == SendHead("orders", None, asked, 12, accepted)
    assert BATCHES in head


@pytest.mark.parametrize(
    "head",
    [
        BATCH.replace(b"batches HTTP", b"batches?" + query + b" HTTP")
        for query in (
            *(b"", b"queue", b"queue=", b"queue=x", b"queue=-1", b"other=1", b"ack=none"),
            *(
                b"queue=1&queue=2",
                b"unique_id=a&unique_id=b",
                b"unique_id=%41",
                b"unique_id=a+b",
                b"timeout_ms=0",
                b"retry=1",
            ),
        )
    ]
    + [
        BATCH.replace(b"orders", b"%6Frders"),
        BATCH.replace(b"1.1", b"1.0"),
        BATCH.replace(b"batches HTTP", b"batches/x HTTP"),
        BATCH.replace(b"Host: node\r\n", b""),
        BATCH + b"\r\nContent-Type: application/json",
        BATCH + b"\r\nTidemark-Trace: a",
        BATCH_LINE,
    ],
)
def test_an_unusual_head_of_a_batch_is_aiohttps(head: bytes) -> None:
    assert batch_head(head) is None
    assert send_head(head) is None


def test_heads_that_differ_in_the_id_only_have_their_own_ids() -> None:
    for unique_id in (b"a", b"b" * 128, b"x", b"a"):
        found = batch_head(
            BATCH.replace(b"batches HTTP", b"batches?ack=disk&unique_id=" + unique_id + b" HTTP")
        )
        assert found is not None
        assert found.batch == BatchQuery(ack="disk", unique_id=unique_id.decode())


@pytest.mark.parametrize(
    ("missing", "data", "left"),
    [
        (0, b"GET / HTTP/1.1\r\n\r\n", 0),
        (0, SEND + HEAD_END + bytes(12), 0),
        (0, SEND + HEAD_END + bytes(5), 7),
        (7, bytes(6), 1),
        (7, bytes(7), 0),
        (7, bytes(8), None),
        (0, SEND + HEAD_END + bytes(13), None),
        (0, SEND, None),
        (0, LINE + b"\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        (0, LINE + b"\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n.", None),
        (0, LINE + b"\r\nContent-Length: x\r\n\r\n", None),
        (0, LINE + b"\r\nUpgrade: websocket\r\n\r\n", None),
        (0, b"CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n.", None),
        (0, b"HEAD / HTTP/1.1\r\n\r\n", None),
    ],
)
def test_the_bytes_that_a_request_lacks(missing: int, data: bytes, left: int | None) -> None:
    assert missing_bytes(missing, data) == left


@given(st.binary(max_size=40), st.integers(0, 40))
def test_a_body_in_two_parts_ends_where_its_size_says(body: bytes, cut: int) -> None:
    request = LINE + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    cut = max(len(request) - len(body), len(request) - cut)
    left = missing_bytes(0, request[:cut])
    assert left == len(request) - cut
    assert missing_bytes(left, request[cut:]) == 0 if left else cut == len(request)


def test_a_head_of_blanks_takes_no_longer_than_another() -> None:
    # Two thousand of these take milliseconds; with a pattern that tries every split, half an hour.
    for n in range(2000):
        assert send_head(SEND + b"\r\nA:" + b" " * 900 + b"\xe9%d" % n) is None


PIECES = [
    b"Content-Length: 4",
    b"content-length:4 ",
    b"Content-Length: 0",
    b"Content-Length : 4",
    b"Content-Length:\t4",
    b"Content-Length: 4, 4",
    b"Content-Length: +4",
    b"X-Content-Length: 4",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Upgrade: websocket",
    b"Connection: upgrade",
    b"Connection: close",
    b"Expect: 100-continue",
    b"Host: a",
    b" folded",
    b"A: \xe9",
    b"",
]
METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"CONNECT", b"OPTIONS", b"get", b"PRI"]


@settings(deadline=None)
@given(
    st.sampled_from(METHODS),
    st.sampled_from([b"1.1", b"1.0", b"2.0"]),
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.sampled_from([b"", b"ab", b"abcd", b"abcdGET /", b"4\r\nabcd\r\n0\r\n\r\n"]),
)
async def test_a_request_ends_where_aiohttp_says(
    method: bytes, version: bytes, headers: list[bytes], body: bytes
) -> None:
    data = b"\r\n".join([method + b" /v1/x HTTP/" + version, *headers, b"", b""]) + body
    left = missing_bytes(0, data)
    if left is None:
        return
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
    try:
        messages, upgraded, _ = parser.feed_data(data)
    except HttpProcessingError:
        return  # aiohttp answers 400 and closes the connection
    assert [payload.is_eof() for _, payload in messages] == [left == 0]
    assert not upgraded
    if left:
        parser.feed_data(bytes(left))
        assert messages[0][1].is_eof()
