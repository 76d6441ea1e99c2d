"""A consumer that reads from one start of a broker while it may, and checks what it gets."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from services.broker.groups.offsets import Offsets
from services.broker.read.pull import PullRequest
from services.broker.read.unpacking import pulled_messages
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from tests.simulation.replication.api_client import ANYWHERE_HEADERS
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.pending import WOKEN_US, HeldPull
from tests.simulation.replication.producer import TOPICS
from tests.simulation.replication.violation import Violation
from tidemark.errors import CorruptRecord, DamagedFile, Fenced, SwitchingOver, TidemarkError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

if TYPE_CHECKING:
    from tests.simulation.replication.broker import Broker

QUEUES_SEEN: Final = (*((topic, 0) for topic in dict.fromkeys(TOPICS)), (STATE_TOPIC, STATE_QUEUE))
PULLED_MAX: Final = 8
HELD_MS: Final = 3_000
HELD_MAX: Final = 5
GROUP: Final = "readers"
COMMIT_SHARE: Final = 0.2
"""Share of the reads at a master that change the state."""
DURABLE_SHARE: Final = 0.08
"""Share that waits until the change is durable."""
DELIVER_SHARE: Final = 0.04
"""Share that records a delivery."""
FOLLOWED_US: Final = 1_000_000
"""Time within which a running slave has applied the state of what it serves."""


class Consumer:
    """The reads from one start of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._requests = broker, broker.requests
        self._machine, self._process = broker.machine, broker.process
        self._history, self._random = broker.history, broker.machine.timeline.random
        self._shown = 0, broker.machine.timeline.now_us
        """End of the log that a slave served, and when."""
        self._most = self._followed = 0
        """Largest end of the log that a slave served, and the end whose state it has applied
        since."""

    async def run(self, stop: asyncio.Event) -> None:
        """Read and hold pulls until stop."""
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, 0.1))
            store, newest_before = self._broker.store, self._history.epoch
            if store is None or not self._broker.gate.reads_open:
                continue
            anywhere = self._random.random() < 0.5
            try:
                self._broker.gate.check_reads(anywhere=anywhere)
            except SwitchingOver as error:
                raise Violation(f"{self._machine.name} refuses reads: {error}") from None
            except Fenced as error:
                if anywhere:  # What is confirmed stays confirmed when the lease is over.
                    raise Violation(f"{self._machine.name} refuses any reads: {error}") from None
                continue
            except TidemarkError:
                continue
            epoch = self._broker.epoch
            if not anywhere:
                self._history.answers(self._machine, "answers reads")
            if not anywhere and epoch is not None:
                self._history.read_at_master(self._machine, epoch, newest_before)
                opened = self._machine.slot(Slot.EPOCH_RECORD_END)
                self._history.state_at_master(self._machine, self._broker.state, opened)
                self._change_state()
            self._history.read(self._machine, store.dispatched)
            self._pull_newest()
            if len(self._requests.held) < HELD_MAX and self._random.random() < 0.1:
                self._hold()
            if epoch is None:
                self._judge_followed(store.dispatched)

    def _judge_followed(self, dispatched: int) -> None:
        """Check that the state of a slave is confirmed, and has all up to the end that it served a
        while ago."""
        now_us = self._machine.timeline.now_us
        shown, since_us = self._shown
        if now_us - max(since_us, self._process.resumed_us) > FOLLOWED_US:
            self._shown, self._followed = (dispatched, now_us), shown
        # A reput that makes the queues anew begins before what is applied.
        self._most = max(self._most, dispatched)
        self._history.state(self._machine, self._broker.state, self._followed, self._most)

    def _change_state(self) -> None:
        """Commit offsets, or record a delivery, at a share of the reads at a master."""
        groups, draw = self._broker.api.components.groups, self._random.random()
        if self._history.producers_paused or draw > COMMIT_SHARE:
            return
        if draw < DELIVER_SHARE:
            with contextlib.suppress(TidemarkError):
                self._broker.gate.check_sends()
                self._broker.api.components.delayed.deliver()
            return
        (topic, queue), puller = (
            self._random.choice(QUEUES_SEEN),
            self._broker.api.components.read.puller,
        )
        _, end = puller.bounds(topic, queue)
        groups.offsets.accept(GROUP, {(topic, queue): end})
        if draw < DURABLE_SHARE:
            task = asyncio.create_task(
                self._commit(groups.offsets, (topic, queue), end), name=CLIENT
            )
            self._requests.wait_for_group(task)

    async def _commit(self, offsets: Offsets, queue: tuple[str, int], end: int) -> None:
        """Wait until the offset is durable: the group has confirmed it then."""
        try:
            await offsets.durable()
        except TidemarkError:
            return
        if self._history.records.now.offsets.get(GROUP, {}).get(queue, -1) < end:
            raise Violation(
                f"{self._machine.name} answers that offset {end} of {queue} is durable before the "
                "group has confirmed that"
            )

    def _hold(self) -> None:
        """Let a consumer wait for the next message of a queue."""
        (topic, queue), parts = self._random.choice(QUEUES_SEEN), self._broker.api.components
        _, end = parts.read.puller.bounds(topic, queue)
        asked = f"offset={end}&max={PULLED_MAX}&wait_ms={HELD_MS}"
        path = f"/v1/topics/{topic}/queues/{queue}/messages?{asked}"
        anywhere = self._broker.epoch is None or self._random.random() < 0.2

        async def wait() -> None:
            try:
                await self._broker.client.call("GET", path, ANYWHERE_HEADERS if anywhere else None)
                if not anywhere:
                    self._history.answers(self._machine, "answers a held pull")
            except (CorruptRecord, DamagedFile) as error:
                self._broker.gate.judge(error)
            except TidemarkError:
                return  # An error is an answer, too: the consumer asks again.

        task = asyncio.create_task(wait(), name=CLIENT)
        self._requests.held[task] = HeldPull(
            topic, queue, end, parts, self._machine.timeline.now_us
        )
        task.add_done_callback(self._requests.ended)

    def check_held(self) -> None:
        """Check that a held pull is answered when a message arrives or its term ends."""
        history, name, now_us = self._history, self._machine.name, self._machine.timeline.now_us
        for held in self._requests.held.values():
            assert self._broker.store is not None
            seen = history.records.seen(held.topic, held.queue, self._broker.store.dispatched)
            live = bisect_left(seen, self._machine.begins_at, key=lambda place: place.start)
            waits = (
                len(seen) <= max(held.offset, live) and self._broker.api.components is held.parts
            )
            if waits or self._process.paused or name in {*history.damaged, *history.lost_queues}:
                held.idle_us = now_us
            elif now_us - max(held.idle_us, self._process.resumed_us) > WOKEN_US:
                raise Violation(
                    f"a pull of {held.topic} {held.queue} from {held.offset} waits at {name}, "
                    f"and {len(seen)} messages are there"
                )

    def show(self, topic: str, queue: int, offset: int) -> None:
        """Pull messages of the queue from the offset on."""
        self._broker.loop.call_soon_threadsafe(self._pull, topic, queue, offset)

    def _pull_newest(self) -> None:
        (topic, queue), store = self._random.choice(QUEUES_SEEN), self._broker.store
        assert store is not None
        first, _ = self._broker.api.components.read.puller.bounds(topic, queue)
        known = self._history.records.seen(topic, queue, store.dispatched)
        self._pull(topic, queue, max(first, len(known) - self._random.randint(1, PULLED_MAX)))

    def _pull(self, topic: str, queue: int, offset: int) -> None:
        """Pull and check messages of a queue as a consumer gets them."""
        puller, store = self._broker.api.components.read.puller, self._broker.store
        assert store is not None
        resumed = store.positions.resumed_dispatch()
        before = store.dispatched
        try:
            result = puller.read(
                PullRequest(topic, queue, offset, PULLED_MAX, None, None, 0, False)
            )
            for _, message, _ in pulled_messages(result, puller.checks_at):
                if isinstance(message, CorruptRecord):
                    raise message
            found = [bytes(data) for _, _, data in result.records()]
        except (CorruptRecord, DamagedFile) as error:
            answer = self._broker.gate.judge(error)
            if not answer.retriable and self._machine.name not in self._history.damaged:
                raise
            return
        # If reput restarts meanwhile, what was dispatched before may be shown but need not be.
        since = max(before, store.dispatched)
        if resumed is None or resumed != store.positions.resumed_dispatch():
            before = PhysicalOffset(0)
        self._history.pulled(
            self._machine, topic, queue, offset, found, result.max_offset, before, since
        )
