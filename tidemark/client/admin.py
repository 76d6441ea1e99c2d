"""Administrative calls for topics and retention: create, list, show and delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.lists import listed
from tidemark.client.messages import QueueRange, Topic
from tidemark.client.paths import path
from tidemark.client.queue_names import NUMBERS, QueueNames


class Draining(NamedTuple):
    """Whether a broker group is closed to producers, so that consumers empty it."""

    draining: bool
    since_ms: int | None
    """Wall clock time of the command; None: producers may send."""
    changed: bool | None = None
    """Whether the call changed that; None: it only asked."""


class Admin:
    """The administrative calls to one broker group."""

    def __init__(self, connection: Connection, names: QueueNames = NUMBERS) -> None:
        self.connection, self.names = connection, names

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention_ms: int | None = None,
        queue_type: str | None = None,
    ) -> Topic:
        """Create a topic, or give an existing one this many queues. The call may be repeated.

        queues: None leaves the number unchanged; a new topic gets 4. retention_ms: older messages
        are not served; 0 serves all messages, None leaves the setting unchanged. queue_type:
        "simple", or "batch" to store the messages of a request as one record; None leaves it
        unchanged, and a new topic gets simple queues. Raises NotPermitted if the topic has queues
        of another type.
        """
        body: dict[str, object] = {}
        if queues is not None:
            body["queues"] = queues
        if retention_ms is not None:
            body["retention_ms"] = retention_ms
        if queue_type is not None:
            body["queue_type"] = queue_type
        answer = await self.connection.call(
            "PUT", path("topics", topic), body=body, idempotent=True
        )
        return topic_of(answer.map(), self.names)

    async def topics(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        entries = listed(self.connection, "topics", is_plain_read=True)
        found = [topic_of(wire, self.names) async for wire in entries]
        return sorted(found, key=lambda topic: topic.name)

    async def topic(self, topic: str) -> Topic:
        """One topic with the offset range of every queue. Raises UnknownTopic."""
        answer = await self.connection.call(
            "GET", path("topics", topic), idempotent=True, is_plain_read=True
        )
        return topic_of(answer.map(), self.names)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic: its messages are no longer served. Raises UnknownTopic."""
        await self.connection.call(
            "DELETE", path("topics", topic), done_before=errors.UnknownTopic, idempotent=True
        )

    async def retention(self) -> dict[str, Any]:
        """Disk usage, the next deletion and the time until the disk is full, as answered."""
        answer = await self.connection.call("GET", path("retention"), idempotent=True)
        return answer.map()

    async def draining(self) -> Draining:
        """Whether the broker group is closed to producers."""
        return await self._drain("GET")

    async def drain(self) -> Draining:
        """Take no more messages from producers; durable, also over a failover."""
        return await self._drain("PUT")

    async def undrain(self) -> Draining:
        """Take messages from producers again."""
        return await self._drain("DELETE")

    async def _drain(self, method: str) -> Draining:
        wire = (await self.connection.call(method, path("drain"), idempotent=True)).map()
        try:
            return Draining(wire["draining"], wire["since_ms"], wire.get("changed"))
        except KeyError as error:
            raise errors.BrokenAnswer(f"the state of draining lacks {error}") from error


def topic_of(wire: Mapping[str, Any], names: QueueNames = NUMBERS) -> Topic:
    """Parse a topic in the form of the API. names: of its queues. Raises BrokenAnswer."""
    try:
        name, queues = wire["topic"], wire["queues"]
        ranges: tuple[QueueRange, ...] = ()
        if isinstance(queues, list):
            ranges = tuple(
                QueueRange(names.name(each["queue"]), each["min_offset"], each["max_offset"])
                for each in queues
            )
            queues = len(queues)
        return Topic(name, queues, ranges, dict(wire))
    except (KeyError, TypeError) as error:
        raise errors.BrokenAnswer(f"a topic in the answer lacks {error}") from error
