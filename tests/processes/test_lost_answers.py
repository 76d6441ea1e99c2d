"""Calls whose answer is lost behind a running node: a repeat returns the result of the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tidemark
from tidemark import errors
from tidemark.testing import LocalNode
from tidemark.testing.waiting import wait_until

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    with LocalNode(tmp_path_factory.mktemp("node")) as running:
        yield running


class Proxy:
    """A proxy in front of the node that loses some answers."""

    def __init__(self) -> None:
        self.url = ""
        self.lose: dict[str, int] = {}
        """Method, or end of a path, to how many answers of its next calls are lost."""
        self.on_lost: Callable[[], object] | None = None
        """Called in a thread before the connection of the next lost answer breaks."""
        self.holds_lost = False
        """Whether lost answers leave the connection open."""
        self.lost: list[tuple[str, bytes]] = []
        """Path and body of the answers that did not arrive."""

    @asynccontextmanager
    async def before(self, node: LocalNode) -> AsyncIterator[Proxy]:
        app = web.Application()

        async def forward(request: web.Request) -> web.StreamResponse:
            async with session.request(
                request.method,
                node.url + request.raw_path,
                data=await request.read(),
                headers={
                    name: request.headers[name]
                    for name in ("Content-Type", "Accept")
                    if name in request.headers
                },
            ) as answered:
                body = await answered.read()
                lost_by = request.method
                for end in self.lose:
                    lost_by = end if request.path.endswith(end) else lost_by
                if self.lose.get(lost_by, 0) > 0:
                    self.lose[lost_by] -= 1
                    self.lost.append((request.raw_path, body))
                    if (on_lost := self.on_lost) is not None:
                        self.on_lost = None
                        await asyncio.to_thread(on_lost)
                    if self.holds_lost:
                        await asyncio.Event().wait()
                    assert request.transport is not None
                    request.transport.abort()
                content_type = answered.headers.get("Content-Type", "")
                return web.Response(
                    status=answered.status, body=body, headers={"Content-Type": content_type}
                )

        app.router.add_route("*", "/{rest:.*}", forward)
        server = TestServer(app)
        async with aiohttp.ClientSession() as session:
            await server.start_server()
            self.url = str(server.make_url("")).rstrip("/")
            try:
                yield self
            finally:
                await server.close()


@pytest.mark.parametrize("lost_count", [1, 2, 3])
async def test_a_cancellation_whose_answer_was_lost_succeeds_when_repeated(
    node: LocalNode, lost_count: int
) -> None:
    # One lost answer is a separate case: the HTTP library used to repeat the call by itself.
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url) as mq:
        sent = await mq.send("reminders", b"x", delay_ms=HOUR_MS)
        assert sent.unique_id is not None
        proxy.lose = {"DELETE": lost_count}
        assert await mq.delayed.cancel("reminders", sent.unique_id) == 1
        assert len(proxy.lost) == lost_count
        # A first cancellation gets the error that no message waits.
        with pytest.raises(errors.UnknownDelayed):
            await mq.delayed.cancel("reminders", sent.unique_id)
        assert (await mq.delayed.list("reminders")).messages == []


async def test_without_repetitions_a_lost_answer_raises_an_unknown_outcome(
    node: LocalNode,
) -> None:
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url, retry_for_s=0) as mq:
        sent = await mq.send("reminders", b"x", delay_ms=HOUR_MS)
        assert sent.unique_id is not None
        proxy.lose = {"DELETE": 1}
        with pytest.raises(errors.Unreachable) as raised:
            await mq.delayed.cancel("reminders", sent.unique_id)
        assert raised.value.facts["sent"] is True


@pytest.mark.parametrize("lost_count", [1, 2])
async def test_a_deletion_whose_answer_was_lost_is_done(node: LocalNode, lost_count: int) -> None:
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url) as mq:
        await mq.create_topic("short-lived")
        await mq.groups.create("short-lived")
        proxy.lose = {"DELETE": lost_count}
        await mq.delete_topic("short-lived")
        proxy.lose = {"DELETE": lost_count}
        await mq.groups.delete("short-lived")
        with pytest.raises(errors.UnknownTopic):
            await mq.delete_topic("short-lived")
        with pytest.raises(errors.UnknownGroup):
            await mq.groups.delete("short-lived")
    assert len(proxy.lost) == 2 * lost_count


@pytest.mark.parametrize("wait", ["delay_ms", "delay_level"])
async def test_a_delayed_send_whose_answer_was_lost_names_the_time_at_which_it_comes(
    node: LocalNode, wait: str
) -> None:
    topic = f"times-{wait}"
    given = {"delay_ms": HOUR_MS} if wait == "delay_ms" else {"delay_level": 18}
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url) as mq:
        await mq.create_topic(topic)
        proxy.lose = {"POST": 3}
        message = tidemark.NewMessage(b"x", **given)  # type: ignore[arg-type]
        (sent,) = await mq.send_many(topic, [message])
        (waiting,) = (await mq.delayed.list(topic)).messages
    assert len(proxy.lost) == 3
    assert sent.deliver_at_ms == waiting.deliver_at_ms
    assert sent.unique_id == waiting.unique_id


# The repetition stored a second copy, which was delivered, and handled, as well.
@pytest.mark.parametrize("lost", ["once", "three times", "and the node is killed"])
async def test_a_nack_whose_answers_were_lost_is_stored_once(node: LocalNode, lost: str) -> None:
    topic = f"nacks-{lost.replace(' ', '-')}"
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url, retry_for_s=60) as mq:
        await mq.create_topic(topic, queues=1)
        await mq.send_many(topic, [b"twice?", b"dead twice?", b"after"])
        if lost == "and the node is killed":

            def restart() -> None:
                node.kill()
                node.start()

            proxy.on_lost = restart
        count = 3 if lost == "three times" else 1
        async with mq.subscribe(topic, group=topic, start="first") as messages:
            taken: list[tidemark.Message] = []
            while len(taken) < 3:
                taken += await messages.getmany(3 - len(taken))
            one, dead, after = taken
            proxy.lose = {"/nack": count}
            await messages.nack(one, delay_level=1)
            proxy.lose = {"/nack": count}
            await messages.nack(dead, delay_level=-1)
            await messages.nack(after, delay_level=1)  # delivered behind all copies of the first
            again: list[bytes] = []
            while b"after" not in again:
                message = await messages.getone()
                assert message is not None
                assert message.reconsume_times == 1
                await messages.ack(message)
                again.append(bytes(message.body))
        letters = (await mq.dead_letters.list(topic)).messages
    assert again == [b"twice?", b"after"]
    assert len(letters) == 1
    assert len(proxy.lost) == 2 * count


# After an unknown outcome the program may repeat the call: as the same nack, not as a second one.
async def test_a_nack_that_a_program_repeats_after_a_lost_answer_is_stored_once(
    node: LocalNode,
) -> None:
    async with Proxy().before(node) as proxy, tidemark.connect(proxy.url, retry_for_s=0) as mq:
        await mq.create_topic("nacked-again", queues=1)
        await mq.send("nacked-again", b"x")
        async with mq.subscribe("nacked-again", group="nacked-again", start="first") as messages:
            message = await messages.getone()
            assert message is not None
            proxy.lose = {"/nack": 1}
            proxy.holds_lost = True
            with pytest.raises(errors.Unreachable):
                await messages.nack(message, delay_level=-1, timeout=2)
            # A busy node may be slower than the time-out: its answer is lost, not that to the next.
            await asyncio.to_thread(wait_until, lambda: proxy.lost, "the answer to be lost")
            proxy.holds_lost = False
            await messages.nack(message, delay_level=-1)
        assert len((await mq.dead_letters.list("nacked-again")).messages) == 1
