"""A member of a consumer group made of plain HTTP calls: a test sees each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.support.node import Node

WAIT_MS: Final = 500
SESSION_MS: Final = 600_000
"""Longer than any test, so that no heartbeats are needed."""
Source = tuple[str, int, int]
"""(topic, queue, queue offset) that a message was read at."""


class RawMember:
    """One member. It reads what is assigned to it, and commits and nacks when a test asks for
    it."""

    def __init__(
        self, node: Node, group: str, name: str = "m1", topics: Sequence[str] = ("orders",)
    ) -> None:
        self.node = node
        self.group = group
        self.name = name
        self._topics = topics
        self.generation: int | None = None
        self.assignment: list[tuple[str, int]] = []

    @property
    def path(self) -> str:
        """Path of the member's calls."""
        return f"/v1/groups/{self.group}/members/{self.name}"

    def join(self) -> None:
        """Join, or join again: what was not committed comes again."""
        self._take(self.call("POST", self.path, self._said()))

    def heartbeat(self) -> None:
        """Send a heartbeat and learn the assignment."""
        self._take(self.call("POST", self.path, {**self._said(), "generation": self.generation}))

    def fetch(self, wait_ms: int = WAIT_MS) -> Iterator[tuple[Source, dict[str, Any]]]:
        """Messages that are there, or come within wait_ms: where each was read, and the message."""
        body = {"generation": self.generation, "wait_ms": wait_ms}
        status, answer = self.node.request_json("POST", self.path + "/fetch", body)
        if status == 409 and answer["code"] == "stale-generation":
            self.heartbeat()  # as after the wait for members from before a restart
            return
        assert status == 200, (self.path, status, answer)
        if answer["generation"] != self.generation:
            self.heartbeat()
            return
        for piece in answer["queues"]:
            for message in piece["messages"]:
                yield (piece["topic"], piece["queue"], message["queue_offset"]), message

    def commit(self, source: Source) -> None:
        """Done with everything up to the message."""
        topic, queue, queue_offset = source
        body = {
            "member": self.name,
            "generation": self.generation,
            "offsets": [{"topic": topic, "queue": queue, "offset": queue_offset + 1}],
            "ack": "disk",
        }
        self.call("POST", f"/v1/groups/{self.group}/offsets", body)

    def nack(self, source: Source, **more: object) -> dict[str, Any]:
        """Send one message back; return the answer."""
        topic, queue, queue_offset = source
        body = {
            "topic": topic,
            "queue": queue,
            "queue_offset": queue_offset,
            "member": self.name,
            "generation": self.generation,
            **more,
        }
        return self.call("POST", f"/v1/groups/{self.group}/nack", body)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One call that must succeed."""
        status, answer = self.node.request_json(method, path, body)
        assert status in (200, 204), (method, path, status, answer)
        return answer

    def _said(self) -> dict[str, object]:
        return {
            "subscriptions": [{"topic": topic} for topic in self._topics],
            "session_ms": SESSION_MS,
        }

    def _take(self, joined: dict[str, Any]) -> None:
        self.generation = joined["generation"]
        self.assignment = [(topic, queue) for topic, queue in joined["assignment"]]
