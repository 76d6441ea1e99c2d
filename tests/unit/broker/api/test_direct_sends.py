"""Plain sends that bypass aiohttp: the same answers, in order, however their bytes arrive."""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from services.broker import request_classes
from services.broker.api import connections, direct_sends
from services.broker.api.connections import HELD_SIZE_MAX, ApiHandler
from services.broker.api.http_requests import Body
from tests.support.metrics import samples
from tests.unit.broker.api.rig import Served, served
from tidemark.errors import Overloaded
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage

SEND = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
MESSAGE = {"body": b"x", "unique_id": "A"}
STORED = (b"200", b'{"status":"PUT_OK"}\n')
BODY: bytes = msgpack.packb({"messages": [MESSAGE]})


def send(body: bytes = BODY, head: bytes = SEND) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def send_batch(entries: bytes, query: bytes = b"", headers: bytes = b"") -> bytes:
    line = b"POST /v1/topics/batches/batches%b HTTP/1.1\r\nHost: x\r\n" % query
    return send(entries, line + headers)


ENTRIES = batch.encode([WireMessage(b"a"), WireMessage(b"b", b"KEYS\x01k\x02")])
LAST = send(head=SEND + b"Connection: close\r\n")
REQUESTS = [
    send(),
    send(),
    send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 3})),
    send(b'{"messages": []}', SEND + b"Content-Type: application/json\r\n"),
    send(
        b'{"messages": [{"body_text": "x", "unique_id": "A"}]}',
        SEND + b"Content-Type: application/json\r\nAccept: application/json\r\n",
    ),
    send(b"\xc1"),
    send(head=SEND.replace(b"orders", b"batches")),
    send(head=SEND.replace(b"orders", b"missing")),
    send(head=SEND.replace(b"orders", b"%6Frders")),
    send(head=SEND + b"Expect: 100-continue\r\n"),
    SEND + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    send_batch(ENTRIES),
    send_batch(ENTRIES, b"?queue=3&unique_id=A&ack=memory&timeout_ms=5&retry=false"),
    send_batch(ENTRIES, b"?unique_id=A&retry=true"),
    send_batch(ENTRIES, b"?unique_id=%41%3F"),
    send_batch(ENTRIES[:-1]),
    send_batch(ENTRIES, headers=b"Content-Type: application/octet-stream\r\n"),
    send_batch(ENTRIES, headers=b"Accept: application/msgpack\r\n"),
    send_batch(ENTRIES, headers=b"Expect: 100-continue\r\n"),
    b"GET /v1/topics/orders/queues/0/messages?offset=5 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUT /v1/topics/a$b HTTP/1.1\r\nHost: x\r\n\r\n",
]
BROKEN = [
    b"POST /v1/topics/orders/messages HTTP/1.1\r\nA : b\r\nContent-Length: 0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
    SEND + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n.",
]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The begin of a send is held for longer than a busy machine stops a test."""
    monkeypatch.setattr(connections, "HELD_S", 60.0)


async def talk(node: Served, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Status and body of each answer to the parts, which are sent one after another."""
    reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.0005)  # most parts are received one by one
    answers = []
    while found := await answer(reader):
        answers.append(found)
    writer.close()
    return answers


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Status and body of the next answer; None: the connection is closed."""
    async with asyncio.timeout(30):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        size = re.search(rb"Content-Length: (\d+)", head)
        body = b"" if size is None else await reader.readexactly(int(size[1]))
        return head.split(b" ", 2)[1], body


def in_parts(stream: bytes, rng: random.Random) -> list[bytes]:
    """The stream in one piece, or cut at random."""
    cuts = sorted(rng.sample(range(1, len(stream)), rng.choice([0, 1, 2, 5])))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


async def test_any_stream_of_requests_is_answered_as_by_aiohttp() -> None:
    async with served() as direct, served(direct=False) as general:

        async def check(seed: int) -> None:
            rng = random.Random(seed)
            # More than 32 requests at once fill aiohttp's queue: it stops reading.
            requests = rng.choices(REQUESTS, k=rng.choice([1, 2, 3, 4, 5, 6, 40]))
            # One after another as most clients do, or in a stream that is cut anywhere.
            parts = requests if rng.random() < 0.4 else in_parts(b"".join(requests), rng)
            direct.sends.waits = rng.random() < 0.1
            direct.sends.sent, general.sends.sent = [], []
            answers = await talk(direct, [*parts, LAST])
            assert answers == await talk(general, [*parts, LAST]), f"seed {seed}: {parts}"
            stored = [(topic, request) for topic, request, _ in direct.sends.sent]
            assert stored == [(topic, request) for topic, request, _ in general.sends.sent]

        for seed in range(80):
            await check(seed)
        assert direct.sends.direct_count > 25


@pytest.mark.parametrize("broken", BROKEN)
async def test_what_is_not_http_is_refused_after_the_sends_before_it(broken: bytes) -> None:
    async with served() as node:
        answers = await talk(node, [send() * 2 + broken])
        assert [status for status, _ in answers] == [b"200", b"200", b"400"]
        assert len(node.sends.sent) == 2


async def connected(node: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, ApiHandler]:
    """A connection, and its handler in the server."""
    reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
    await until(lambda: node.server.connections == 1)
    (handler,) = node.server._silent
    assert isinstance(handler, ApiHandler)
    await until(lambda: handler._waiter is not None)
    return reader, writer, handler


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition does not come true")


async def test_what_follows_a_send_waits_for_its_answer() -> None:
    async with served() as node:
        node.sends.level.clear()
        reader, writer, handler = await connected(node)
        writer.write(send() * 3)
        await until(lambda: node.sends.sent)
        await asyncio.sleep(0.01)
        assert len(node.sends.sent) == 1
        assert not handler.is_dispensable(float("inf"))
        node.sends.level.set()
        for _ in range(3):
            assert await answer(reader) == STORED
        assert len(node.sends.sent) == 3
        writer.close()


async def test_what_a_client_has_not_waited_for_is_dropped_when_it_closes() -> None:
    # It may repeat what was kept on another connection.
    async with served() as node:
        node.sends.level.clear()
        _, writer, handler = await connected(node)
        writer.write(send() * 2)
        await until(lambda: handler._held)
        writer.close()
        await until(lambda: node.server.connections == 0)
        node.sends.level.set()
        await until(lambda: handler._answering is None)
        assert len(node.sends.sent) == 1


async def test_many_requests_behind_sends_are_all_answered() -> None:
    # aiohttp stops reading when 32 requests wait, and reads on when it has fewer.
    get = REQUESTS[-3]
    async with served() as node:
        reader, writer, handler = await connected(node)
        handler.data_received(send() * 4)
        await asyncio.sleep(0)
        handler.data_received(get * 100)
        for _ in range(104):
            assert await answer(reader) is not None
        writer.close()


async def test_a_head_in_two_parts_is_compared_with_repeats_that_came_between() -> None:
    async with served() as node:
        node.sends.repeats = 7
        reader, writer, handler = await connected(node)
        writer.write(send()[:20])
        await until(lambda: handler._part_since)
        node.sends.repeats += 1
        writer.write(send()[20:])
        assert await answer(reader) == STORED
        assert node.sends.since == 7
        writer.write(send())
        assert await answer(reader) == STORED
        assert node.sends.since == 8
        writer.close()


async def test_a_send_that_begins_behind_a_request_is_compared_with_later_repeats() -> None:
    # 1. A request and the begin of a send arrive; 2. the client gives up, and repeats the send on
    # another connection; 3. the rest of the send arrives after the request is answered.
    general = send(head=SEND.replace(b"orders", b"%6Frders"))
    async with served() as node:
        node.sends.repeats = 7
        reader, writer, handler = await connected(node)
        for since in (7, 8, 9):
            writer.write(general + send()[:20])
            assert await answer(reader) == STORED
            await until(lambda: handler._is_idle)
            node.sends.repeats += 1
            writer.write(send()[20:])
            assert await answer(reader) == STORED
            assert node.sends.since == since
            await until(lambda: handler._is_idle)
        writer.close()


async def test_all_that_waits_is_compared_with_repeats_since_the_first_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as node:
        node.sends.level.clear()
        node.sends.repeats = 7
        reader, writer, handler = await connected(node)
        writer.write(send() * 3)
        await until(lambda: handler._held)
        node.sends.repeats += 1
        since = []
        original = node.sends.send

        async def noted(*given: Any) -> Any:
            since.append(given[4])
            return await original(*given)

        monkeypatch.setattr(node.sends, "send", noted)
        node.sends.level.set()
        for _ in range(3):
            assert await answer(reader) == STORED
        assert since == [7, 7]
        assert node.sends.direct_count == 1
        await until(lambda: handler._is_idle)
        writer.write(send(head=SEND.replace(b"orders", b"%6Frders")))
        assert await answer(reader) == STORED
        # Two requests arrived together, so a part of another one might have come with them.
        assert since == [7, 7, 7]
        writer.write(send())
        assert await answer(reader) == STORED
        assert since == [7, 7, 7, 8]
        writer.close()


@pytest.mark.usefixtures("patient")
async def test_heads_without_bodies_take_nothing_from_others() -> None:
    async with served() as node:
        writers = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(node.url.host, node.url.port)
            writer.write(SEND + b"Content-Length: 60000\r\n\r\n")
            writers.append(writer)
        await until(lambda: node.api._bodies._waiting.used)
        assert node.api._bodies._waiting.used < 8 * len(SEND) + 1000
        for writer in writers:
            writer.transport.abort()


async def test_much_that_follows_a_send_is_not_read() -> None:
    async with served(request_size_max=1 << 20) as node:
        node.sends.level.clear()
        _, writer, handler = await connected(node)
        large = send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 70}))
        writer.write(send() + large * 100)
        await until(lambda: len(handler._held) > HELD_SIZE_MAX)
        held = len(handler._held)
        await asyncio.sleep(0.05)
        assert len(handler._held) == held
        writer.transport.abort()


async def test_a_stop_waits_for_a_send_in_progress_and_accepts_no_other() -> None:
    async with served() as node:
        node.sends.level.clear()
        reader, writer, _ = await connected(node)
        writer.write(send() * 2)
        await until(lambda: node.sends.sent)
        stopping = asyncio.create_task(node.server.close())
        await asyncio.sleep(0.02)
        assert not stopping.done()
        node.sends.level.set()
        answers = await asyncio.wait_for(reader.read(), 10)
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        assert len(node.sends.sent) == 1
        await stopping
        writer.close()


@pytest.mark.parametrize("count", [1, 5])
async def test_every_send_of_a_connection_bypasses_aiohttp(count: int) -> None:
    async with served() as node:
        reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
        for _ in range(count):
            writer.write(send())
            assert await answer(reader) == STORED
        assert node.sends.direct_count == count
        writer.write(REQUESTS[-2])  # served by aiohttp
        await answer(reader)
        writer.write(send())
        assert await answer(reader) == STORED
        assert node.sends.direct_count == count + 1
        writer.close()


@pytest.mark.usefixtures("patient")
async def test_a_connection_whose_send_arrives_is_in_use() -> None:
    async with served() as node:
        reader, writer, handler = await connected(node)
        writer.write(send())
        assert await answer(reader) == STORED
        request = send()
        writer.write(request[:-3])
        await until(lambda: handler._held)
        assert handler.has_spoken
        assert not handler.is_dispensable(float("inf"))
        handler._process_keepalive()
        handler._next_keepalive_close_time = 0.0
        handler._process_keepalive()
        writer.write(request[-3:])
        assert await answer(reader) == STORED
        writer.close()


@pytest.mark.usefixtures("patient")
async def test_a_first_send_that_arrives_has_spoken() -> None:
    async with served() as node:
        _, writer, handler = await connected(node)
        assert not handler.has_spoken
        writer.write(send()[:-3])
        await until(lambda: handler._held)
        assert handler.has_spoken
        writer.close()


async def test_a_client_that_has_not_read_its_answer_keeps_its_connection() -> None:
    async with served(answer_size=64 << 20) as node:
        _, writer, handler = await connected(node)
        writer.write(send(head=SEND + b"Content-Type: application/msgpack\r\n"))
        await until(lambda: handler.writing_paused)
        assert not handler.is_dispensable(float("inf"))
        writer.transport.abort()


def _has_sent(node: Served, count: int) -> bool:
    return len(node.sends.sent) == count


async def test_a_send_is_counted_as_by_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_classes, "SENT_LATELY_S", 60.0)
    async with served() as direct, served(direct=False) as general:
        for node in (direct, general):
            reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
            for request in (send(), send(b"\xc1"), send(head=SEND.replace(b"orders", b"missing"))):
                writer.write(request)
                await answer(reader)
            assert node.api.request_classes.others_send()
            node.sends.level.clear()
            writer.write(send())
            await until(functools.partial(_has_sent, node, 2))
            if node is direct:
                assert node.api.request_classes.queued()["put"] == 1
                assert node.api._bodies._waiting.used == len(BODY)
            node.sends.level.set()
            await answer(reader)
            assert node.api.request_classes.queued()["put"] == 0
            assert node.api._bodies._waiting.used == 0
            assert node.server.roles()["producer"] == 1
            writer.close()
        counted = ("put_results", "requests_rejected", "request_duration_seconds_count")
        found = [
            {k: v for k, v in samples(node.registry).items() if any(c in k for c in counted)}
            for node in (direct, general)
        ]
        assert found[0] == found[1]
        assert sum(v for k, v in found[0].items() if "duration" in k and "send" in k) == 4


@pytest.mark.parametrize("peer_share", [False, True])
async def test_a_send_that_finds_no_memory_is_refused(peer_share: bool) -> None:
    async with served() as node:
        reader, writer, handler = await connected(node)
        body = Body()
        node.api._bodies.grow(body, 1 << 19, "127.0.0.1" if peer_share else None)
        rest = node.api._bodies.take(1 << 19)
        count = 80 if peer_share else 1
        writer.write(send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * count})))
        found = await answer(reader)
        assert found is not None
        assert found[0] == b"503"
        assert not handler._held
        assert not node.sends.sent
        node.api._bodies.end(rest)
        node.api._bodies.end(body)
        writer.close()


@pytest.mark.usefixtures("patient")
async def test_the_begin_of_a_send_is_counted_until_its_end_or_until_aiohttp_has_it() -> None:
    async with served() as node:
        request = send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 70}))
        waiting = node.api._bodies._waiting
        for goes_on in (True, False):
            reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
            writer.write(request[:-3])
            await until(lambda: waiting.used)
            if goes_on:
                writer.write(request[-3:])
                assert await answer(reader) == STORED
            writer.close()
            await until(lambda: not waiting.used)


async def test_an_idle_connection_is_closed_and_one_with_a_send_in_progress_is_not() -> None:
    async with served() as node:
        reader, writer, handler = await connected(node)

        def time_is_up() -> None:
            handler._next_keepalive_close_time = 0.0
            handler._process_keepalive()

        writer.write(send())
        assert await answer(reader) == STORED
        node.sends.level.clear()
        writer.write(send())
        await until(lambda: handler._answering)
        time_is_up()
        node.sends.level.set()
        assert await answer(reader) == STORED
        time_is_up()
        assert await answer(reader) is None
        writer.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_slow", [False, True])
async def test_the_count_of_repeats_is_that_at_the_first_byte(is_slow: bool) -> None:
    # Otherwise a repeat that is stored while the rest of the body is under way is missed.
    async with served() as node:
        node.sends.repeats = 7
        reader, writer, handler = await connected(node)
        request = send()
        writer.write(request[:-3])
        await until(lambda: handler._held)
        if is_slow:
            handler._hand_over()
        node.sends.repeats += 1
        writer.write(request[-3:])
        assert await answer(reader) == STORED
        assert node.sends.since == 7
        writer.close()


@pytest.mark.usefixtures("patient")
async def test_a_send_in_two_parts_is_served_directly() -> None:
    async with served() as node:
        reader, writer, handler = await connected(node)
        request = send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 70}))
        writer.write(request[:40_000])
        await until(lambda: handler._held)
        writer.write(request[40_000:])
        assert await answer(reader) == STORED
        assert node.sends.direct_count == 1
        assert handler._missing == 0
        writer.close()


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends of several connections are gathered, however slow the machine is."""
    monkeypatch.setattr(direct_sends, "GATHERED_WITHIN_S", float("inf"))


class Clients:
    """Connections whose bytes all arrive in the same turn of the event loop."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self.readers: list[asyncio.StreamReader] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.handlers: list[ApiHandler] = []

    @classmethod
    async def of(cls, node: Served, count: int) -> Clients:
        clients = cls(node)
        for _ in range(count):
            reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
            handler = await clients._next_handler()
            clients.readers.append(reader)
            clients.writers.append(writer)
            clients.handlers.append(handler)
        return clients

    async def _next_handler(self) -> ApiHandler:
        """The handler of a new connection, when it waits for a request."""
        silent = self.node.server._silent
        await until(lambda: len(silent) > len(self.handlers))
        (handler,) = set(silent) - set(self.handlers)
        assert isinstance(handler, ApiHandler)
        await until(lambda: handler._waiter is not None)
        return handler

    def receive(self, *requests: bytes) -> None:
        """Let each connection receive its bytes, without a turn of the loop in between."""
        for handler, data in zip(self.handlers, requests, strict=True):
            handler.data_received(data)

    async def answers(self) -> list[tuple[bytes, bytes] | None]:
        return [await answer(reader) for reader in self.readers]

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@pytest.mark.usefixtures("gathering")
async def test_sends_that_arrive_in_one_turn_are_appended_together() -> None:
    async with served() as node:
        clients = await Clients.of(node, 3)
        clients.receive(send(), send() * 2, send())
        assert await clients.answers() == [STORED] * 3
        assert await answer(clients.readers[1]) == STORED
        assert node.sends.gathered == [3, 1]
        assert [host.port for _, _, host in node.sends.sent] == [
            clients.writers[each].get_extra_info("sockname")[1] for each in (0, 1, 2, 1)
        ]
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_a_send_that_cannot_be_stored_takes_no_other_of_its_turn_with_it() -> None:
    general = send(msgpack.packb({"messages": [MESSAGE], "retry": True}))
    async with served() as node:
        clients = await Clients.of(node, 5)
        missing = send(head=SEND.replace(b"orders", b"missing"))
        clients.receive(send(), missing, send(b"\xc1"), general, send())
        statuses = [found and found[0] for found in await clients.answers()]
        assert statuses == [b"200", b"404", b"400", b"200", b"200"]
        assert node.sends.gathered == [3], "not those that are no request or a repetition"
        assert node.sends.direct_count == 2
        assert len(node.sends.sent) == 3
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_more_than_may_be_gathered_is_appended_in_parts() -> None:
    large = send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 15}))
    count = direct_sends.GATHERED_SIZE_MAX // len(large)
    async with served() as node:
        clients = await Clients.of(node, count + 2)
        clients.receive(*[large] * (count + 2))
        assert node.sends.gathered == [count]
        assert await clients.answers() == [STORED] * (count + 2)
        assert node.sends.gathered == [count, 2]
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_sends_of_a_turn_in_which_a_repeat_was_stored_are_compared_with_it() -> None:
    # 1. A first attempt and its repeat arrive in one turn; 2. aiohttp's task stores the repeat;
    # 3. at the end of the turn, the first attempt would be stored again.
    async with served() as node:
        node.sends.repeats = 7
        clients = await Clients.of(node, 2)
        clients.receive(send(), send())
        node.sends.repeats += 1
        assert await clients.answers() == [STORED] * 2
        assert node.sends.gathered == []
        assert node.sends.since == 7
        clients.receive(send(), send())
        assert await clients.answers() == [STORED] * 2
        assert node.sends.gathered == [2]
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_sends_are_refused_if_the_gate_closes_in_their_turn() -> None:
    async with served() as node:
        clients = await Clients.of(node, 2)
        clients.receive(send(), send())
        node.api._gate.sends_open = False
        assert [found and found[0] for found in await clients.answers()] == [b"503"] * 2
        assert not node.sends.sent
        clients.close()


@pytest.mark.usefixtures("gathering")
@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_client_that_closes_in_its_turn_is_not_answered(is_direct: bool) -> None:
    async with served() as node:
        clients = await Clients.of(node, 2)
        clients.receive(send(), send())
        node.sends.waits = not is_direct
        gone = clients.handlers[0]
        gone.connection_lost(None)
        assert await answer(clients.readers[1]) == STORED
        # What aiohttp would have to serve is dropped: the client may repeat it elsewhere.
        assert len(node.sends.sent) == (2 if is_direct else 1)
        assert gone._answering is None
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_a_stop_waits_for_the_end_of_a_turn() -> None:
    async with served() as node:
        clients = await Clients.of(node, 2)
        clients.receive(send(), send())
        await node.server.close()
        assert await clients.answers() == [STORED] * 2
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_the_bodies_of_a_turn_are_counted_together() -> None:
    async with served() as node:
        clients = await Clients.of(node, 3)
        other = node.api._bodies.take((1 << 20) - 2 * len(BODY))
        clients.receive(*[send()] * 3)
        statuses = [found and found[0] for found in await clients.answers()]
        assert statuses == [b"200", b"200", b"503"]
        assert len(node.sends.sent) == 2
        node.api._bodies.end(other)
        assert node.api._bodies._waiting.used == 0
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_the_memory_of_a_send_that_waits_is_counted_even_if_there_is_no_room() -> None:
    # Its messages are stored: a refusal would be untrue.
    async with served() as node:
        bodies = node.api._bodies
        taken = [bodies.take(1 << 20), bodies.take(10)]
        assert bodies._waiting.used == (1 << 20) + 10
        with pytest.raises(Overloaded):
            bodies.check_room(1)
        for each in taken:
            bodies.end(each)
        assert bodies._waiting.used == 0


@pytest.mark.parametrize("count", [1, 2])
async def test_a_send_waits_for_others_only_if_another_connection_just_sent(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as node:
        clients = await Clients.of(node, count)
        monkeypatch.setattr(direct_sends, "GATHERED_WITHIN_S", 60.0)
        for _ in range(2):
            clients.receive(*[send()] * count)
            assert await clients.answers() == [STORED] * count
        assert node.sends.gathered == ([1, 1] if count == 1 else [1, 1, 2])
        monkeypatch.setattr(direct_sends, "GATHERED_WITHIN_S", -1.0)
        clients.receive(*[send()] * count)
        assert len(node.sends.sent) == 3 * count, "stored in the call that received it"
        clients.close()


@pytest.mark.usefixtures("gathering")
async def test_a_large_send_is_stored_in_the_call_that_received_it() -> None:
    large = send(msgpack.packb({"messages": [MESSAGE | {"body": bytes(900)}] * 20}))
    async with served() as node:
        clients = await Clients.of(node, 2)
        clients.receive(large, large)
        assert node.sends.gathered == [1, 1]
        assert await clients.answers() == [STORED] * 2
        clients.close()
