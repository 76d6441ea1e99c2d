"""``GET /metrics``: values taken, written and sent in slices, so that nobody else waits for them.

The loop has its turn at least every few milliseconds, however many series there are. One scrape
takes values at a time and a few send theirs; further ones are told to come back. A scraper that
does not read, or has gone, holds its values until ``scrape_timeout_s`` and nothing longer.
Before: ``registry`` and ``exposition``. After: Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web

from shared.metrics.accept import choose
from shared.metrics.exposition import pieces
from shared.metrics.instruments import Taken
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.give_way import GiveWay, never
from shared.runtime.turns import Turns
from tidemark.clock import Clock

SCRAPES_MAX: Final = 4
"""Scrapes at a time, those that wait included."""
SCRAPE_TIMEOUT_S: Final = 10.0
"""Prometheus waits no longer either, unless it is told to."""


class MetricsEndpoint:
    """Answers scrapes of one registry."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        before_scrape: Callable[[], Awaitable[None]] | None = None,
        is_awaited: Callable[[], bool] = never,
        scrape_timeout_s: float = SCRAPE_TIMEOUT_S,
    ) -> None:
        """before_scrape: awaited before values are taken, to look up those that cost something.
        is_awaited: whether a request is in hand that a scrape gives way to.
        """
        self._registry, self._clock = registry, clock
        self._before_scrape = before_scrape
        self._is_awaited = is_awaited
        self._timeout_s = scrape_timeout_s
        self._taking = asyncio.Lock()
        self.scrapes = 0
        """Under way, those that wait included."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one scrape; to HEAD with the head alone."""
        if request.method == hdrs.METH_HEAD:
            form = choose(request.headers.get(hdrs.ACCEPT))
            return web.Response(headers={hdrs.CONTENT_TYPE: form.value})
        if self.scrapes >= SCRAPES_MAX:
            return _later(f"{self.scrapes} scrapes are under way")
        response = web.StreamResponse()
        self.scrapes += 1
        try:
            with collector.waits():
                async with asyncio.timeout(self._timeout_s):
                    await self._send(request, response)
        except TimeoutError:
            if not response.prepared:
                return _later("values were not taken in time")
            if request.transport is not None:
                request.transport.abort()  # it does not read: it must not keep the values
        except ConnectionError:
            return response  # it has gone; the server finds that as well
        finally:
            self.scrapes -= 1
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        form = choose(request.headers.get(hdrs.ACCEPT))
        turns = Turns(self._clock, GiveWay(self._is_awaited))
        taken = await self.take(turns)
        response.headers[hdrs.CONTENT_TYPE] = form.value
        await response.prepare(request)
        text: list[str] = []
        for piece in pieces(taken, form):
            text.append(piece)
            if turns.over:
                # Waits while the scraper is behind by more than the connection's buffer.
                await response.write("".join(text).encode())
                text.clear()
                await turns.pass_on()
        await response.write_eof("".join(text).encode())

    async def take(self, turns: Turns) -> list[Taken]:
        """Look up and take all values; scrapes take one after the other."""
        async with self._taking:
            if self._before_scrape is not None:
                await self._before_scrape()
                await turns.pass_on()
            taken: list[Taken] | None = None
            for taken in self._registry.take(self._clock.monotonic()):  # noqa: B007 - the last
                if turns.over:
                    await turns.pass_on()
            assert taken is not None, "the last step tells all"
            return taken


def _later(why: str) -> web.Response:
    return web.Response(status=503, text=why + "\n", headers={hdrs.RETRY_AFTER: "1"})
