"""Rules for the answer to a send: a level with its copies, a refusal, or an unknown outcome."""

from __future__ import annotations

from typing import Final

from services.broker.log.ack_levels import AckLevel
from services.broker.log.term import GrantedTerm
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.errors import AckTimeout, NotEnoughReplicas, TidemarkError
from tidemark.formats.checkpoint import Slot

LATELY_US: Final = 50_000
"""Between what a broker has loaded from its page and the answer that follows from it."""
SET: Final = (Slot.IN_SYNC_SIZE, Slot.MIN_IN_SYNC)


class SentRequest:
    """A send with its level, and the page at its arrival."""

    def __init__(
        self, machine: Machine, process: Process, level: AckLevel | None, timeout_ms: int
    ) -> None:
        self._machine, self._process, self.level = machine, process, level
        self.timeout_ms, self.admitted_us = timeout_ms, machine.timeline.now_us
        self.members = machine.slot(Slot.IN_SYNC_SIZE)

    @property
    def by_the_group(self) -> bool:
        """Whether the send waits until the group has the record."""
        return self.level is not AckLevel.DISK

    @property
    def _needed(self) -> int:
        """Members without which the send is refused."""
        least = self._machine.slot(Slot.MIN_IN_SYNC)
        return max(least, 2 if self.level is AckLevel.REPLICATED else 1)

    def check_level(self, level: AckLevel, copies: int) -> None:
        """Check that REPLICATED means a second member, and that every member counts as a copy."""
        name, now = self._machine.name, self._machine.slot(Slot.IN_SYNC_SIZE)
        if (level is AckLevel.REPLICATED) != (copies > 1) or (self.level or level) is not level:
            raise Violation(f"{name} answers {level} on {copies} copies to a send for {self.level}")
        is_same = not self._has_changed(self.admitted_us, *SET) and now == self.members
        if self.by_the_group and is_same and copies != now:
            raise Violation(f"{name} answers {copies} copies, but its set has {now} members")

    def check_error(
        self, error: TidemarkError, term: GrantedTerm | None, *, is_stored: bool
    ) -> None:
        """Check that a refused level and an unknown outcome have a reason."""
        machine, now_us = self._machine, self._machine.timeline.now_us
        lately_us = now_us - LATELY_US
        if self._process.resumed_us >= lately_us or term is None or not term.is_valid:
            return
        if machine.has_failed:
            return  # A failed sync ends the process, and with it the term.
        size = machine.slot(Slot.IN_SYNC_SIZE)
        if isinstance(error, NotEnoughReplicas):
            if size >= self._needed and not self._has_changed(lately_us, *SET):
                raise Violation(f"{machine.name} has {size} members, but refuses a send: {error}")
        elif isinstance(error, AckTimeout) and is_stored and self.by_the_group:
            waited_us = now_us - self.admitted_us
            is_early = waited_us < self.timeout_ms * 1000 - LATELY_US
            has_changed = self._has_changed(self.admitted_us, *SET)
            if not is_early or has_changed or self._runs_out_now(lately_us):
                return
            raise Violation(
                f"{machine.name} gives up a send after {waited_us} µs of {self.timeout_ms} ms, and "
                f"epoch {term.epoch} goes on: {error}"
            )

    def _runs_out_now(self, lately_us: int) -> bool:
        """Whether the deadline of the lease was passed or moved just now."""
        late_ms = self._machine.boot_ms() - self._machine.slot(Slot.LEASE_DEADLINE)
        just = 0 <= late_ms <= LATELY_US // 1000
        return just or self._has_changed(lately_us, Slot.LEASE_DEADLINE)

    def _has_changed(self, since_us: int, *slots: Slot) -> bool:
        return any(self._machine.changed_us.get(slot, 0) >= since_us for slot in slots)
