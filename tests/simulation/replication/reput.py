"""One start of reput: covers the log up to the confirm offset, and what it covers consumers see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.replication import records
from tests.simulation.replication.history import History
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Actor, Process, Steps
from tidemark.formats.checkpoint import NodeRole, Slot

POLL_US: Final = 40_000
HEARTBEAT_US: Final = 200_000
STEP_SIZE: Final = 2_000


class Reput:
    """A process of the service reput on one node."""

    def __init__(
        self, machine: Machine, process: Process, *, history: History, ring: Callable[[str], None]
    ) -> None:
        self.machine, self.process = machine, process
        self._history, self._ring = history, ring
        self._main: Actor | None = None

    def start(self) -> None:
        """Begin."""
        self._main = self.process.start("main", self._run())
        self.process.start("heart", self._beat())

    def rung(self) -> None:
        """A doorbell."""
        if self._main is not None:
            self._main.wake()

    def _beat(self) -> Steps:
        machine = self.machine
        while not machine.take_lock(2, self.process):
            yield -20_000
        while True:
            machine.page.publish(Slot.REPUT_HEARTBEAT_MS, machine.clock.now_ms())
            yield -HEARTBEAT_US

    def _run(self) -> Steps:
        machine, page = self.machine, self.machine.page
        while not machine.take_lock(2, self.process):
            yield -20_000
        # Without ha's word of this boot nobody knows what is confirmed.
        while (page.get(Slot.HA_BOOT_ID_HIGH), page.get(Slot.HA_BOOT_ID_LOW)) != machine.boot:
            yield POLL_US
        at = page.get(Slot.DISPATCHED_DURABLE)
        page.publish(Slot.DISPATCHED, at)
        yield 0
        random = machine.timeline.random
        while True:
            if page.get(Slot.ROLE) == NodeRole.RESYNC:
                self.process.end()
                return
            yield 0
            end = min(page.get(Slot.CONFIRM), at + STEP_SIZE)
            yield 0
            found = records.walk(machine.volume.log, at, end)
            if not found:
                yield POLL_US
                continue
            for record in found:
                self._history.read(machine, record)
            at = found[-1].end
            yield 0
            page.publish(Slot.DISPATCHED, at)
            yield 0
            if random.random() < 0.1:
                page.publish(Slot.DISPATCHED_DURABLE, at)
                yield 0
            self._ring("broker")
