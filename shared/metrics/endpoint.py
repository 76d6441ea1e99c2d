"""``GET /metrics``: values are taken, formatted and sent in slices; other requests run in between.

Other tasks of the loop run at least every few milliseconds, however many series there are. One
scrape at a time takes values, and a few send theirs; further scrapes are answered 503. A scraper
that does not read, or has disconnected, holds its values until ``scrape_timeout_s`` at most.
Step before: ``registry`` and ``exposition``. Step after: Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web

from shared.metrics.exposition import Format, Taken, choose, pieces
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.pauses import Pauses, never
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock

SCRAPES_MAX: Final = 4
"""Concurrent scrapes, including those that wait."""
SCRAPE_TIMEOUT_S: Final = 10.0
"""Prometheus' default time-out is the same."""


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
        """before_scrape: awaited before values are taken, to sample the expensive ones.
        is_awaited: returns whether a request is running to which a scrape must give way.
        """
        self._registry, self._clock = registry, clock
        self._before_scrape = before_scrape
        self._is_awaited = is_awaited
        self._timeout_s = scrape_timeout_s
        self._taking = asyncio.Lock()
        self.scrapes = 0
        """Scrapes in progress, including those that wait."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one scrape; a HEAD request gets the headers only."""
        form = choose(request.headers.get(hdrs.ACCEPT))
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers={hdrs.CONTENT_TYPE: form.content_type})
        if self.scrapes >= SCRAPES_MAX:
            return _later(f"{self.scrapes} scrapes are under way")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: form.content_type})
        self.scrapes += 1
        try:
            with collector.waits():
                async with asyncio.timeout(self._timeout_s):
                    await self._send(request, response, form)
        except TimeoutError:
            if not response.prepared:
                return _later("values were not taken in time")
            if request.transport is not None:
                request.transport.abort()  # a scraper that does not read must not keep the values
        except ConnectionError:
            return response  # it has disconnected; the server notices that as well
        finally:
            self.scrapes -= 1
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, form: Format) -> None:
        slicer = TimeSlicer(self._clock, Pauses(self._is_awaited))
        found = pieces(await self.take(slicer), form)
        await response.prepare(request)
        text: list[bytes] = []
        for piece in found:
            text.append(piece)
            if slicer.over:
                # Waits while the scraper lags by more than the connection's buffer.
                await response.write(b"".join(text))
                text.clear()
                await slicer.pass_on()
        await response.write_eof(b"".join(text))

    async def take(self, slicer: TimeSlicer) -> list[Taken]:
        """Sample and take all values; scrapes do this one after the other."""
        async with self._taking:
            if self._before_scrape is not None:
                await self._before_scrape()
                await slicer.pass_on()
            taken: list[Taken] = []
            for each in self._registry.take(self._clock.monotonic()):
                if each is not None:
                    taken.append(each)
                elif slicer.over:
                    await slicer.pass_on()
            return taken


def _later(why: str) -> web.Response:
    return web.Response(status=503, text=why + "\n", headers={hdrs.RETRY_AFTER: "1"})
