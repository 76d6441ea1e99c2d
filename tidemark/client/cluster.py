"""The broker groups that a client talks to, and the last known routes.

The first call asks the given addresses for the routes (``route_calls``). A broker without name
service, or one that knows no routes, is *alone*: then nothing else is asked, ever. In a cluster,
the routes of the whole and of every topic in use are followed by long polls in the background. If
no address answers, the client goes on with the last known ones.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from yarl import URL

from tidemark import errors
from tidemark.client.batching import Limits
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.checks import NOTHING_SENT
from tidemark.client.connection import (
    Connection,
    ConnectionSettings,
    OnConnected,
    OnDisconnected,
)
from tidemark.client.pulse import Pulse
from tidemark.client.queue_choice import Outages
from tidemark.client.queue_names import NUMBERS, QueueNames
from tidemark.client.retries import delay_s, is_transient
from tidemark.client.route_calls import FOLLOW_WAIT_MS, NoRoutes, RouteCalls
from tidemark.client.routes import NO_TOPIC, GroupRoute, Routes, merged, unheard
from tidemark.client.transport import not_sent

TOPICS_MAX: Final = 256
"""Maximum number of topics whose routes are followed; each is one held call."""
POLL_MIN_S: Final = 1.0
"""Minimum time between two calls for a route that did not change."""

log = logging.getLogger(__name__)


class _Followed:
    """A route that is kept up to date."""

    def __init__(self, routes: Routes, task: asyncio.Task[None]) -> None:
        self.routes, self.task = routes, task


class Cluster:
    """The broker groups of one client."""

    def __init__(
        self,
        urls: Sequence[str],
        settings: ConnectionSettings,
        limits: Limits,
        *,
        on_connected: OnConnected | None = None,
        on_disconnected: OnDisconnected | None = None,
    ) -> None:
        """urls: addresses of name services or brokers. Raises ValueError, TypeError."""
        self._settings, self._limits = settings, limits
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self.home = self._made(urls, NUMBERS)
        """The broker group at the given addresses, if they are those of brokers."""
        self.alone: BrokerGroup | None = None
        """``home``, once it is known that there are no others."""
        self.outages = Outages()
        self.changed = Pulse()
        """Rings when a route has changed."""
        self._calls = RouteCalls(self.home.connection.urls, settings)
        self._groups: dict[str, BrokerGroup] = {}
        self._followed: dict[str | None, _Followed] = {}
        """By topic, the least recently used first; None: the route of the whole cluster."""
        self._asking: dict[str | None, asyncio.Task[Routes]] = {}
        """First calls for a route in progress."""

    def open(self) -> None:
        """Create the pools in the loop that uses them."""
        self.home.connection.open()
        self._calls.open()

    async def drain(self) -> None:
        """Wait until all accepted messages are answered; later ones do not linger."""
        for each in self._all:
            await each.producer.close()

    async def close(self) -> None:
        """End the background tasks, close all connections."""
        tasks = [*self._asking.values(), *(each.task for each in self._followed.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._all:
            await each.connection.__aexit__()
        await self._calls.close()

    @property
    def _all(self) -> list[BrokerGroup]:
        return [self.home, *self._groups.values()]

    @property
    def unanswered_size(self) -> int:
        """Bytes of accepted messages that are neither answered nor dropped."""
        return sum(each.producer.unanswered_size for each in self._all)

    async def only(self, timeout_ms: int | None = None) -> BrokerGroup | None:
        """Return the broker group that is alone; None in a cluster.

        Raises Unreachable if no given address answers in time; None: the client's timeout.
        """
        if self.alone is None and None not in self._followed:
            home = self.home.connection
            within_s = home.request_timeout_s if timeout_ms is None else timeout_ms / 1000
            try:
                async with asyncio.timeout(within_s):
                    await self.route(None)
            except TimeoutError:
                raise not_sent(URL(home.url), f"no answer came within {within_s:g} s") from None
        return self.alone

    def known(self, topic: str | None) -> Routes | None:
        """Return the last known route of a topic or of the whole cluster; None if it is not
        followed."""
        followed = self._followed.pop(topic, None)
        if followed is None:
            return None
        self._followed[topic] = followed  # now the most recently used
        return followed.routes

    async def route(self, topic: str | None) -> Routes:
        """Return the last known route of a topic, or with None of the whole cluster.

        It is NO_TOPIC if no broker group has the topic, and without groups if the broker is alone.
        """
        known = self.known(topic)
        if known is not None:
            return known
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
            asking.add_done_callback(self._asked)
        return await asyncio.shield(asking)

    def _asked(self, task: asyncio.Task[Routes]) -> None:
        self._asking = {topic: each for topic, each in self._asking.items() if each is not task}
        if not task.cancelled():
            task.exception()  # callers have it; those that were cancelled do not want it

    async def _ask(self, topic: str | None) -> Routes:
        """Ask for a route for the first time; repeat it while no address answers."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._settings.retry_for_s
        attempt = 0
        while True:
            try:
                routes = await self._calls.ask(topic)
                break
            except NoRoutes:
                self.alone = self.home
                return NO_TOPIC
            except errors.TidemarkError as error:
                attempt += 1
                pause_s = delay_s(attempt, jitter=random.random())
                may_repeat = is_transient(error) or isinstance(error, errors.BrokenAnswer)
                if not may_repeat or loop.time() + pause_s > give_up_at:
                    raise
                await asyncio.sleep(pause_s)
        if topic is None:
            if routes.is_alone:
                self.alone = self.home
                return routes
            if routes.names:
                # A broker has answered for its own broker group: ask the name services that it has
                # named. If none of them answers, its own broker group is what is known.
                routes = await self._of_names(routes)
        if routes is not NO_TOPIC and self.alone is None:
            self._follow(topic, routes)
        return routes

    async def _of_names(self, routes: Routes) -> Routes:
        try:
            return await self._calls.ask(None)
        except (NoRoutes, errors.TidemarkError) as error:
            log.warning(
                "no name service answers: only broker group %s is known",
                ", ".join(each.broker_group for each in routes.groups),
                extra={"event": "names-unreachable", "reason": str(error)},
            )
            return routes

    def _follow(self, topic: str | None, routes: Routes) -> None:
        topics = [each for each in self._followed if each is not None]
        for dropped in topics[: max(0, len(topics) - TOPICS_MAX + 1)]:
            self._followed.pop(dropped).task.cancel()
        task = asyncio.create_task(self._run(topic), name=f"tidemark-route-{topic or ''}")
        self._followed[topic] = _Followed(routes, task)
        self._learn(routes)

    async def _run(self, topic: str | None) -> None:
        """Follow a route until the topic is gone."""
        loop, failed = asyncio.get_running_loop(), 0
        while True:
            await asyncio.sleep(0)
            followed = self._followed[topic]
            before, asked_at = followed.routes, loop.time()
            try:
                after = await self._calls.ask(topic, before.version)
            except (NoRoutes, errors.TidemarkError) as error:
                failed += 1
                if failed == 2:  # the first failure may be a restart
                    log.warning(
                        "no address answers with routes; the last known ones are used: %s",
                        error,
                        extra={"event": "routes-unanswered", "reason": str(error)},
                    )
                await asyncio.sleep(delay_s(failed, jitter=random.random()))
                continue
            failed = 0
            if after is NO_TOPIC:
                del self._followed[topic]  # the next call asks again
            else:
                followed.routes = merged(before, after)
                self._learn(followed.routes)
            if after.version != before.version:
                self.changed.ring()
            elif loop.time() - asked_at < FOLLOW_WAIT_MS / 2000:
                await asyncio.sleep(POLL_MIN_S)
            if after is NO_TOPIC:
                return

    def _learn(self, routes: Routes) -> None:
        """Use what a route says about the nodes of broker groups and about their masters."""
        now_s = asyncio.get_running_loop().time()
        for route in routes.groups:
            if (known := self._groups.get(route.broker_group)) is not None:
                known.connection.learn_nodes(route.urls, route.master_url, route.epoch)
            if route.master is None:
                self.outages.failed(route.broker_group, now_s)

    def used(self, broker_group: str) -> BrokerGroup | None:
        """Return the calls to a broker group; None if there was none yet."""
        return self._groups.get(broker_group)

    def group(self, route: GroupRoute) -> BrokerGroup:
        """Return the calls to a broker group."""
        found = self._groups.get(route.broker_group)
        if found is None:
            if not route.urls:
                raise errors.BrokerGroupDown(route.broker_group, "no node of it is known")
            found = self._made(route.urls, QueueNames(route.broker_group))
            found.connection.open()
            self._groups[route.broker_group] = found
        return found

    def _made(self, urls: Sequence[str], names: QueueNames) -> BrokerGroup:
        connection = Connection(
            urls,
            self._settings,
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
        )
        return BrokerGroup(connection, self._limits, names)

    async def groups(
        self,
        topic: str | None = None,
        *,
        among: Sequence[str] | None = None,
        changes: bool = False,
    ) -> list[BrokerGroup]:
        """Return all broker groups, or those that have a topic, sorted by name.

        among: only these. changes: whether the call changes something at all of them, for which
        all have to be known. Raises UnknownTopic, UnknownBrokerGroup, RouteIncomplete.
        """
        alone = await self.only()
        if alone is not None:
            if among:
                raise errors.UnknownBrokerGroup(among[0], ())
            return [alone]
        routes = await self.route(topic)
        everything = routes if topic is None else await self.route(None)
        if not everything.groups or (
            changes and among is None and not (routes.complete and everything.complete)
        ):
            raise unheard(everything, NOTHING_SENT)
        if topic is not None and not routes.groups:
            raise errors.UnknownTopic(
                f"no broker group has topic {topic}.",
                "Check the name, or create it with `tidemark topic create`.",
                topic=topic,
            )
        for name in among or ():
            if routes.group(name) is None and not routes.complete:
                raise unheard(routes, NOTHING_SENT)
            if routes.group(name) is None:
                known = [each.broker_group for each in routes.groups]
                raise errors.UnknownBrokerGroup(name, known)
        return [
            self.group(each)
            for each in routes.groups
            if among is None or each.broker_group in among
        ]
