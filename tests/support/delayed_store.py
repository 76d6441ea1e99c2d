"""Delayed messages over a real small store: a test runs the turns and kills it at any point.

The log, the queues and the sorted file are real; the test controls reput's step, the clock and the
moment of a kill. A kill leaves everything unchanged and begins anew from the files, as a start
does; with ``reboot`` the sorted file is that of another boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

from services.broker.delay.build import FILE, make_delayed
from services.broker.delay.delayed import DelayedMessages
from services.broker.log.append import Append, Appended
from services.broker.state.state_log import StateLog
from services.broker.state.state_replay import replay
from shared.runtime.clock import SystemClock
from shared.state.records import STATE_TOPIC
from shared.state.values import DelayState
from tests.support.log_contexts import log_context_of
from tests.support.small_broker import BORN, HOST, LEVELS_MS, SmallBroker
from tidemark.errors import DiskFull, StoreError
from tidemark.formats import batch, delay, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import Delayed
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

TURNS_MAX: Final = 200


class Killed(BaseException):
    """The process ends here: nothing after this may run."""


class _Clock(SystemClock):
    """Wall time is the store's; waits on monotonic time end at once."""

    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker
        self._reads = 0

    def wall_ms(self) -> int:
        return self._broker.now_ms

    def monotonic(self) -> float:
        self._reads += 1
        return float(self._reads)


class DelayedStore(SmallBroker):
    """A small store with delayed messages. ``close`` it."""

    delayed: DelayedMessages

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.faults: list[StoreError | None] = []
        self.refusal: Exception | None = None
        """Error of the next appends of messages."""
        self.refuse_after: int | None = None
        """Number of appends of messages that succeed before all fail, also the broker's own."""
        self.appends_until_kill: int | None = None
        self.dispatches = True
        """False: reput does not run."""
        self._begin()

    def _begin(self) -> None:
        self.delayed = make_delayed(
            log_context_of(
                config=SimpleNamespace(store=self.store.config),
                host=HOST,
                store=SimpleNamespace(directory=self.store),
                positions=self.positions,
                clock=_Clock(self),
                durability=self,
                dispatched=self.dispatched,
                durable_end=lambda: self.appender.flushed,
                end=lambda: self.appender.appended,
                index_is_whole=lambda: not self.positions.get(Slot.INDEX_BEHIND),
            ),
            cast(Append, self),
            cast(StateLog, self),
            self.queue_offsets,
            self.topics,
            state=self.state,
            on_fault=self.faults.append,
        )

    def close(self) -> None:
        self._abandon()
        super().close()

    def _abandon(self) -> None:
        self.delayed.delivery.abandon()

    # -- what parts are given --------------------------------------------------------------------

    def append_now(self, runs: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        if self.appends_until_kill is not None:
            if self.appends_until_kill == 0:
                raise Killed
            self.appends_until_kill -= 1
        if self.refusal is not None and not own:
            raise self.refusal
        if self.refuse_after is not None and runs[0].topic != STATE_TOPIC:
            if self.refuse_after == 0:
                raise DiskFull("planted")
            self.refuse_after -= 1
        return super().append_now(runs, own=own, room=room)

    def append_state_now(self, body: bytes) -> PhysicalOffset:
        """As ``StateLog.append_state_now``."""
        return self.append_offsets_now([body])

    def delay_now(self) -> DelayState:
        """As ``StateLog.delay_now``."""
        self.dispatch()
        return replay(self.queues, self.reader, self.dispatched()).delay

    # -- what a test does ------------------------------------------------------------------------

    def dispatch(self) -> None:
        if self.dispatches:
            super().dispatch()

    async def kill(self, *, reboot: bool = False) -> None:
        """End at once and begin anew from the files."""
        await asyncio.to_thread(self._abandon)
        self.appends_until_kill = None
        if reboot:
            (self.root / FILE).unlink(missing_ok=True)
        self.dispatch()
        self._begin()

    async def turn(self) -> None:
        """Dispatch, and deliver until there is nothing more to do now."""
        for _ in range(TURNS_MAX):
            self.dispatch()
            pause_s = await self.delayed.delivery.turn()
            if pause_s:
                break
        self.dispatch()

    def wait_level(
        self, body: bytes, level: int, *, topic: str = "orders", queue: int = 0
    ) -> Record:
        """Store a message that waits as long as its level says."""
        raw = properties.encode({"UNIQ_KEY": body.decode()})
        return self._store(delay.by_level(topic, queue, raw, level, len(LEVELS_MS)), body)

    def wait_until(
        self, body: bytes, at_ms: int, *, topic: str = "orders", queue: int = 0
    ) -> Record:
        """Store a message that waits until a time in the future."""
        raw = properties.encode({"UNIQ_KEY": body.decode()})
        waiting = delay.by_time(topic, queue, raw, at_ms, self.now_ms)
        assert waiting.topic == delay.TIMER_TOPIC
        return self._store(waiting, body)

    def _store(self, waiting: Delayed, body: bytes) -> Record:
        entries = batch.encode([WireMessage(body, waiting.properties, 5)])
        run = Run(waiting.topic, waiting.queue_id, entries, 1, BORN, HOST, 77, reconsume_times=2)
        appended = super().append_now([run])
        self.dispatch()
        return self.record(appended.start)

    def delivered(self, topic: str = "orders", queue: int = 0) -> list[bytes]:
        """Bodies of a queue, in order."""
        return [bytes(each.body) for each in self.all(topic, queue)]
