"""A send from checked drafts to an answer that tells the truth about where they are.

Picks the queues, makes records of the drafts, appends them in one step, and waits for the level the
sender asked for. What cannot be promised is refused before anything is appended; what was appended
and not confirmed in time is answered as an error that says so. Before: ``messages`` (walk step 2).
After: ``append``, then ``flusher`` (steps 3 to 6), then the answer (step 9).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from services.broker.append import Append, Appended
from services.broker.flusher import Flusher
from services.broker.messages import AckLevel, Draft, ProduceRequest
from services.broker.metrics import BrokerMetrics
from services.broker.topics import Topics
from tidemark.clock import Clock
from tidemark.errors import (
    AckTimeout,
    NotEnoughReplicas,
    NotServing,
    RequestError,
    StoreError,
    TidemarkError,
    UnknownQueue,
)
from tidemark.formats import hashing, ids
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message

COPIES: Final = 1
"""Of a node alone."""


class Sent(NamedTuple):
    """An answered send."""

    level: AckLevel
    results: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "status": "PUT_OK",
            "ack": {"level": self.level.value, "copies": COPIES},
            "results": self.results,
        }


def result_of(error: TidemarkError) -> str:
    """The label under which a refused put is counted."""
    match error:
        case AckTimeout():
            return "flush_timeout"
        case NotEnoughReplicas():
            return "replica_unavailable"
        case StoreError() if error.status == 507:
            return "disk_full"
        case RequestError():
            return "invalid"
        case NotServing():
            return "busy"
        case _:
            return "failed"


class Sends:
    """Stores what senders send."""

    def __init__(
        self,
        append: Append,
        flusher: Flusher,
        topics: Topics,
        clock: Clock,
        metrics: BrokerMetrics,
        store_host: Host,
    ) -> None:
        self._append = append
        self._flusher = flusher
        self._topics = topics
        self._clock = clock
        self._metrics = metrics
        self._store_host = store_host
        self._turns: dict[str, int] = {}

    async def send(self, topic: str, request: ProduceRequest, born_host: Host) -> Sent:
        """Store all messages of the request or none; wait for its level.

        Raises NotEnoughReplicas before anything is stored, AckTimeout after everything is.
        """
        started = self._clock.monotonic()
        if request.ack is AckLevel.REPLICATED:
            raise NotEnoughReplicas(
                "ack=replicated needs a second copy, and this node is alone. Nothing was stored.",
                "Ask for ack=disk, or run a group with slaves.",
            )
        count = (await self._topics.for_sending(topic)).queues
        queues = self._pick(topic, count, request.drafts)
        born_ms = self._clock.wall_ms()
        appended = await self._append.append(
            [
                Message(
                    topic,
                    queue,
                    draft.body,
                    born_host,
                    self._store_host,
                    draft.properties,
                    draft.flag,
                    born_timestamp_ms=born_ms,
                )
                for draft, queue in zip(request.drafts, queues, strict=True)
            ]
        )
        self._count(topic, request, appended)
        sent = Sent(request.ack, self._results(request.drafts, appended))
        if request.ack is AckLevel.DISK:
            left_s = started + request.timeout_ms / 1000 - self._clock.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    await self._flusher.durable(appended.end)
            except TimeoutError:
                raise _ack_timeout(request.timeout_ms, sent) from None
        self._metrics.put_duration.labels(request.ack.value).observe(
            self._clock.monotonic() - started
        )
        self._metrics.put_results.labels("ok").inc()
        return sent

    def _pick(self, topic: str, count: int, drafts: list[Draft]) -> list[int]:
        """The queue of every draft; those that name none share the next one in turn."""
        shared: int | None = None
        queues: list[int] = []
        for index, draft in enumerate(drafts):
            if draft.queue is not None:
                if draft.queue >= count:
                    raise UnknownQueue(
                        f"messages[{index}].queue is {draft.queue}; topic {topic} has {count} "
                        f"queues, 0 to {count - 1}. Nothing was stored.",
                        field=f"messages[{index}].queue",
                        queues=count,
                    )
                queues.append(draft.queue)
            elif draft.sharding_key is not None:
                queues.append(abs(hashing.string_hash(draft.sharding_key)) % count)
            else:
                if shared is None:
                    shared = self._turns.get(topic, 0) % count
                    self._turns[topic] = shared + 1
                queues.append(shared)
        return queues

    def _results(self, drafts: list[Draft], appended: Appended) -> list[dict[str, Any]]:
        host, time_ms = self._store_host, appended.store_timestamp_ms
        return [
            {
                "message_id": ids.offset_id(host, place.physical_offset),
                "unique_id": draft.unique_id,
                "queue": place.queue,
                "queue_offset": place.queue_offset,
                "physical_offset": place.physical_offset,
                "store_timestamp_ms": time_ms,
            }
            for draft, place in zip(drafts, appended.places, strict=True)
        ]

    def _count(self, topic: str, request: ProduceRequest, appended: Appended) -> None:
        label = self._metrics.topic_label(topic)
        self._metrics.messages_in.labels(label, "normal").inc(len(request.drafts))
        self._metrics.received_bytes.labels(label).inc(sum(place.size for place in appended.places))
        for draft in request.drafts:
            self._metrics.message_size.observe(len(draft.body))


def _ack_timeout(timeout_ms: int, sent: Sent) -> AckTimeout:
    return AckTimeout(
        f"{len(sent.results)} messages are stored, level memory is reached, and {sent.level.value} "
        f"was not within {timeout_ms} ms. The outcome is unknown: they may yet be durable, or be "
        "lost with the node.",
        "Do not send them again without looking for them; see the results.",
        ack={"level": AckLevel.MEMORY.value, "copies": COPIES},
        results=sent.results,
        timeout_ms=timeout_ms,
    )
