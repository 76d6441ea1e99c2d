"""Administrative calls for topics in a cluster; with one broker, they are its own (``admin``).

A call that changes something does so at every broker group concerned. It may be repeated after a
``PartialFailure``: what is done stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tidemark import errors
from tidemark.client.admin import Draining
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.cluster import Cluster
from tidemark.client.fan_out import all_topics, answered, asked_all, at_all, one_topic
from tidemark.client.groups import Lag
from tidemark.client.messages import Topic
from tidemark.client.routes import Routes


class Left(NamedTuple):
    """What a broker group still has for consumers."""

    draining: Draining
    groups: dict[str, Lag]
    """Lag of each consumer group that is known there."""
    delayed: int | None
    """Number of delayed messages that are not due yet; None: unknown."""

    @property
    def is_empty(self) -> bool | None:
        """Whether nothing is left; None if that is not known.

        Messages of topics without a consumer group do not count.
        """
        numbers = [*(each.messages for each in self.groups.values()), self.delayed]
        if any(numbers):
            return False
        return None if None in numbers else True


class Extended(NamedTuple):
    """Number of queues of a topic at one broker group, before and after an extension."""

    before: int
    after: int


class ClusterAdmin:
    """The administrative calls of a client."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention_ms: int | None = None,
        queue_type: str | None = None,
        broker_groups: Sequence[str] | None = None,
    ) -> Topic:
        """Create a topic, or give an existing one this many queues. The call may be repeated.

        queues: of each broker group; None leaves the number unchanged, and a new topic gets 4.
        retention_ms: older messages are not served; 0 serves all messages, None leaves the setting
        unchanged. queue_type: "simple", or "batch" to store the messages of a request as one
        record; None leaves it unchanged, and a new topic gets simple queues. broker_groups: in a
        cluster, where to create it; None: everywhere. Raises NotPermitted if the topic has queues
        of another type, PartialFailure.
        """
        found = await at_all(
            await self._cluster.groups(among=broker_groups, changes=True),
            lambda at: at.create_topic(
                topic, queues=queues, retention_ms=retention_ms, queue_type=queue_type
            ),
        )
        return one_topic(found)

    async def extend_topic(
        self, topic: str, queues: int, broker_groups: Sequence[str] | None = None
    ) -> dict[str, Extended]:
        """Give an existing topic more queues; return what changed, by broker group.

        The name of a broker group that is alone is empty. queues: of each broker group.
        broker_groups: only at these; None: at all that have the topic. The call may be repeated. A
        broker group with more queues keeps them and fails with BadRequest. Raises UnknownTopic,
        PartialFailure.
        """
        groups = await self._cluster.groups(
            topic if broker_groups is None else None, among=broker_groups, changes=True
        )
        absent = errors.UnknownTopic if broker_groups is None else None
        return await at_all(groups, lambda at: _extended(at, topic, queues), absent=absent)

    async def sync_topic(self, topic: str, broker_groups: Sequence[str] | None = None) -> Topic:
        """Make a topic equal at all broker groups that have it, as the first of them has it.

        broker_groups: create it there too, for example after ``create_topic`` has failed at one of
        them. Raises UnknownTopic, PartialFailure.
        """
        groups = await self._cluster.groups(topic, changes=True)
        model = (await groups[0].topic(topic)).settings
        names = {at.names.broker_group for at in groups if at.names.broker_group is not None}
        return await self.create_topic(
            topic,
            queues=model.get("write_queues"),
            retention_ms=model.get("retention_ms"),
            queue_type=model.get("queue_type"),
            broker_groups=sorted({*names, *(broker_groups or ())}) or None,
        )

    async def topics(self) -> list[Topic]:
        """Return all topics, sorted by name. Raises PartialFailure with those of the others."""
        found, failure = await asked_all(await self._cluster.groups(), lambda at: at.topics())
        return answered(all_topics(found), failure)

    async def topic(self, topic: str) -> Topic:
        """One topic with the offset range of every queue.

        Raises UnknownTopic, PartialFailure with the queues of the others.
        """
        groups = await self._cluster.groups(topic)
        found, failure = await asked_all(
            groups, lambda at: at.topic(topic), absent=errors.UnknownTopic
        )
        return answered(one_topic(found), failure)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic: its messages are no longer served. Raises UnknownTopic."""
        groups = await self._cluster.groups(topic, changes=True)
        await at_all(groups, lambda at: at.delete_topic(topic), absent=errors.UnknownTopic)

    async def retention(self) -> dict[str, Any]:
        """Disk usage, the next deletion and the time until the disk is full, as answered.

        In a cluster: by broker group. Raises PartialFailure with those of the others.
        """
        found, failure = await asked_all(await self._cluster.groups(), lambda at: at.retention())
        return answered(found.get("", {"broker_groups": found}), failure)

    async def drain(self, broker_group: str | None = None) -> Draining:
        """Close a broker group to producers, so that consumers empty it; durable.

        Producers use the others. Nacks, delayed deliveries and redrives to a consumer group go on.
        broker_group: needed in a cluster of several. Raises BadRequest, UnknownBrokerGroup.
        """
        return await (await self._one(broker_group)).drain()

    async def undrain(self, broker_group: str | None = None) -> Draining:
        """Open a broker group to producers again. Raises like ``drain``."""
        return await (await self._one(broker_group)).undrain()

    async def left(self, broker_group: str | None = None) -> Left:
        """Return what consumers have not read at a broker group. Raises like ``drain``.

        1. A delayed message is due after the lags are read; 2. it counts neither as lag nor as
        delayed. Therefore the delayed ones are counted before and after the lags.
        """
        at = await self._one(broker_group)
        before = (await at.delayed.list(max=1)).pending
        names = [each.name for each in await at.groups.list()]
        found: dict[str, Lag] = {}
        for name in names:
            try:
                found[name] = (await at.groups.get(name)).lag
            except errors.UnknownGroup:
                continue  # deleted after it was listed
        after = (await at.delayed.list(max=1)).pending
        delayed = None if before is None or after is None else max(before, after)
        return Left(await at.draining(), found, delayed)

    async def _one(self, broker_group: str | None) -> BrokerGroup:
        among = None if broker_group is None else [broker_group]
        groups = await self._cluster.groups(among=among, changes=True)
        if len(groups) > 1:
            names = ", ".join(str(each.names.broker_group) for each in groups)
            raise errors.BadRequest(
                f"the cluster has {len(groups)} broker groups: {names}. Nothing was changed.",
                "Name one.",
                field="broker_group",
            )
        return groups[0]

    async def routes(self, topic: str | None = None) -> Routes:
        """Return the broker groups of the cluster, or those that have a topic, with their nodes."""
        if topic is not None:
            await self._cluster.only()
        return await self._cluster.route(topic)


async def _extended(at: BrokerGroup, topic: str, queues: int) -> Extended:
    """Give a topic of one broker group this many queues. Raises UnknownTopic, BadRequest."""
    before = (await at.topic(topic)).queues
    if before > queues:
        raise errors.BadRequest(
            f"topic {topic} has {before} queues, and queues are never removed. Nothing was "
            "changed.",
            f"Ask for {before} or more.",
            field="queues",
        )
    return Extended(before, (await at.create_topic(topic, queues=queues)).queues)
