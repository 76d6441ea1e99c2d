"""One start of the broker: slave until ha grants it an epoch, then master for that epoch.

Follows ``services.broker.replication``: the same rules (``shared.cluster.grant``, ``Term``,
``promises``), the same order of publications, a border behind every access to the page.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeVar

from services.broker.messages import AckLevel
from services.broker.replication import promises
from services.broker.replication.promises import Promise
from services.broker.replication.term import Term
from shared.cluster import grant
from shared.cluster.grant import Slots
from tests.simulation.replication import records
from tests.simulation.replication.frozen_clock import FrozenClock
from tests.simulation.replication.history import History
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.page import step_by_step
from tests.simulation.replication.process import Actor, Process, Steps
from tests.simulation.replication.records import Record
from tidemark.errors import NotEnoughReplicas
from tidemark.formats.checkpoint import BrokerState, NodeRole, Slot, Trouble

T = TypeVar("T")
POLL_US: Final = 50_000
BUSY_US: Final = 1_000
HEARTBEAT_US: Final = 200_000
PARKED_MAX: Final = 200


class Parked(NamedTuple):
    """A send that waits for its answer."""

    record: Record
    promise: Promise
    until_ms: int


class Broker:
    """A process of the service broker on one node."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        *,
        history: History,
        ack_limit_ms: int,
        sends_per_s: float,
        ring: Callable[[str], None],
        say: Callable[[str, str], None] | None,
    ) -> None:
        self.machine, self.process = machine, process
        self._history = history
        self._ack_limit_ms, self._send_us = ack_limit_ms, int(1e6 / sends_per_s)
        self._ring, self._say = ring, say
        self._random = machine.timeline.random
        self._nonce = self._random.getrandbits(63) | 1
        self._served = 0
        self._epoch = 0
        """The epoch under which it holds byte 0; 0: none."""
        self._parked: list[Parked] = []
        self._flushed = 0
        self._flushing = False
        self._main: Actor | None = None
        self._flusher: Actor | None = None

    def start(self) -> None:
        """Begin."""
        self._main = self.process.start("main", self._run())
        self._flusher = self.process.start("flusher", self._flush())

    def rung(self) -> None:
        """A doorbell."""
        if self._main is not None:
            self._main.wake()

    # -- slave -----------------------------------------------------------------------------

    def _run(self) -> Steps:
        machine, page = self.machine, self.machine.page
        while not machine.take_lock(1, self.process):
            yield -20_000
        for slot, value in (
            (Slot.SERVING_EPOCH, 0),
            (Slot.EPOCH_RECORD_END, 0),
            (Slot.BROKER_HEARTBEAT_MS, machine.clock.now_ms()),
            (Slot.BROKER_NONCE, self._nonce),
        ):
            page.publish(slot, value)
            yield 0
        self._ring("ha")
        self.process.start("heart", self._beat())
        while True:
            if page.get(Slot.ROLE) == NodeRole.RESYNC:
                self.process.end()
                return
            yield 0
            epoch = yield from self._granted()
            if epoch is not None:
                self._served = epoch
                yield from self._term(epoch)
            else:
                yield POLL_US

    def _beat(self) -> Steps:
        machine, page = self.machine, self.machine.page
        while True:
            page.publish(Slot.BROKER_HEARTBEAT_MS, machine.clock.now_ms())
            yield 0
            page.publish(
                Slot.BROKER_TROUBLE, Trouble.DISK_FULL if machine.is_full else Trouble.NONE
            )
            yield -HEARTBEAT_US

    def _granted(self) -> Generator[int, None, int | None]:
        served, boot = self._served, self.machine.boot
        return (
            yield from step_by_step(
                self.process,
                self.machine.page,
                lambda slots: grant.granted(slots, nonce=self._nonce, boot=boot, served=served),
            )
        )

    # -- master ----------------------------------------------------------------------------

    def _term(self, epoch: int) -> Steps:
        """Take byte 0, look again, recover, open the epoch, serve while the grant stands."""
        machine, page = self.machine, self.machine.page
        while not machine.take_lock(0, self.process):
            if not (yield from self._ask(epoch, lambda term: term.stands)):
                return
            yield -BUSY_US
        if not (yield from self._ask(epoch, lambda term: term.stands)):
            machine.release_lock(0, self.process)
            return
        self._say_that(f"takes byte 0 for epoch {epoch}")
        machine.begin_appending(self.process, epoch)
        yield -machine.disk_delay_us()
        end = self._flushed = machine.volume.recover()
        self._epoch = epoch
        for slot, value in (
            (Slot.BROKER_STATE, BrokerState.RECOVERING),
            (Slot.WRITTEN, end),
            (Slot.FLUSHED, end),
            (Slot.GENERATION, page.get(Slot.GENERATION) + 1),
            (Slot.EPOCH_RECORD_END, 0),
            (Slot.SERVING_EPOCH, epoch),
        ):
            page.publish(slot, value)
            yield 0
        self._history.serves(machine, epoch, machine.boot)
        opening = self._append(epoch)
        self._history.check_equal_histories()
        page.publish(Slot.WRITTEN, machine.volume.end)
        yield 0
        page.publish(Slot.EPOCH_RECORD_END, opening.end)
        yield 0
        self._ring("ha")
        if self._flusher is not None:
            self._flusher.wake()
        yield from self._serve(epoch, opening.end)
        yield from self._leave()

    def _serve(self, epoch: int, opened_at: int) -> Steps:
        machine, page = self.machine, self.machine.page
        next_send_us = 0
        while True:
            if not (yield from self._ask(epoch, lambda term: term.stands)):
                return
            now_us = machine.timeline.now_us
            if now_us >= next_send_us:
                next_send_us = now_us + self._random.randint(1, 2 * self._send_us)
                is_open = yield from self._ask(epoch, lambda term: term.is_master)
                yield 0
                if (
                    is_open
                    and min(machine.page.get(Slot.DISPATCHED), machine.page.get(Slot.CONFIRM))
                    >= opened_at
                ):
                    page.publish(Slot.BROKER_STATE, BrokerState.SERVING)
                    yield 0
                    yield from self._take_send(epoch)
                    yield from self._read(epoch)
            yield from self._release(epoch)
            yield max(1, min(POLL_US, next_send_us - machine.timeline.now_us))

    def _take_send(self, epoch: int) -> Steps:
        """A request for one record: refused before anything is stored, or appended and parked."""
        machine, page = self.machine, self.machine.page
        if len(self._parked) >= PARKED_MAX or machine.is_full or page.get(Slot.SENDS_HELD):
            return
        yield 0
        if not (yield from self._ask(epoch, lambda term: term.may_answer)):
            return
        in_sync = yield from self._ask(epoch, lambda term: term.in_sync)
        asked = AckLevel.REPLICATED if self._random.random() < 0.5 else None
        try:
            promise = promises.promise(asked, in_sync)
        except NotEnoughReplicas:
            return
        if not (yield from self._ask(epoch, lambda term: term.stands)):
            return
        yield 0
        for _ in range(self._random.choice((1, 1, 1, 3))):
            record = self._append(epoch)
            until_ms = machine.clock.now_ms() + self._ack_limit_ms
            self._parked.append(Parked(record, promise, until_ms))
        yield 0
        page.publish(Slot.WRITTEN, machine.volume.end)
        yield 0
        self._ring("ha")
        if self._flusher is not None:
            self._flusher.wake()

    def _append(self, epoch: int) -> Record:
        """Put a record at the log's end, under byte 0."""
        volume = self.machine.volume
        serial = self._history.next_serial()
        raw = records.encode(epoch, serial, self._random.randint(12, records.SIZE_MAX))
        record = Record(volume.end, epoch, serial, raw)
        volume.append(raw)
        return record

    def _release(self, epoch: int) -> Steps:
        """Answer whom the confirm offset has passed, and whose time is over.

        In the order of ``confirmer.look`` and ``group_sends.reached``: may this node answer; what
        is confirmed; may it still, in the step in which the answer leaves; the set.
        """
        machine = self.machine
        may_answer = yield from self._ask(epoch, lambda term: term.may_answer)
        confirmed = (yield from self._ask(epoch, lambda term: term.confirmed)) if may_answer else 0
        while self._parked:
            parked = self._parked[0]
            if confirmed < parked.record.end:
                if machine.clock.now_ms() < parked.until_ms:
                    return
                del self._parked[0]  # stored, outcome unknown
                continue
            del self._parked[0]
            reached = yield from self._ask(
                epoch,
                lambda term, promise=parked.promise: (  # type: ignore[misc]
                    promises.reached(promise, term.in_sync) if term.may_answer else None
                ),
            )
            if reached is not None:
                self._history.acknowledged(
                    machine, parked.record, reached.copies, machine.timeline.now_us
                )

    def _read(self, epoch: int) -> Steps:
        """A consumer asks the master: what is said now must be what the group has."""
        machine = self.machine
        newest_before = self._history.epoch
        may_answer = yield from self._ask(epoch, lambda term: term.may_answer)
        if may_answer:
            self._history.read_at_master(machine, epoch, newest_before)

    def _leave(self) -> Steps:
        """The grant has ended: whoever waits is answered, then the log is given back."""
        machine, page = self.machine, self.machine.page
        self._parked.clear()
        while self._flushing:
            yield -100
        self._epoch = 0
        page.publish(Slot.FLUSHED, self._flushed)
        yield 0
        page.publish(Slot.SERVING_EPOCH, 0)
        yield 0
        machine.end_appending()
        machine.release_lock(0, self.process)
        self._say_that("gives byte 0 back")
        yield 0
        self._ring("ha")

    def _flush(self) -> Steps:
        """One fdatasync for all that is written, again and again."""
        machine = self.machine
        while True:
            end = machine.volume.end
            if self._epoch and end > self._flushed:
                self._flushing = True
                yield -machine.disk_delay_us()
                machine.volume.synced(end)
                yield 0
                self._flushed = end
                machine.page.publish(Slot.FLUSHED, end)
                self._flushing = False
                self._ring("ha")
                yield 0
            else:
                yield POLL_US

    def _ask(self, epoch: int, question: Callable[[Term], T]) -> Generator[int, None, T]:
        """Ask the page, one access at a time."""
        clock = FrozenClock(self.machine.clock.now_ms)

        def call(slots: Slots) -> T:
            return question(Term(slots, clock, epoch=epoch, nonce=self._nonce))

        return (yield from step_by_step(self.process, self.machine.page, call))

    def _say_that(self, line: str) -> None:
        if self._say is not None:
            self._say(f"{self.machine.name} broker", line)
