"""Raw responses sent from a mapping: the same bytes on every loop; fast, slow and gone readers."""

from __future__ import annotations

import asyncio
import gc
import mmap
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.broker.api.zero_copy import COPIED_MAX, PIECE_MIN, Stretches, records_answer
from shared.files.pull import PullResult, PullStatus
from tidemark.offsets import QueueOffset

SIZE = 24 << 20
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
Scenario = Callable[["Served"], Awaitable[None]]


class Served(NamedTuple):
    """A server that answers every request with the stretches, and what it has seen."""

    port: int
    stretches: list[memoryview]
    mapping: mmap.mmap
    answered: asyncio.Event
    errors: list[BaseException]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)


@pytest.fixture
def mapping() -> Iterator[mmap.mmap]:
    """Random bytes in a mapped file; closing it fails while a view of it exists."""
    with tempfile.TemporaryFile() as file:
        file.write(random.Random(7).randbytes(1 << 20) * (SIZE >> 20))
        file.flush()
        mapped = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)
        yield mapped
        gc.collect()
        mapped.close()


def cut(mapped: mmap.mmap, sizes: list[int], gap: int = 8) -> list[memoryview]:
    """Stretches of these sizes with gaps between them."""
    view, at, found = memoryview(mapped), 0, []
    for size in sizes:
        found.append(view[at : at + size])
        at += size + gap
    assert at <= SIZE
    return found


def result_of(stretches: list[memoryview]) -> PullResult:
    return PullResult(
        PullStatus.FOUND if stretches else PullStatus.OFFSET_OVERFLOW_ONE,
        QueueOffset(9), QueueOffset(0), QueueOffset(11), stretches, len(stretches),
        sum(map(len, stretches)), 0, QueueOffset(0), b"",
    )  # fmt: skip


@asynccontextmanager
async def serving(stretches: list[memoryview], mapped: mmap.mmap) -> AsyncIterator[Served]:
    answered, errors = asyncio.Event(), list[BaseException]()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = records_answer(result_of(stretches))
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            answered.set()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    server = TestServer(app)
    await server.start_server()
    assert server.port is not None
    try:
        yield Served(server.port, stretches, mapped, answered, errors)
    finally:
        await server.close()


def run(loop: str, mapped: mmap.mmap, sizes: list[int], scenario: Scenario) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), serving(cut(mapped, sizes), mapped) as served:
            await scenario(served)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())


async def answer_of(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200")
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
    return fields, await reader.readexactly(int(fields["Content-Length"]))


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
each_loop = pytest.mark.parametrize("loop", LOOPS)


@each_loop
@pytest.mark.parametrize(
    "sizes",
    [
        [], [1], [100] * 5, [PIECE_MIN] * 3, [COPIED_MAX], [COPIED_MAX + 1],
        [200_000], [1 << 20] * 8, [360] * 1500, [1, 9_000_000, 1], [PIECE_MIN + 1] * 3000,
    ],
    ids=lambda sizes: f"{len(sizes)} pieces, {sum(sizes)} bytes",
)  # fmt: skip
def test_the_answer_is_the_stretches_and_the_connection_goes_on(
    loop: str, mapping: mmap.mmap, sizes: list[int]
) -> None:
    async def twice(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(GET + GET)
        for _ in range(2):
            fields, body = await answer_of(reader)
            assert body == b"".join(served.stretches)
            assert fields["Content-Type"] == "application/vnd.tidemark.records"
            assert fields["Tidemark-Count"] == str(len(served.stretches))
            assert fields["Tidemark-Next-Offset"] == "9"
        writer.close()
        assert served.errors == []

    run(loop, mapping, sizes, twice)


@each_loop
def test_a_head_request_gets_the_length_and_no_byte(loop: str, mapping: mmap.mmap) -> None:
    async def head(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(b"HEAD" + GET[3:] + GET)
        first = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 300000\r\n" in first
        assert (await answer_of(reader))[1] == b"".join(served.stretches)
        writer.close()

    run(loop, mapping, [100_000] * 3, head)


@each_loop
def test_a_slow_reader_is_waited_for_and_gets_everything(loop: str, mapping: mmap.mmap) -> None:
    async def slowly(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 20971520\r\n" in head
        assert not served.answered.is_set()  # the handler waits: the client has not taken it
        if loop == "uvloop":
            # What waits is borrowed, not copied: the mapping cannot go.
            served.stretches[0].release()
            with pytest.raises(BufferError):
                served.mapping.close()
        body = await reader.readexactly(20 << 20)
        assert body == served.mapping[: 20 << 20]
        await served.answered.wait()
        assert served.errors == []
        writer.close()

    run(loop, mapping, [20 << 20], slowly)


@each_loop
def test_a_reader_that_goes_away_takes_nothing_down(loop: str, mapping: mmap.mmap) -> None:
    async def goes(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await served.answered.wait()
        # Cancelled, if the server cancels handlers of closed connections.
        kinds = ConnectionError | asyncio.CancelledError
        assert all(isinstance(error, kinds) for error in served.errors)
        reader, writer = await served.connect()
        writer.write(GET)
        assert len((await answer_of(reader))[1]) == 20 << 20
        writer.close()

    run(loop, mapping, [10 << 20] * 2, goes)


def test_records_are_no_text() -> None:
    with pytest.raises(TypeError, match="not text"):
        Stretches([], 0).decode()
