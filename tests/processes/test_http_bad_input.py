"""Bad input over real HTTP: each gets a named error, nothing is stored, others are unaffected."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from tests.support.node import Node, wait_until

READ_TIMEOUT_S: Final = 1.0
CONNECTIONS_MAX: Final = 30
REQUEST_MAX: Final = 200_000
MESSAGE_MAX: Final = 100_000
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
SEND: Final = "/v1/topics/orders/messages"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(
        tmp_path_factory.mktemp("bad-input"),
        broker={
            "request_size_max": REQUEST_MAX,
            "message_size_max": MESSAGE_MAX,
            "read_timeout_s": READ_TIMEOUT_S,
            "write_timeout_s": 1.5,
            "connections_max": CONNECTIONS_MAX,
            "held_pulls_max": 5,
        },
    ) as running:
        running.start()
        running.wait_ready()
        status, _ = running.request_json("PUT", "/v1/topics/orders", {"queues": 2})
        assert status == 200
        yield running


@pytest.fixture(autouse=True)
def nothing_stored_and_still_serving(node: Node) -> Iterator[None]:
    """Around every test: no message appears, and a well-behaved client is served afterwards."""
    before = _stored(node)
    yield
    wait_until(lambda: node.request_json("GET", "/v1/topics")[0] == 200, "the node to serve")
    assert _stored(node) == before
    assert node.is_alive("broker")


def _stored(node: Node) -> list[int]:
    status, topic = node.request_json("GET", "/v1/topics/orders")
    assert status == 200
    return [queue["max_offset"] for queue in topic["queues"]]


class Answer:
    """A raw HTTP answer, decoded by its content type."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.data = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }
        self.body: Any = None
        if self.headers.get("content-type") == MSGPACK:
            self.body = msgpack.unpackb(self.data)
        elif self.data:
            self.body = json.loads(self.data)


def connect(node: Node, timeout_s: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.ports["api"]), timeout=timeout_s)


def receive(connection: socket.socket) -> bytes:
    """Receive one answer, up to its content length or to the end of the connection."""
    data = b""
    while True:
        head, split, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head) if split else None
        if length and len(rest) >= int(length[1]):
            return data
        part = connection.recv(65536)
        if not part:
            return data
        data += part


def call(
    node: Node,
    method: str,
    path: str,
    body: bytes | None = None,
    content_type: str | None = JSON,
    **headers: str,
) -> Answer:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if content_type is not None:
            lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with connect(node) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))
        return Answer(receive(connection))


def send(node: Node, value: object, *, content_type: str = JSON, topic: str = "orders") -> Answer:
    body = json.dumps(value).encode() if content_type == JSON else msgpack.packb(value)
    return call(node, "POST", f"/v1/topics/{topic}/messages", body, content_type)


def refused(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The error's fields; all five must be present."""
    assert (answer.status, answer.body.get("code")) == (status, code), answer.body
    for name in ("title", "detail", "advice", "retriable"):
        assert name in answer.body
    assert answer.body["detail"]
    fields: dict[str, Any] = answer.body
    return fields


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xc1", b'{"messages": [', b"\x81\xa8messages", b"[" * 50_000, b"\xff" * 50],
)
def test_a_malformed_body_is_a_400_in_the_callers_encoding(
    node: Node, content_type: str, body: bytes
) -> None:
    answer = call(node, "POST", SEND, body, content_type)
    refused(answer, 400, "bad-request")
    assert answer.headers["content-type"] == content_type


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": [{"body_text": "x", "flag": NaN}]}',
        '{"messages": [{"body_text": "x", "flag": 1e999}]}',
        '{"messages": [{"body_text": "x", "flag": %s}]}' % ("9" * 5000),
        '{"messages": [{"body_text": "x", "body_text": "y"}]}',
        '{"messages": [{"body_text": "x", "properties": {"a": "1", "a": "2"}}]}',
        '{"messages": [{"body_text": "\\ud800"}]}',
        '{"messages": [{"body_text": "x", "tags": "\\udfff"}]}',
    ],
)
def test_json_that_only_some_parsers_take_is_a_400(node: Node, text: str) -> None:
    answer = call(node, "POST", SEND, text.encode())
    assert answer.status == 400, answer.body
    assert answer.body["code"] in ("bad-request", "bad-property")


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0]"),
        ({"messages": [{"body_text": "x"}], "ack": "everybody"}, "ack"),
        ({"messages": [{"body_text": "x"}], "acks": 1}, "acks"),
        ({"messages": [{"body_text": "x"}, {"body_text": 1}]}, "messages[1].body_text"),
        ({"messages": [{"body_text": "x", "queue": "0"}]}, "messages[0].queue"),
        ({"messages": [{"body_text": "x", "properties": {"a": 1}}]}, "messages[0].properties.a"),
    ],
)
def test_a_wrong_field_is_named(node: Node, content_type: str, value: object, named: str) -> None:
    fields = refused(send(node, value, content_type=content_type), 400, "bad-request")
    assert named in fields["detail"].replace("'", "")


def test_tags_that_are_not_utf8_are_named(node: Node) -> None:
    body = msgpack.packb({"messages": [{"body": b"x", "tags": "TAGS"}]})
    answer = call(node, "POST", SEND, body.replace(b"TAGS", b"\xff\xfe\xfd\xfc"), MSGPACK)
    fields = refused(answer, 400, "bad-property")
    assert "messages[0].tags" in fields["detail"]


@pytest.mark.parametrize(
    "message",
    [
        {"properties": {"a\x01b": "v"}},
        {"properties": {"a": "v\x02KEYS\x01smuggled"}},
        {"properties": {"TAGS": "v"}},
        {"properties": {"__CRC32#": "0000000000"}},
        {"properties": {"INNER_NUM": "9"}},
        {"properties": {"DELAY": "3"}},
        {"properties": {"a": "x" * 40_000}},
        {"tags": "a\x02KEYS\x01smuggled"},
        {"keys": ["a\x02b"]},
        {"keys": ["two words"]},
        {"sharding_key": "\x01"},
    ],
)
def test_no_property_can_be_smuggled_in(node: Node, message: dict[str, object]) -> None:
    value = {"messages": [{"body_text": "x", **message}]}
    fields = refused(send(node, value), 400, "bad-property")
    assert "messages[0]" in fields["detail"]


def test_a_batch_with_one_bad_message_stores_none_of_it(node: Node) -> None:
    good = {"body_text": "good", "queue": 0}
    value = {"messages": [good, good, {"body_text": "bad", "queue": 0, "keys": [" "]}, good]}
    fields = refused(send(node, value), 400, "bad-property")
    assert "messages[2].keys[0]" in fields["detail"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_an_unknown_content_type_is_a_415(node: Node, content_type: str) -> None:
    answer = call(node, "POST", SEND, b"{}", content_type)
    assert JSON in refused(answer, 415, "unsupported-media-type")["advice"]


def test_a_packed_body_is_a_415_and_is_not_unpacked(node: Node) -> None:
    answer = call(node, "POST", SEND, b"\x1f\x8b", Content_Encoding="gzip")
    refused(answer, 415, "unsupported-media-type")


def test_too_many_messages_are_a_413_with_the_limit(node: Node) -> None:
    value = {"messages": [{"body": b""}] * 4097}
    fields = refused(send(node, value, content_type=MSGPACK), 413, "too-many-messages")
    assert fields["limit"] == 4096


def test_a_message_over_the_limit_is_a_413_with_the_limit(node: Node) -> None:
    value = {"messages": [{"body_text": "x" * (MESSAGE_MAX + 1)}]}
    fields = refused(send(node, value), 413, "too-large")
    assert fields["limit"] == MESSAGE_MAX


def test_a_body_over_the_limit_is_refused_before_it_is_read(node: Node) -> None:
    with connect(node) as connection:
        head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        connection.sendall(head.encode() + b"Content-Length: 999999999\r\n\r\n")
        fields = refused(Answer(receive(connection)), 413, "too-large")
        assert fields["limit"] == REQUEST_MAX


def test_a_body_without_a_length_is_cut_at_the_limit(node: Node) -> None:
    with connect(node) as connection:
        head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        with contextlib.suppress(OSError):  # refused while we are still sending
            for _ in range(REQUEST_MAX // 0x4000 + 2):
                connection.sendall(chunk)
        refused(Answer(receive(connection)), 413, "too-large")


def test_an_announced_body_over_the_limit_is_not_asked_for(node: Node) -> None:
    with connect(node) as connection:
        head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        connection.sendall(
            head.encode() + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n"
        )
        refused(Answer(receive(connection)), 413, "too-large")


def test_a_higher_level_than_this_node_has_is_refused_before_anything_is_stored(
    node: Node,
) -> None:
    value = {"messages": [{"body_text": "x"}], "ack": "replicated"}
    fields = refused(send(node, value), 503, "not-enough-replicas")
    assert fields["retriable"] is False  # it is in no group, and never will have a second copy


# -- names, queues, offsets ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a.b", "a%20b", "gr%C3%B6%C3%9Fe", "x" * 128, "a%2Fb", "a%00b", "%2E%2E", "a%0Ab", "%ff"],
)
def test_a_topic_outside_the_rule_is_a_400_with_the_rule(node: Node, name: str) -> None:
    for answer in (
        call(node, "PUT", f"/v1/topics/{name}", b'{"queues": 1}'),
        send(node, {"messages": [{"body_text": "x"}]}, topic=name),
        call(node, "GET", f"/v1/topics/{name}/queues/0/messages?offset=0"),
    ):
        assert "a-z A-Z 0-9" in refused(answer, 400, "bad-name")["detail"]


@pytest.mark.parametrize(
    "name", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_tidemark_state", "%25RETRY%25g", "TBW102"]
)
def test_a_reserved_topic_is_neither_made_nor_sent_to(node: Node, name: str) -> None:
    for answer in (
        call(node, "PUT", f"/v1/topics/{name}", b'{"queues": 1}'),
        send(node, {"messages": [{"body_text": "x"}]}, topic=name),
    ):
        refused(answer, 400, "bad-name")


def test_an_unknown_topic_is_a_404_with_what_exists(node: Node) -> None:
    for answer in (
        send(node, {"messages": [{"body_text": "x"}]}, topic="nosuch"),
        call(node, "GET", "/v1/topics/nosuch"),
        call(node, "DELETE", "/v1/topics/nosuch"),
        call(node, "GET", "/v1/topics/nosuch/queues/0/messages?offset=0"),
        call(node, "GET", "/v1/topics/nosuch/queues/0/offset?timestamp_ms=0"),
        call(node, "GET", "/v1/topics/nosuch/messages?key=a"),
    ):
        assert "orders" in refused(answer, 404, "unknown-topic")["detail"]


def test_a_queue_out_of_range_is_a_404_with_how_many_there_are(node: Node) -> None:
    value = {"messages": [{"body_text": "x", "queue": 0}, {"body_text": "x", "queue": 2}]}
    fields = refused(send(node, value), 404, "unknown-queue")
    assert "messages[1].queue" in fields["detail"]
    assert fields["queues"] == 2
    answer = call(node, "GET", "/v1/topics/orders/queues/2/messages?offset=0")
    assert "0 to 1" in refused(answer, 404, "unknown-queue")["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "offset=",
        "offset=x",
        "offset=1.5",
        "offset=0x1",
        "offset=%D9%A1",
        "offset=99999999999999999999",
        "offset=0&max=-1",
        "offset=0&max=1000000",
        "offset=0&wait_ms=forever",
        "offset=0&wait_ms=99999999",
        "offset=0&max_bytes=0",
        "offset=0&tags=a||",
        "offset=0&offset=1",
        "offset=0&colour=blue",
    ],
)
def test_a_wrong_parameter_is_a_400_that_names_it(node: Node, query: str) -> None:
    answer = call(node, "GET", f"/v1/topics/orders/queues/0/messages?{query}")
    wrong = query.split("&")[-1].partition("=")[0] or "offset"
    fields = refused(answer, 400, "bad-tags" if wrong == "tags" else "bad-request")
    assert wrong in fields["detail"]


@pytest.mark.parametrize("queue", ["x", "-1", "1.0", "99999999999", "%00"])
def test_a_queue_that_is_no_number_is_a_400(node: Node, queue: str) -> None:
    answer = call(node, "GET", f"/v1/topics/orders/queues/{queue}/messages?offset=0")
    refused(answer, 400, "bad-request")


@pytest.mark.parametrize("name", ["x", "00", "7F" * 16 + "0", "zz" * 16, "ÿ".encode().hex()])
def test_a_message_id_that_is_none_is_a_400(node: Node, name: str) -> None:
    refused(call(node, "GET", f"/v1/messages/{name}"), 400, "bad-request")


def test_a_message_id_of_nothing_is_a_404(node: Node) -> None:
    refused(call(node, "GET", "/v1/messages/" + "00" * 16), 404, "unknown-message")


def test_bytes_in_a_body_that_resemble_a_record_are_no_message(node: Node) -> None:
    """The id names a byte inside the snapshot record that the log begins with."""
    port = node.ports["api"]
    inside = f"7F000001{port:08X}{100:016X}"
    refused(call(node, "GET", f"/v1/messages/{inside}"), 404, "unknown-message")


# -- HTTP itself -----------------------------------------------------------------------------------


def test_an_unknown_path_is_a_404_and_another_method_a_405_with_those_allowed(node: Node) -> None:
    refused(call(node, "GET", "/v1/nothing"), 404, "unknown-call")
    refused(call(node, "GET", "/"), 404, "unknown-call")
    answer = call(node, "PATCH", "/v1/topics/orders")
    refused(answer, 405, "unknown-method")
    assert answer.headers["allow"] == "DELETE, GET, PUT"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_bytes_that_are_not_http_get_a_400_and_a_closed_connection(node: Node, raw: bytes) -> None:
    with connect(node) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        data = receive(connection)
    if data:
        refused(Answer(data), 400, "bad-request")


# -- slow, stalled and many clients ----------------------------------------------------------------


def _closes(connection: socket.socket, within_s: float) -> bool:
    """Whether the other side closes in time."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_a_silent_connection_is_closed(node: Node) -> None:
    with connect(node) as connection:
        assert _closes(connection, 60 * READ_TIMEOUT_S)


def test_a_request_head_that_arrives_byte_by_byte_is_closed(node: Node) -> None:
    closed = threading.Event()
    with connect(node) as connection:

        def dribble() -> None:
            with contextlib.suppress(OSError):
                for byte in b"GET /v1/topics HTTP/1.1\r\nX-Slow: " + b"y" * 1000:
                    connection.sendall(bytes([byte]))
                    if closed.wait(0.1):
                        return

        sender = threading.Thread(target=dribble)
        sender.start()
        try:
            assert _closes(connection, 60 * READ_TIMEOUT_S)
        finally:
            closed.set()
            sender.join()


def test_a_body_that_stalls_is_a_408(node: Node) -> None:
    with connect(node) as connection:
        head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        connection.sendall(head.encode() + b'Content-Length: 1000\r\n\r\n{"messages": [')
        fields = refused(Answer(receive(connection)), 408, "slow-request")
        assert fields["retriable"] is True


def test_a_body_that_ends_early_stores_nothing(node: Node) -> None:
    body = json.dumps({"messages": [{"body_text": "whole", "queue": 0}]}).encode()
    with connect(node) as connection:
        head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        connection.sendall(head.encode() + f"Content-Length: {len(body) + 1}\r\n\r\n".encode())
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        receive(connection)


def test_a_client_that_goes_away_in_the_middle_of_its_body_is_no_error_of_ours(node: Node) -> None:
    # Each one filled the log with a stack and the code of a bug, for what any client may do.
    for _ in range(5):
        with connect(node) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
            connection.sendall(
                head.encode() + b"Content-Length: 999\r\nExpect: 100-continue\r\n\r\n"
            )
            assert connection.recv(64).startswith(b"HTTP/1.1 100")  # its handler runs
            connection.sendall(b'{"messages": [')
    connections = f"{node.broker_admin_url}/metrics"

    def all_gone() -> bool:
        with urllib.request.urlopen(connections) as response:
            counts = re.findall(
                rb"^tidemark_broker_connections\{.*\} (\S+)$", response.read(), re.M
            )
            return {float(count) for count in counts} == {0}

    wait_until(all_gone, "the broker to notice that they are gone", 60 * READ_TIMEOUT_S)
    assert "outside of its handler" not in node.log_text("broker")


def test_a_flood_of_silent_connections_blocks_no_client(node: Node) -> None:
    """The oldest connection that has sent no request makes room for a new one."""
    with contextlib.ExitStack() as held:
        served = held.enter_context(connect(node))
        request = b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n"
        served.sendall(request)
        assert Answer(receive(served)).status == 200
        flood = [held.enter_context(connect(node)) for _ in range(2 * CONNECTIONS_MAX)]
        late = held.enter_context(connect(node))
        late.sendall(request)
        assert Answer(receive(late)).status == 200
        for connection in flood[:CONNECTIONS_MAX]:
            with contextlib.suppress(ConnectionResetError):
                assert receive(connection) == b""
        served.sendall(request)
        assert Answer(receive(served)).status == 200


def test_connections_that_are_all_in_use_are_kept_and_further_ones_refused(node: Node) -> None:
    head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"

    def is_refused() -> bool:
        """Fill the node; False if an earlier connection still counts, or if a request runs into
        the node's time-out meanwhile."""
        with contextlib.ExitStack() as held:
            connections = []
            for _ in range(CONNECTIONS_MAX):
                connection = held.enter_context(connect(node))
                connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
                if not connection.recv(64).startswith(b"HTTP/1.1 100"):
                    return False
                connections.append(connection)  # its request is in hand
            late = held.enter_context(connect(node))
            raw = receive(late)
            if any(select.select(connections, [], [], 0)):
                return False
            refused(Answer(raw), 503, "overloaded")
            return True

    wait_until(is_refused, "a node whose connections are all in use")


def test_pulls_beyond_the_bound_are_answered_at_once(node: Node) -> None:
    path = "/v1/topics/woken/queues/0/messages?offset={}&wait_ms=60000"
    assert node.request_json("PUT", "/v1/topics/woken", {"queues": 1})[0] == 200
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(connect(node)) for _ in range(10)]
        end = node.request_json("GET", "/v1/topics/woken/queues/0/messages?offset=0")[1]
        for connection in connections:
            request = f"GET {path.format(end['max_offset'])} HTTP/1.1\r\nHost: x\r\n"
            connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
        waiting = list(connections)

        def answered() -> bool:
            for connection in select.select(waiting, [], [], 0)[0]:
                assert Answer(receive(connection)).status == 200
                waiting.remove(connection)
            return len(waiting) <= 5

        wait_until(answered, "the pulls beyond the bound to be answered")
        assert len(waiting) == 5, "five are held"
        sent = {"messages": [{"body_text": "wakes them", "queue": 0}]}
        assert node.request_json("POST", "/v1/topics/woken/messages", sent)[0] == 200
        for connection in waiting:
            assert Answer(receive(connection)).status == 200


# -- the node itself -------------------------------------------------------------------------------


def test_a_second_broker_on_the_store_names_the_holder(node: Node, tmp_path: Path) -> None:
    with Node(tmp_path, store_dir=node.store_dir) as second:
        second.start("broker")
        assert second.wait_exit("broker") != 0
        log = second.log_text("broker")
        assert "store-locked" in log
        assert str(node.pid("broker")) in log


def test_a_store_with_other_sizes_is_refused_with_both(tmp_path: Path) -> None:
    with Node(tmp_path) as first:
        first.start()
        first.wait_ready()
        first.stop()
        with Node(
            tmp_path / "other",
            store_dir=first.store_dir,
            store={"commit_log_file_size": 1 << 21},
        ) as other:
            other.start("broker")
            assert other.wait_exit("broker") != 0
            log = other.log_text("broker")
            assert "store-sizes-differ" in log
            assert str(1 << 20) in log
            assert str(1 << 21) in log


def test_before_reput_has_caught_up_the_api_says_so(tmp_path: Path) -> None:
    with Node(tmp_path) as alone:
        alone.start("broker")
        wait_until(lambda: alone.ready().get("reasons"), "the broker to listen")
        status, answer = alone.request_json("GET", "/v1/topics")
        assert (status, answer["code"], answer["retriable"]) == (503, "not-serving", True)
        assert alone.request_json("POST", SEND, {"messages": []})[0] == 503
        ready = alone.ready()
        assert ready["ready"] is False
        assert ready["reasons"][0]["code"] == "catching-up"
        assert alone.get_json(alone.broker_admin_url + "/live")[0] == 200
        alone.start("reput")
        alone.wait_ready()


def _flip(node: Node, offset: int) -> None:
    """Flip bits of one byte of the first commit log file."""
    log = node.store_dir / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_a_message_that_is_damaged_on_disk_is_named_and_not_handed_out(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        node.request_json("PUT", "/v1/topics/orders", {"queues": 2})
        results = []
        for queue in (0, 1):
            sent = {"messages": [{"body_text": "some text", "queue": queue}]}
            results.append(node.request_json("POST", SEND, sent)[1]["results"][0])
        path = "/v1/topics/orders/queues/{}/messages?offset=0&wait_ms=5000"
        assert node.request_json("GET", path.format(0))[1]["status"] == "FOUND"
        _flip(node, results[0]["physical_offset"] + 95)
        status, answer = node.request_json("GET", path.format(0))
        assert (status, answer["code"]) == (503, "corrupt-record")
        assert answer["at"] == results[0]["physical_offset"]
        # A damaged node remained ready: no load balancer would have sent clients elsewhere.
        assert node.ready()["ready"] is False
        assert node.ready()["reasons"][0]["code"] == "corrupt-record"
        assert node.request_json("GET", path.format(1))[1]["status"] == "FOUND"


def test_a_damaged_log_keeps_the_node_up_and_unready_and_names_the_byte(tmp_path: Path) -> None:
    # Recovery starts at the durable end of the queues, so that must not move past the damage.
    with Node(tmp_path, reput={"sync_interval_ms": 10_000}) as node:
        node.start()
        node.wait_ready()
        node.request_json("PUT", "/v1/topics/orders", {"queues": 1})
        for number in range(20):
            sent = {"messages": [{"body_text": f"message {number}"}]}
            status, answer = node.request_json("POST", SEND, sent)
            assert status == 200
            if number == 10:
                damaged = answer["results"][0]["physical_offset"]
        node.kill()
        _flip(node, damaged + 95)
        node.start()
        wait_until(
            lambda: any(r["code"] == "corrupt-record" for r in node.ready().get("reasons", ())),
            "the broker to name the damage",
        )
        status, answer = node.request_json("GET", "/v1/topics/orders/queues/0/messages?offset=0")
        assert (status, answer["code"]) == (503, "corrupt-record")
        assert str(damaged) in answer["detail"]
        assert answer["retriable"] is False
        assert node.is_alive("broker")
        assert node.stop("broker") == {"broker": 0}


def test_without_reput_sends_go_on_to_a_bound_and_are_then_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    with Node(tmp_path, broker={"dispatch_lag_max": 1 << 20}) as node:
        node.start()
        node.wait_ready()
        node.request_json("PUT", "/v1/topics/orders", {"queues": 1})
        node.kill("reput")
        value = {"messages": [{"body_text": "x" * 50_000}] * 10}
        answer: dict[str, Any] = {}
        for _ in range(10):
            status, answer = node.request_json("POST", SEND, value)
            if status != 200:
                break
        assert (status, answer["code"], answer["retriable"]) == (503, "dispatch-behind", True)
        wait_until(
            lambda: [r["code"] for r in node.ready().get("reasons", ())] == ["dispatch-behind"],
            "the broker to become unready",
        )
        status, _ = node.request_json("GET", "/v1/topics/orders/queues/0/messages?offset=0")
        assert status == 200, "what is dispatched can be read"
        node.start("reput")
        node.wait_ready()
        assert node.request_json("POST", SEND, value)[0] == 200
