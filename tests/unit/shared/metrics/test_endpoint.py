"""``GET /metrics`` over a real socket: formats, slices, bounds, scrapers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from shared.metrics.catalogue import groups as of_groups
from shared.metrics.endpoint import SCRAPES_MAX, MetricsEndpoint
from shared.metrics.exposition import OPENMETRICS, TEXT
from shared.metrics.registry import Registry
from shared.metrics.tables import Table
from shared.runtime.clock import SystemClock
from shared.runtime.pauses import SLICE_S

ROWS = 40_000
BUFFER_SIZE = 65536
"""Of the kernel, for each direction of a connection."""
FAMILIES = (
    of_groups.GROUP_INFLIGHT_MESSAGES,
    of_groups.GROUP_LAGGING_QUEUES,
    of_groups.GROUP_STUCK_QUEUES,
)


class TickingClock(SystemClock):
    """Each look at it takes some time, so that slices are the same on any machine."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s, self._now = step_s, 0.0

    def monotonic(self) -> float:
        self._now += self._step_s
        return self._now


def big_registry() -> Registry:
    registry = Registry("broker")
    labels = [(f"group-{number}", f"topic-{number}") for number in range(ROWS)]
    columns = [list(range(ROWS)) for _ in FAMILIES]
    registry.bounds.pairs.most = ROWS
    registry.read_table(FAMILIES, lambda: Table(labels, columns))
    return registry


@contextlib.asynccontextmanager
async def serving(
    registry: Registry,
    *,
    before_scrape: Callable[[], Awaitable[None]] | None = None,
    step_s: float = SLICE_S / 4,
    scrape_timeout_s: float = 60.0,
) -> AsyncIterator[tuple[MetricsEndpoint, str]]:
    endpoint = MetricsEndpoint(
        registry,
        TickingClock(step_s),
        before_scrape=before_scrape,
        scrape_timeout_s=scrape_timeout_s,
    )
    app = web.Application()
    app.add_routes([web.get("/metrics", endpoint.handle)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
    await web.SockSite(runner, listening).start()
    try:
        host, port = runner.addresses[0][:2]
        yield endpoint, f"http://{host}:{port}/metrics"
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def get(url: str, accept: str | None = None) -> tuple[int, str, str]:
    headers = {} if accept is None else {"Accept": accept}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_the_format_is_the_one_that_was_asked_for() -> None:
    async with serving(Registry("reput")) as (_, url):
        status, kind, text = await get(url)
        assert (status, kind) == (200, TEXT.content_type)
        assert text.startswith("# HELP tidemark_telemetry_series_dropped_total ")
        status, kind, text = await get(url, "application/openmetrics-text;version=1.0.0")
        assert (status, kind) == (200, OPENMETRICS.content_type)
        assert text.endswith("# EOF\n")


async def test_a_head_request_gets_only_the_head() -> None:
    async with serving(Registry("reput")) as (_, url), aiohttp.ClientSession() as session:
        async with session.head(url) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
            assert answer.headers["Content-Type"] == TEXT.content_type
        async with session.get(url) as answer:  # on the same connection
            assert (await answer.text()).startswith("# HELP ")


async def test_a_scraper_of_the_old_protocol_is_answered_too() -> None:
    async with serving(Registry("reput")) as (_, url):
        host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 ")
        assert body.startswith(b"# HELP ")
        assert body.endswith(b"\n")
        writer.close()


async def test_others_have_their_turn_all_the_time() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(big_registry()) as (_, url):
        other = asyncio.create_task(count_turns())
        status, _, text = await get(url)
        other.cancel()
    assert status == 200
    assert text.count("\n") > len(FAMILIES) * ROWS
    # Four reads of the clock are a slice; there is one for each piece of 256 rows or 512 lines.
    assert turns >= ROWS / 256 / 4 + len(FAMILIES) * ROWS / 512 / 4


async def test_values_are_those_of_an_earlier_sample() -> None:
    registry, reads = Registry("broker"), 0
    registry.read_table((of_groups.GROUP_MEMBERS,), lambda: Table([("g",)], [[reads]]))

    async def look() -> None:
        nonlocal reads
        await asyncio.sleep(0)
        reads += 1

    async with serving(registry, before_scrape=look) as (_, url):
        for number in (1, 2):
            assert f'tidemark_group_members{{group="g"}} {number}\n' in (await get(url))[2]


async def test_scrapes_at_a_time_are_bounded_and_take_one_after_the_other() -> None:
    taking, most, go = 0, 0, asyncio.Event()

    async def look() -> None:
        nonlocal taking, most
        taking += 1
        most = max(most, taking)
        await go.wait()
        taking -= 1

    async with serving(Registry("reput"), before_scrape=look) as (endpoint, url):
        under_way = [asyncio.create_task(get(url)) for _ in range(SCRAPES_MAX)]
        await until(lambda: endpoint.scrapes == SCRAPES_MAX)
        status, _, text = await get(url)
        assert (status, text) == (503, f"{SCRAPES_MAX} scrapes are under way\n")
        go.set()
        assert [(await each)[0] for each in under_way] == [200] * SCRAPES_MAX
        assert most == 1
        assert endpoint.scrapes == 0
        assert (await get(url))[0] == 200


async def test_a_sample_that_takes_too_long_is_logged() -> None:
    async def look() -> None:
        await asyncio.Event().wait()

    async with serving(Registry("reput"), before_scrape=look, scrape_timeout_s=0.05) as (
        endpoint,
        url,
    ):
        status, _, text = await get(url)
        assert (status, text) == (503, "values were not taken in time\n")
        assert endpoint.scrapes == 0


async def _ask_without_reading(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_SIZE)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=one, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    return reader, writer


async def test_a_scraper_that_does_not_read_is_cut_off_and_others_are_served() -> None:
    """The test itself, not the server, waits forever on a connection that stays open because its
    answer was complete. 1. If taking the values alone takes longer than the time-out, the answer is
    a short 503: the time-out is doubled then. 2. If the kernel's buffers grow until they hold all
    of it, it was sent: their size is fixed.
    """
    timeout_s = 0.2
    registry = big_registry()
    while True:
        async with (
            serving(registry, scrape_timeout_s=timeout_s) as (endpoint, url),
            asyncio.timeout(60 + timeout_s),
        ):
            reader, writer = await _ask_without_reading(url)
            status = await reader.readline()
            if b" 503 " in status:
                writer.close()
                timeout_s *= 2
                continue
            assert b" 200 " in status
            await until(lambda: endpoint.scrapes == 0)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(200 << 20)  # more than there is
            writer.close()
            async with aiohttp.ClientSession() as session, session.head(url) as answer:
                assert answer.status == 200
            return


async def test_a_scraper_that_goes_away_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(big_registry()) as (endpoint, url):
        _, writer = await _ask_without_reading(url)
        await until(lambda: endpoint.scrapes == 1)
        writer.transport.abort()
        await until(lambda: endpoint.scrapes == 0)
        assert (await get(url))[0] == 200
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
