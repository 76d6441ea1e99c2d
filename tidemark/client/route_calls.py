"""Asks name services or brokers for routes, one address after the other.

The given addresses are asked first; the answers name the name services (``routes.next_sources``).
An answer of another cluster is ignored. ``cluster`` decides when to ask.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from yarl import URL

from tidemark import errors
from tidemark.client.connection import ConnectionSettings
from tidemark.client.paths import path, query_of
from tidemark.client.retries import Failure
from tidemark.client.routes import NO_TOPIC, Routes, next_sources, read_routes
from tidemark.client.transport import Failed, Transport, not_sent

ROUTE_TIMEOUT_S: Final = 2.0
"""An address that takes longer is skipped: another one may answer."""
FOLLOW_WAIT_MS: Final = 30_000
"""How long a name service holds a call until a route changes."""
FALLBACK_WAIT_MS: Final = 3000
"""The same for a given address while no named one answers, so that these are tried again soon."""

log = logging.getLogger(__name__)


class NoRoutes(Exception):
    """The address answers 404 and has no routes: a broker of an earlier version."""


class RouteCalls:
    """The calls for routes of one client."""

    def __init__(self, urls: Sequence[str], settings: ConnectionSettings) -> None:
        """urls: given addresses, at least one."""
        self._given = self._sources = tuple(urls)
        self._is_first = True
        self._cluster: str | None = None
        """Name of the cluster, from the first answer."""
        self._ours: set[str] = set()
        """Addresses that have answered for this cluster, whose unknown topics do not exist."""
        self._partial: set[str] = set()
        """Those of them whose last answer was not complete: a broker with name services knows its
        own broker group alone."""
        self._transport = Transport(
            settings.connections_max, settings.trace, headers=settings.headers, ssl=settings.ssl
        )

    def open(self) -> None:
        """Create the pools in the loop that uses them."""
        self._transport.open()

    async def close(self) -> None:
        """Close the pools."""
        await self._transport.close()

    async def ask(self, topic: str | None, after: str | None = None) -> Routes:
        """Return the route of a topic, or with None of the whole cluster, from the first address
        that answers.

        after: a version; the call is held until the route has another one. Returns NO_TOPIC if no
        broker group has the topic. Raises NoRoutes, or the error of the last address.
        """
        failure: errors.TidemarkError = errors.Unreachable("no address to ask for routes")
        sources = self._sources
        is_unknown = False
        # The named addresses may not be reachable from here. A given broker at least knows its own
        # broker group; as the last one it does not replace a route of more (``routes.merged``).
        others = [url for url in self._given if url not in sources]
        for source in (*sources, *others):
            if is_unknown and source in others:
                break
            try:
                wait_ms = FALLBACK_WAIT_MS if source in others else FOLLOW_WAIT_MS
                routes = await self._once(source, topic, after, wait_ms)
            except Failed as failed:
                is_absent = failed.failure is Failure.REFUSED and _status(failed.error) == 404
                if is_absent and topic is None:
                    raise NoRoutes from failed
                if is_absent and source in self._partial and source in others:
                    # 1. The name services restart and do not answer for a topic yet; 2. a new
                    # client asks a broker of another broker group; 3. without this step, the
                    # client would say that the topic does not exist.
                    continue
                failure = failed.error
                if is_absent:
                    # Another name service may know more. The given broker of another broker group
                    # does not know that a topic is gone.
                    is_unknown |= source in self._ours and (after is None or source in sources)
                elif failed.failure is Failure.LOST:
                    failure = not_sent(URL(source), "it gave no answer to a call for routes")
                continue
            except errors.BrokenAnswer as error:
                failure = error
                continue
            if self._cluster not in (None, routes.cluster):
                failure = errors.WrongCluster(
                    f"{source} answers for cluster {routes.cluster!r}, the addresses before it for "
                    f"{self._cluster!r}. Its routes are not used.",
                    "Correct the address, or `[cluster] name` of that node.",
                    url=source,
                    cluster=routes.cluster,
                    expected=self._cluster,
                )
                log.warning("%s", failure, extra={"event": "wrong-cluster", "url": source})
                self._ours.discard(source)
                continue
            self._cluster = routes.cluster
            self._ours.add(source)
            (self._partial.discard if routes.complete else self._partial.add)(source)
            if source in sources:
                self._sources = next_sources(sources, source, routes.names, is_first=self._is_first)
            self._is_first = False
            return routes
        if is_unknown:
            return NO_TOPIC
        raise failure

    async def _once(
        self, source: str, topic: str | None, after: str | None, held_ms: int
    ) -> Routes:
        """Ask one address. held_ms: how long it may hold the call if ``after`` is given."""
        wait_ms = None if after is None else held_ms
        where = path("route") if topic is None else path("route", topic)
        answer = await self._transport.once(
            "GET",
            URL(source + where + query_of({"after": after, "wait_ms": wait_ms}), encoded=True),
            None,
            timeout_s=ROUTE_TIMEOUT_S + (wait_ms or 0) / 1000,
            connect_timeout_s=ROUTE_TIMEOUT_S,
            is_held=after is not None,
        )
        return read_routes(answer.map())


def _status(error: errors.TidemarkError) -> int:
    return int(error.facts.get("http_status", error.status))
