"""A member of a group at every broker group that has its topics: joins them, takes turns, leaves.

``consumer_engine`` is the member of one broker group. Every broker group assigns its own queues.
With one broker there is one engine, and nothing else happens here. In a cluster, the routes are
watched: a broker group that gets one of the topics is joined, and one that is gone is left.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from tidemark import errors
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.changes import Callback
from tidemark.client.cluster import Cluster
from tidemark.client.consumer_engine import ConsumerEngine, MemberSettings
from tidemark.client.group_calls import GroupCalls
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.pulse import Pulse
from tidemark.client.queue_names import Queue
from tidemark.client.retries import is_transient
from tidemark.client.routes import GroupRoute
from tidemark.formats.message import Message

CHECK_MS: Final = 2000.0
"""Interval at which broker groups are checked whose join has failed or which may be gone."""
JOIN_GRACE_S: Final = 1.0
"""How long the start waits for the other broker groups once the first is joined."""

log = logging.getLogger(__name__)


class Step(Enum):
    """What a member does next at one broker group."""

    JOIN = "join"
    LEAVE = "leave"
    NONE = "none"


def next_step(*, is_listed: bool, has_topic: bool, is_member: bool, is_served: bool) -> Step:
    """Decide about one broker group.

    is_listed: whether the route of the cluster has it. has_topic: whether a topic can be read
    there. is_served: whether its broker has answered the member within the session. A broker group
    that is not listed may only have lost the name services: as long as it serves the member, its
    messages are read.
    """
    if has_topic:
        return Step.NONE if is_member else Step.JOIN
    if is_member and (is_listed or not is_served):
        return Step.LEAVE
    return Step.NONE


class ClusterConsumer:
    """The engines of one subscription."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        member: str,
        topics: Mapping[str, str],
        settings: MemberSettings,
        *,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        clock: Callable[[], float],
    ) -> None:
        """topics: maps a topic to its tag expression. clock: milliseconds since boot."""
        self.group, self.member, self.clock = group, member, clock
        self.pulse = Pulse()
        """Rings when the state of any engine has changed."""
        self.is_interrupted = False
        """Whether no more messages are delivered: stopped, left, or failed."""
        self._cluster, self._topics, self._settings = cluster, topics, settings
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._callback_lock = asyncio.Lock()
        self._engines: dict[str, ConsumerEngine] = {}
        """By broker group, in the order in which they take turns."""
        self._joining: dict[str, tuple[ConsumerEngine, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._supervising: asyncio.Task[None] | None = None

    @property
    def engines(self) -> list[ConsumerEngine]:
        """The engines that have joined."""
        return list(self._engines.values())

    @property
    def given_timeout_s(self) -> float | None:
        """Time limit that the program has given for calls that would otherwise wait forever."""
        return self._cluster.home.connection.given_timeout_s

    @property
    def url(self) -> str:
        """Address of the broker; in a cluster, the given one."""
        return self._cluster.home.connection.url

    async def start(self) -> None:
        """Join the group at every broker group that has a topic. Raises errors."""
        alone = await self._cluster.only()
        if alone is not None:
            engine = self._engine(alone, self._settings)
            self._engines[""] = engine
            await engine.start()
            return
        try:
            await self._start_all(await self._readable())
        except BaseException:
            self.begin_leaving()
            await self.leave()
            raise
        self._supervising = asyncio.create_task(self._supervise(), name="tidemark-broker-groups")
        self._supervising.add_done_callback(self._supervised)

    async def _start_all(self, routes: Mapping[str, GroupRoute]) -> None:
        for route in routes.values():
            self._join(route, len(routes))
        starts = [task for _, task in self._joining.values()]
        pending: set[asyncio.Task[None]] = set(starts)
        while pending:
            within_s = JOIN_GRACE_S if self._engines else None
            done, pending = await asyncio.wait(
                pending, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is not None and not (
                    isinstance(error, errors.TidemarkError) and is_transient(error)
                ):
                    raise error
            if not done:
                return  # the others are joined as soon as they answer
        if not self._engines:
            starts[0].result()

    async def _readable(self) -> dict[str, GroupRoute]:
        """Return the broker groups that have a topic to read. Raises UnknownTopic if none has."""
        found: dict[str, GroupRoute] = {}
        for topic in self._topics:
            for route in (await self._cluster.route(topic)).groups:
                if route.readable and route.nodes:
                    found[route.broker_group] = route
        if not found:
            raise errors.UnknownTopic(
                f"no broker group has topic {' or '.join(self._topics)}.",
                "Check the name, or create it with `tidemark topic create`.",
                topic=next(iter(self._topics)),
            )
        return found

    def _engine(self, at: BrokerGroup, settings: MemberSettings) -> ConsumerEngine:
        calls = GroupCalls(at.connection, self.group, self.member, at.names)
        on_assigned, on_revoked = self._on_assigned, self._on_revoked
        if at.names.broker_group is not None:
            on_assigned = self._one_at_a_time(on_assigned)
            on_revoked = self._one_at_a_time(on_revoked)
        return ConsumerEngine(
            calls,
            self._topics,
            settings,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            clock=self.clock,
            pulse=self.pulse,
            on_failed=self._engine_failed,
        )

    def _one_at_a_time(self, callback: Callback | None) -> Callback | None:
        """Let the callbacks of different engines run one after another."""
        if callback is None:
            return None

        async def called(queues: list[Queue]) -> None:
            async with self._callback_lock:
                await callback(queues)

        return called

    def _join(self, route: GroupRoute, count: int) -> None:
        """Start to join a broker group. count: how many share the messages in flight."""
        in_flight_max = max(1, self._settings.max_in_flight // count)
        settings = self._settings._replace(max_in_flight=in_flight_max)
        engine = self._engine(self._cluster.group(route), settings)
        task = asyncio.create_task(engine.start(), name=f"tidemark-join-{route.broker_group}")
        self._joining[route.broker_group] = engine, task
        task.add_done_callback(functools.partial(self._joined, route.broker_group, engine))

    def _joined(self, name: str, engine: ConsumerEngine, task: asyncio.Task[None]) -> None:
        self._joining.pop(name, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._engines[name] = engine
            self.pulse.ring()
            return
        log.warning(
            "member %r of group %r has not joined at broker group %s: %s",
            self.member,
            self.group,
            name,
            error,
            extra={"event": "join-failed", "broker_group": name, "reason": str(error)},
        )

    async def _supervise(self) -> None:
        """Join and leave broker groups as the routes change."""
        while True:
            await self._cluster.changed.wait(CHECK_MS)
            try:
                readable = await self._readable()
            except errors.UnknownTopic:
                readable = {}
            except errors.TidemarkError:
                continue  # the last known routes do not have the topics: ask again
            listed = {each.broker_group for each in (await self._cluster.route(None)).groups}
            for name in sorted(readable.keys() | self._engines.keys()):
                engine = self._engines.get(name)
                step = next_step(
                    is_listed=name in listed,
                    has_topic=name in readable,
                    is_member=engine is not None or name in self._joining,
                    is_served=engine is not None and engine.member.may_deliver,
                )
                if step is Step.JOIN:
                    self._join(readable[name], len(readable))
                elif step is Step.LEAVE:
                    self._drop(name)

    def _supervised(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.fail(failure)

    def _drop(self, name: str) -> None:
        """Leave a broker group in the background."""
        engine = self._engines.pop(name)
        leaving = asyncio.create_task(self._leave_one(name, engine))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave_one(self, name: str, engine: ConsumerEngine) -> None:
        log.info(
            "member %r of group %r leaves broker group %s, which has none of its topics",
            self.member,
            self.group,
            name,
            extra={"event": "broker-group-left", "broker_group": name},
        )
        try:
            await engine.leave()
        except errors.TidemarkError as error:
            log.warning(
                "broker group %s: the last commits may be missing: %s",
                name,
                error,
                extra={"event": "commits-missing", "broker_group": name, "reason": str(error)},
            )

    def _engine_failed(self, engine: ConsumerEngine, failure: BaseException) -> None:
        """Leave the broker group if only its topics are gone; otherwise stop all engines."""
        name = next((name for name, each in self._engines.items() if each is engine), None)
        if name is not None and len(self._engines) > 1 and isinstance(failure, errors.UnknownTopic):
            self._drop(name)
        else:
            self.stop()

    def begin_leaving(self) -> None:
        """Start the time limit that applies to all calls of leaving together."""
        for engine in self._engines.values():
            engine.begin_leaving()

    async def leave(self) -> None:
        """Leave every broker group (see ``ConsumerEngine.leave``). Raises the first error."""
        self.is_interrupted = True
        joining = [task for _, task in self._joining.values()]
        tasks = [*joining, *([] if self._supervising is None else [self._supervising])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = await asyncio.gather(
            *(engine.leave() for engine in self._engines.values()),
            *self._leaving,
            return_exceptions=True,
        )
        for outcome in left:
            if isinstance(outcome, BaseException):
                raise outcome

    def stop(self) -> None:
        """Deliver no more messages; calls that wait for messages return without any."""
        self.is_interrupted = True
        for engine in self._engines.values():
            engine.stop()
        self.pulse.ring()

    def fail(self, failure: BaseException) -> None:
        """Make current and later calls that wait for messages raise this error."""
        for engine in self._engines.values():
            engine.fail(failure)
        self.stop()

    def raise_failure(self) -> None:
        """Raise the error of an engine that failed, if one did."""
        for engine in self._engines.values():
            engine.raise_failure()

    def take(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Take up to ``count`` fetched messages of one queue; None if there are none.

        The engines take turns, so that none waits for another one's messages to run out.
        """
        if self.is_interrupted:
            return None
        for name, engine in self._engines.items():
            taken = engine.take(count)
            if taken is not None:
                if len(self._engines) > 1:
                    self._engines[name] = self._engines.pop(name)
                return taken
        return None

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return the queue if it is held. A number is enough for a topic of one broker group."""
        topic, name = queue
        found = [
            held
            for engine in self._engines.values()
            if (held := engine.member.holdings.get((topic, engine.queue_name(name)))) is not None
        ]
        return found[0] if len(found) == 1 else None

    def held_queues(self, *holds: Hold) -> list[HeldQueue]:
        """Return the queues in one of these states; without states, all."""
        return [
            held
            for engine in self._engines.values()
            for held in engine.member.holdings
            if not holds or held.hold in holds
        ]

    def redeliver_given_up(self) -> None:
        """Deliver given-up messages again; see ``ConsumerEngine.redeliver_given_up``."""
        for engine in self._engines.values():
            engine.redeliver_given_up()

    async def commit(self, ack: str) -> None:
        """Commit what is done. Raises the error of a failed part."""
        await asyncio.gather(*(engine.commit(ack) for engine in self._engines.values()))
