"""One term of a master: its state, topics, drain and consumer groups, with the broker's own code.

The state is replayed from the log, as at every start. Sends are appended to the model of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import msgpack
import msgspec

from services.broker.api.fetch_answers import raw_answer
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.consumer_groups import ConsumerGroups
from services.broker.groups.counters import GroupCounters
from services.broker.groups.offsets import Offsets
from services.broker.read.pull import Puller
from services.broker.read.topic_views import TopicViews
from services.broker.schema.groups import GroupConfig
from services.broker.schema.members import Fetch, Join, Joined
from services.broker.schema.offsets import Commit, Committed
from services.broker.schema.parsing import parsed
from services.broker.state.drain import Drain
from services.broker.state.topics import Topics
from shared.state import records
from shared.state.state import BrokerState
from tests.simulation.cluster.group_log import Entry, GroupLog, Sent
from tests.simulation.cluster.judge import Judge
from tests.simulation.cluster.loop import Host, Loop
from tests.simulation.cluster.network import Broken, Reply, Request
from tests.simulation.cluster.puller import ModelPuller
from tidemark.errors import AckTimeout, Fenced, UnknownCall, UnknownQueue
from tidemark.formats.record_layout import Buffer
from tidemark.offsets import PhysicalOffset

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

CONFIRM_S: Final = 0.004
"""Mean time until the slave has an entry on disk."""


def replayed(log: GroupLog) -> BrokerState:
    """Return the state at the end of the log."""
    state = BrokerState()
    for body in log.state_records():
        state.apply(records.decode(body))
    return state


class StateLog:
    """Appends state records to the model of the log, in one epoch."""

    def __init__(self, log: GroupLog, epoch: int, random: Random) -> None:
        self.log, self.epoch = log, epoch
        self._random = random

    def confirm_soon(self) -> int:
        """Have everything appended so far confirmed in a moment; return the end of the log."""
        end = len(self.log.entries)
        delay_s = CONFIRM_S * (0.5 + self._random.random()) * self.log.slowness
        asyncio.get_running_loop().call_later(delay_s, self.log.confirm, self.epoch, end)
        return end

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record; durable on return. Raises Fenced, Broken."""
        end = await self.append_soon(body)
        await self.durable(end)
        return end

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """Append one state record. Raises Fenced."""
        self.log.append_state(self.epoch, body)
        return PhysicalOffset(self.confirm_soon())

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        """Append records of offsets. Raises Fenced."""
        for body in bodies:
            self.log.append_state(self.epoch, body)
        return PhysicalOffset(self.confirm_soon())

    async def file_made(self) -> None:
        """Not called, because there is always room."""
        raise AssertionError("there is always room")

    async def durable(self, end: PhysicalOffset) -> None:
        """Wait until the log is confirmed up to there. Raises Broken if the term ends before."""
        try:
            await self.log.until_confirmed(self.epoch, int(end))
        except Fenced:
            raise Broken("the term has ended") from None


class Term:
    """What a master serves."""

    def __init__(
        self,
        broker_group: str,
        log: GroupLog,
        loop: Loop,
        judge: Judge,
        counters: GroupCounters,
        random: Random,
    ) -> None:
        self.broker_group, self.log, self._loop, self._judge = broker_group, log, loop, judge
        self._random = random
        self.epoch = log.epoch
        self.state = replayed(log)
        self.state_log = StateLog(log, log.epoch, random)
        self.puller = ModelPuller(log)
        log.on_confirmed = lambda end: self.puller.long_polls.dispatched_to(PhysicalOffset(end))
        topics = self._topics = Topics(
            self.state, self.state_log, self.puller, flushed=lambda: 0, on_change=self._changed
        )
        self.views = TopicViews(
            topics,
            cast(Any, None),
            cast(Any, None),
            lambda: PhysicalOffset(log.confirmed),
            clock=loop,
            auto_create=False,
            queues_default=4,
        )
        self._drain = Drain(
            self.state, self.state_log, loop, lambda: 0, lambda: self._changed(None)
        )
        self._offsets = Offsets(self.state, self.state_log, flushed=lambda: 0)
        configs = GroupConfigs(self.state, self.state_log, topics, self._offsets, flushed=lambda: 0)
        groups = ConsumerGroups.make(
            configs,
            self._offsets,
            topics,
            self.views,
            cast(Puller, self.puller),
            counters,
            loop,
            start_count=lambda: self.epoch,
            broker_group=broker_group,
        )
        self._coordinator, self._commits = groups
        self._stop = asyncio.Event()
        self._turn = random.randrange(1 << 16)

    def begin(self, host: Host) -> None:
        """Start the background parts, and tell the judge what is offered."""
        for part in (self._coordinator.run(self._stop), self._offsets.run(self._stop)):
            self._loop.start(part, host)
        self._changed(None)

    def end(self) -> None:
        """Answer what is held, because the term is over."""
        self._stop.set()
        self.puller.long_polls.close()

    @property
    def is_over(self) -> bool:
        """Whether another term has begun."""
        return self.epoch != self.log.epoch

    def check_reads(self) -> None:
        """Raise Fenced once the term is over."""
        if self.is_over:
            raise Fenced("the term of this master is over.", "Ask another node.")

    def _changed(self, topic: str | None) -> None:
        """Report a change of a topic; None: of all of them."""
        names = [topic] if topic is not None else [each.name for each in self._topics.list()]
        for name in names:
            route = self.views.route(name)
            if route is not None:
                queues = route.queues if route.writable else 0
                self._judge.offers(self.broker_group, name, queues)
        if topic is not None:
            self._coordinator.topic_changed(topic)
        self.views.changed(topic)

    # -- calls -----------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Reply:
        """Answer a call for the master. Raises TidemarkError, Broken."""
        body = msgpack.unpackb(request.body) if request.body else {}
        match request.method, request.parts:
            case "POST", ["topics", topic, "messages"]:
                return await self._send(topic, body)
            case "PUT", ["topics", topic]:
                await self._topics.create(topic, body["queues"])
                return _packed({"topic": topic, "queues": body["queues"]})
            case method, ["drain"]:
                return await self._set_drain(method)
            case "PUT", ["groups", group]:
                await self._coordinator.put(group, parsed(body, GroupConfig))
                return Reply(204)
            case "POST", ["groups", group, "members", member]:
                return await self._join(group, member, parsed(body, Join))
            case "DELETE", ["groups", group, "members", member]:
                self._coordinator.leave(group, member, request.query.get("incarnation"))
                return Reply(204)
            case "POST", ["groups", group, "members", member, "fetch"]:
                return await self._fetch(group, member, parsed(body, Fetch), request)
            case "POST", ["groups", group, "offsets"]:
                return await self._commit(group, parsed(body, Commit))
            case "GET", ["groups", group, "offsets"]:
                return _packed({"offsets": self._committed(group)})
        raise UnknownCall(f"there is no call {request.method} {request.path}")

    async def _send(self, topic: str, body: Mapping[str, Any]) -> Reply:
        config = self._topics.ready_for_sending(topic)
        assert config is not None, "sends create no topics"
        messages, count = body["messages"], config.queues
        self._turn += 1
        for message in messages:
            if (number := message.setdefault("queue", self._turn % count)) >= count:
                raise UnknownQueue(f"topic {topic} has no queue {number}.", queue=number)
        entries = [
            self._stored(topic, message, is_repeat=body.get("retry", False)) for message in messages
        ]
        await self._until_confirmed(self.state_log.confirm_soon(), body["timeout_ms"] / 1000)
        results = [_result(entry) for entry in entries]
        return _packed({"ack": {"level": "replicated", "copies": 2}, "results": results})

    def _stored(self, topic: str, message: Mapping[str, Any], *, is_repeat: bool) -> Entry:
        """Return the entry of a message; a repetition may find it in the log."""
        unique_id = message.get("unique_id")
        if is_repeat and unique_id is not None and (found := self.log.find(unique_id)) is not None:
            return found
        queue, sent = (
            (topic, message["queue"]),
            Sent(message["body"], unique_id, message.get("sharding_key")),
        )
        entry = self.log.append_message(self.epoch, queue, sent, self._loop.wall_ms())
        self._judge.stored(self.broker_group, sent.body)
        self.puller.long_polls.appended([queue], PhysicalOffset(len(self.log.entries)))
        return entry

    async def _until_confirmed(self, end: int, within_s: float) -> None:
        """Wait for the ack level. Raises AckTimeout, Broken: the outcome is unknown."""
        try:
            async with asyncio.timeout(within_s):
                await self.state_log.durable(PhysicalOffset(end))
        except TimeoutError:
            raise AckTimeout("stored, and too few nodes have it.") from None
        except Broken:
            if self._random.random() < 0.5:
                raise
            raise AckTimeout("stored, and the term has ended.") from None

    async def _set_drain(self, method: str) -> Reply:
        changed = None
        if method != "GET":
            is_drained = method == "PUT"
            if not is_drained:
                self._judge.undrains(self.broker_group)
            changed = await self._drain.set(is_drained=is_drained)
            if is_drained:
                self._judge.drained(self.broker_group)
        since_ms = self._drain.since_ms
        return _packed({"draining": since_ms is not None, "since_ms": since_ms, "changed": changed})

    async def _join(self, group: str, member: str, join: Join) -> Reply:
        joined = await self._coordinator.join(group, member, join)
        self._judge.joined(self.broker_group, group, member, joined)
        return _packed(
            Joined(
                joined.generation,
                [[*queue] for queue in joined.assignment],
                [[*queue] for queue in joined.kept],
                joined.session_ms,
                joined.config.order,
                joined.config.broadcast,
                joined.config.retry_max,
            )
        )

    async def _fetch(self, group: str, member: str, fetch: Fetch, request: Request) -> Reply:
        fetched = await self._coordinator.fetch(
            group, member, fetch, request.is_gone, self.check_reads
        )
        writer = _Writer()
        payload = cast(Any, raw_answer(fetched).body)
        await payload.write(cast("AbstractStreamWriter", writer))
        return Reply(200, writer.body)

    async def _commit(self, group: str, commit: Commit) -> Reply:
        level = await self._commits.commit(group, commit)
        self._judge.committed(self.broker_group, group, commit)
        return _packed(Committed(level))

    def _committed(self, group: str) -> list[dict[str, object]]:
        return [
            {"topic": topic, "queue": queue, "offset": offset}
            for (topic, queue), offset in sorted(self._commits.committed(group).items())
        ]


class _Writer:
    """Takes the body of an answer."""

    body = b""

    async def write(self, data: Buffer) -> None:
        """Take the whole body."""
        self.body = bytes(data)


def _packed(value: object) -> Reply:
    return Reply(200, msgspec.msgpack.encode(value))


def _result(entry: Entry) -> dict[str, object]:
    assert entry.queue is not None
    return {
        "message_id": "",
        "queue": entry.queue[1],
        "queue_offset": entry.queue_offset,
        "physical_offset": 0,
        "store_timestamp_ms": 0,
    }
