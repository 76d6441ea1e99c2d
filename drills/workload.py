"""The load during drills: producers and consumers that record every request and message.

Each producer sends numbered messages to its own queue, one request at a time, so that order can be
checked. Half of the producers retry a request whose outcome is unknown, with the same unique ids
and marked as a retry, like the client library. The others continue and leave it unknown. Consumers
read every queue from its beginning and keep their offsets across failovers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from drills.calls import NOT_MASTER, PAUSE_S, MasterCalls
from drills.finding import Finder
from drills.ledger import Ack, Ledger, Outcome, Place, Request
from drills.log_reading import key_of

TOPIC: Final = "drill"
GIVE_UP_S: Final = 10.0
"""Time after the end of the load at which retries are given up and the outcome stays unknown."""
PULL_WAIT_MS: Final = 500
UNKNOWN_CODES: Final = frozenset({"ack-timeout", "no-answer", "unreachable", "broken-answer"})
"""Errors after which it is unknown whether the messages were stored."""


@dataclass(frozen=True, slots=True)
class Plan:
    producers: int = 4
    consumers: int = 2
    requests_per_s: float = 12.0
    """Requests per second of each producer."""
    messages: int = 4
    """Messages per request."""
    body_size: int = 120
    send_timeout_ms: int = 900
    """Send timeout at the broker: the acknowledgement limit of the profile."""
    answer_timeout_s: float = 1.5
    """Timeout of the sender, because a node that was cut off does not answer."""


class Batch(NamedTuple):
    """The messages of one request, which may be retried."""

    keys: tuple[str, ...]
    body: dict[str, Any]


class Workload:
    """Load on a group until it is stopped, used as ``async with Workload(...) as load``."""

    def __init__(self, finder: Finder, plan: Plan, ledger: Ledger) -> None:
        self.ledger = ledger
        self._plan, self._finder = plan, finder
        self._running = asyncio.Event()
        self._running.set()
        self._give_up_at: float | None = None
        self._stop = asyncio.Event()
        self._calls = MasterCalls(finder, plan.answer_timeout_s)
        self._producers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._next_offsets: dict[tuple[int, int], int] = {}
        self._numbers = [0] * plan.producers
        self._sending = 0
        self._rewinds = 0

    async def __aenter__(self) -> Workload:
        await self._calls.__aenter__()
        try:
            await self._make_topic()
        except BaseException:
            await self._calls.__aexit__()
            raise
        plan = self._plan
        self._producers = [
            asyncio.create_task(self._produce(number)) for number in range(plan.producers)
        ]
        self._consumers = [
            asyncio.create_task(self._consume(consumer, queue))
            for consumer in range(plan.consumers)
            for queue in range(plan.producers)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_up_at = time.monotonic() + GIVE_UP_S
        self._stop.set()
        self._running.set()
        await asyncio.gather(*self._producers, return_exceptions=True)
        for task in self._consumers:
            task.cancel()
        await asyncio.gather(*self._consumers, return_exceptions=True)
        await self._calls.__aexit__()

    def rewind(self) -> None:
        """Make the consumers start again without their records: read messages were given up."""
        self._rewinds += 1
        self._next_offsets.clear()
        self.ledger.seen.clear()

    def pause(self) -> None:
        """Send no new requests until ``resume``; pending requests are completed."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def quiet(self) -> None:
        """Wait after ``pause`` until no request is pending. Raises TimeoutError."""
        async with self._patience(GIVE_UP_S):
            while self._sending:
                await self._rest()

    async def acked(self, more: int, timeout_s: float = 30.0) -> None:
        """Wait until that many more messages are acked. Raises TimeoutError."""
        goal = len(self.ledger.acked) + more
        async with self._patience(timeout_s):
            while len(self.ledger.acked) < goal:
                await self._rest()

    async def caught_up(self, timeout_s: float = 30.0) -> None:
        """Wait until every consumer has read every acked message. Raises TimeoutError."""
        owed: dict[int, int] = {}
        for ack in self.ledger.acked.values():
            owed[ack.place.queue] = max(owed.get(ack.place.queue, 0), ack.place.queue_offset + 1)
        async with self._patience(timeout_s):
            while any(
                self._next_offsets.get((consumer, queue), 0) < end
                for consumer in range(self._plan.consumers)
                for queue, end in owed.items()
            ):
                await self._rest()

    def _patience(self, timeout_s: float) -> asyncio.Timeout:
        """Return a timeout that a slow machine extends."""
        return asyncio.timeout(timeout_s * self._finder.pace.now)

    async def _rest(self) -> None:
        """Pause. Raises the unexpected error of a producer or consumer, to fail the drill."""
        for task in (*self._producers, *self._consumers):
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
        await asyncio.sleep(PAUSE_S)

    # -- producers ------------------------------------------------------------------------------

    async def _make_topic(self) -> None:
        while True:
            status, answer, _ = await self._calls.call(
                "PUT", f"/v1/topics/{TOPIC}", {"queues": self._plan.producers}
            )
            if status in (200, 201):
                return
            if status not in (0, NOT_MASTER) and not answer.get("retriable"):
                raise RuntimeError(f"the topic cannot be made: {status} {answer}")
            await asyncio.sleep(PAUSE_S)

    async def _produce(self, producer: int) -> None:
        interval_s = 1.0 / self._plan.requests_per_s
        repeats = producer % 2 == 0
        for batch in self._batches(producer):
            started = time.monotonic()
            self._sending += 1
            await self._send(producer, batch, repeats=repeats)
            self._sending -= 1
            if self._stop.is_set():
                return
            await asyncio.sleep(max(0.0, started + interval_s - time.monotonic()))
            while not self._running.is_set():
                # Check again after waking up: the load may have been resumed and paused at once.
                await self._running.wait()
            if self._stop.is_set():
                return

    def _batches(self, producer: int) -> Iterator[Batch]:
        while True:
            keys = []
            for _ in range(self._plan.messages):
                keys.append(f"{producer}.{self._numbers[producer]}")
                self._numbers[producer] += 1
            messages = [
                {
                    "body": f"{key} ".encode().ljust(self._plan.body_size, b"."),
                    "unique_id": f"drill-{key}",
                    "queue": producer,
                }
                for key in keys
            ]
            timeout_ms = self._plan.send_timeout_ms
            yield Batch(tuple(keys), {"messages": messages, "timeout_ms": timeout_ms})

    async def _send(self, producer: int, batch: Batch, *, repeats: bool) -> None:
        """Send until there is a success, or an error that this producer does not retry."""
        body, repeated = batch.body, False
        while True:
            sent_at = time.monotonic()
            for key in batch.keys:
                self.ledger.sent.setdefault(key, sent_at)
            status, answer, node = await self._calls.call(
                "POST", f"/v1/topics/{TOPIC}/messages", body
            )
            outcome, code = _outcome_of(status, answer)
            ended_at, count = time.monotonic(), len(batch.keys)
            request = Request(producer, sent_at, ended_at, outcome, code, node, count)
            self.ledger.requests.append(request)
            if outcome is Outcome.ACKED:
                for number, key in enumerate(batch.keys):
                    ack = Ack.of(answer, number, request, repeated=repeated)
                    self.ledger.record_ack(key, ack)
                return
            if outcome is Outcome.UNKNOWN:
                if not repeats:
                    return
                repeated = True
                body = {**batch.body, "retry": True}
            elif not answer.get("retriable", True):
                raise RuntimeError(f"a send was refused for good: {status} {answer}")
            if self._stop.is_set() and not repeated:
                return
            if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                return
            await asyncio.sleep(PAUSE_S)

    # -- consumers ------------------------------------------------------------------------------

    async def _consume(self, consumer: int, queue: int) -> None:
        offset, rewinds = 0, self._rewinds
        while True:
            if rewinds != self._rewinds:
                offset, rewinds = 0, self._rewinds
            path = (
                f"/v1/topics/{TOPIC}/queues/{queue}/messages"
                f"?offset={offset}&max=256&wait_ms={PULL_WAIT_MS}"
            )
            status, answer, node = await self._calls.call("GET", path, None)
            if status != 200 or rewinds != self._rewinds:
                await asyncio.sleep(PAUSE_S)
                continue
            for message in answer["messages"]:
                place = Place(queue, message["queue_offset"])
                self.ledger.see(consumer, place, key_of(message["body"]))
            status_name = answer["status"]
            if status_name == "OFFSET_OVERFLOW_BADLY":
                self.ledger.seen_wrong.append(
                    f"consumer {consumer} is at {offset} of queue {queue}, and {node} says "
                    f"that it ends at {answer['max_offset']}"
                )
                await asyncio.sleep(PAUSE_S)
                continue
            if answer["messages"] and answer["messages"][0]["queue_offset"] != offset:
                first = answer["messages"][0]["queue_offset"]
                if first > offset and answer["min_offset"] <= offset:
                    self.ledger.seen_wrong.append(
                        f"consumer {consumer} asked {node} for offset {offset} of queue {queue} "
                        f"and got {first}"
                    )
            offset = max(offset, answer["next_offset"])
            self._next_offsets[consumer, queue] = offset


def _outcome_of(status: int, answer: dict[str, Any]) -> tuple[Outcome, str]:
    if status == 200:
        return Outcome.ACKED, ""
    code = str(answer.get("code", status))
    if code in UNKNOWN_CODES or (status >= 500 and "outcome" in str(answer.get("detail", ""))):
        return Outcome.UNKNOWN, code
    return Outcome.REFUSED, code
