"""A producer that sends to one start of a broker while it may, and checks the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from services.broker.log.ack_levels import AckLevel
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.pending import ANSWERED_US
from tests.simulation.replication.send_rules import SentRequest
from tests.simulation.replication.violation import Violation
from tidemark.errors import AckTimeout, TidemarkError
from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host

if TYPE_CHECKING:
    from tests.simulation.replication.broker import Broker

TOPICS: Final = ("orders", "orders", "orders", "refunds", "audit")
BODY_MAX: Final = 300
LARGE_BODY_MAX: Final = 6_000
"""Larger than one transfer to a slave that catches up, smaller than a log file."""
LARGE_SHARE: Final = 0.04
WAITING_MAX: Final = 50
HOST: Final = Host(b"\x7f\0\0\1", 8080)


class Producer:
    """The sends to one start of a broker."""

    def __init__(self, broker: Broker, *, ack_limit_ms: int, sends_per_s: float) -> None:
        self._broker, self._requests = broker, broker.requests
        self._machine, self._process = broker.machine, broker.process
        self._history, self._random = broker.history, broker.machine.timeline.random
        self._ack_limit_ms, self._between_s = ack_limit_ms, 1 / sends_per_s

    async def run(self, stop: asyncio.Event) -> None:
        """Send messages until stop."""
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, 2 * self._between_s))
            if self._history.producers_paused:
                continue
            if len(self._requests.waiting) < WAITING_MAX and self._broker.gate.sends_open:
                timeout_ms = self._random.choice((1, 1, 6)) * self._ack_limit_ms
                task = asyncio.create_task(self.send(timeout_ms), name=CLIENT)
                self._requests.waiting[task] = None
                task.add_done_callback(self._requests.ended)

    async def send(
        self, timeout_ms: int, asked: AckLevel | None = None, *, is_drawn: bool = True
    ) -> TidemarkError | None:
        """Send a message, and perhaps once more as a retry; the error of the last request, or
        None."""
        history, random = self._history, self._random
        serial, topic = history.next_serial(), random.choice((*TOPICS, *history.late_topics))
        share = LARGE_SHARE if history.large_share is None else history.large_share
        size_max = LARGE_BODY_MAX if random.random() < share else BODY_MAX
        body = f"{serial} ".encode() * random.randint(1, size_max // 8)
        if is_drawn:
            asked = random.choice((AckLevel.REPLICATED, AckLevel.DISK, None, None))
        pairs = properties.encode({properties.UNIQ_KEY: f"{serial:016x}"})
        request = ProduceRequest(
            entries=batch.encode([WireMessage(body, pairs)]),
            message_count=1,
            picks=None,
            ack=asked,
            timeout_ms=timeout_ms,
        )
        places: dict[int, int] = {}
        error = await self._request(topic, request, body, places)
        # A client that does not know the outcome sends again, or has lost the answer.
        again = 0.5 if isinstance(error, AckTimeout) else 0.05
        if places and random.random() < again and self._broker.gate.sends_open:
            request = replace(request, retry=True, timeout_ms=6 * self._ack_limit_ms)
            error = await self._request(topic, request, body, places)
        return error

    async def _request(
        self, topic: str, request: ProduceRequest, body: bytes, places: dict[int, int]
    ) -> TidemarkError | None:
        """Send one request. The answer is given in the step of the loop in which the send ends.
        places: takes start and end of each record that is stored."""
        machine, history = self._machine, self._history
        term = None if self._broker.node is None else self._broker.node._term
        asked = SentRequest(machine, self._process, request.ack, request.timeout_ms)
        before, task = len(places), asyncio.current_task()
        assert task is not None

        def waits() -> None:
            self._requests.waiting[task] = (
                asked.admitted_us + request.timeout_ms * 1000 + ANSWERED_US
            )
            if asked.by_the_group:
                self._requests.wait_for_group(task)

        def stored(topic: str, sent: SendResult, start: int, end: int) -> None:
            places[start] = end
            waits()
            members = max(asked.members, machine.slot(Slot.IN_SYNC_SIZE))
            if asked.level is AckLevel.REPLICATED and members < 2:
                raise Violation(
                    f"{machine.name} stores a send for REPLICATED without another member"
                )

        if request.retry:
            waits()
        try:
            self._broker.gate.check_sends()
            sent = await self._broker.api.components.deduplicator.send(topic, request, HOST, stored)
        except TidemarkError as error:
            if len(places) > before:
                history.stored(machine, asked.admitted_us)
            if not self._broker.stop.is_set():
                asked.check_error(error, term, is_stored=len(places) > before or request.retry)
            return error
        if len(places) > before:
            history.stored(machine, asked.admitted_us)
        asked.check_level(sent.level, sent.copies)
        start = sent.results()[0]["physical_offset"]
        by_the_group = sent.level is AckLevel.REPLICATED or request.ack is None
        history.acknowledged(
            machine, start, places[start], body, sent.copies, by_the_group=by_the_group
        )
        return None
