"""Whether the API may read and send now, and what callers are told if not.

The port listens from the start, so that a caller hears how far recovery is instead of a refused
connection. Sends open when the queue offsets are known, reads when the queues have caught up with
the recovered log: before that a queue would look shorter than it is.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from services.broker.log.unit_checks import UnitChecks
from shared.files.positions import Positions
from shared.runtime.health import Health
from tidemark.errors import CorruptRecord, DamagedFile, NotServing, TidemarkError
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

OFFSETS_END: Final = 1 << 62
"""A damaged unit may name any 64 bits; no log gets there."""


class Standing(Protocol):
    """What this node is in its group now (``replication.standing``)."""

    def check_reads(self, *, anywhere: bool) -> None:
        """Raise what a reader is told who has to ask another node, or later.

        anywhere: the reader takes what a slave has.
        """
        ...

    def check_sends(self) -> None:
        """Raise what a sender is told who has to ask another node, or later."""
        ...


class Gate:
    """Open or shut, with the reason."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.reads_open = False
        self.sends_open = False
        self.send_fault: TidemarkError | None = None
        """Why sends are shut while reads may be open, if not for the start's sake."""
        self.fault: TidemarkError | None = None
        """What keeps the node from serving until it is repaired: a damaged log, for example."""
        self._fault_of: tuple[int, int] | None = None
        """The start of reput whose queues were read when the fault was met."""
        self.standing: Standing | None = None
        """Of a node of a group; None: the node is alone."""
        self.damaged_at: int | None = None
        """Physical offset at which a read met a damaged record last; None: none did."""
        self.unit_checks: UnitChecks | None = None
        """Of an open store."""

    def check_reads(self, *, anywhere: bool = False) -> None:
        """Raise what a reader is told, unless reads are open.

        anywhere: the reader takes what a slave has: all that is confirmed, perhaps a little late.
        """
        if self.standing is not None and self.fault is None:
            self.standing.check_reads(anywhere=anywhere)
        if not self.reads_open:
            raise self._why("Nothing is read.")

    def check_sends(self) -> None:
        """Raise what a sender is told, unless sends are open."""
        if self.standing is not None and self.fault is None:
            self.standing.check_sends()
        if not self.sends_open:
            if self.fault is None and self.send_fault is not None:
                raise self.send_fault.with_traceback(None)
            raise self._why("Nothing was stored.")

    def judge(self, error: CorruptRecord | DamagedFile) -> TidemarkError:
        """The error for a reader that met damage: retriable while reput may still mend the unit.

        Otherwise the damage is noted, and the error is the one that was met.
        """
        if self.unit_checks is not None and self.unit_checks.may_heal(error):
            return NotServing(
                f"{error.detail} Reput compares that unit with the log now. Nothing is read.",
                "Try again; the queue's other messages and all sends go on. If it stays so: does "
                "reput run?",
                **error.facts,
            )
        self.note_damage(error)
        return error

    def note_damage(self, error: CorruptRecord | DamagedFile) -> None:
        """A read met damage below what was promised: the node is not ready until it is repaired.

        What is whole is served on. The first damage of a kind is named on /ready and in the log.
        """
        # A sound unit that leads to no message names damage of the log, too: ha checks that.
        at = error.at if isinstance(error, CorruptRecord) else error.facts.get("physical_offset")
        if at is not None and 0 <= at < OFFSETS_END:
            self.damaged_at = at
        detail = f"{error.detail} {error.advice}"
        if self._health.add_reason(error.code, detail, lasting=True):
            log.error(
                "a read met damage; the node is not ready until it is repaired",
                extra={"event": "damage-met", "code": error.code, "detail": error.detail},
            )

    def publish_damage(self, positions: Positions) -> None:
        """Let ha look whether the log is damaged where a read said so, if one did."""
        at = self.damaged_at
        if at is not None and positions.get(Slot.DAMAGED_AT) != at + 1:
            positions.publish(Slot.DAMAGED_AT, at + 1)

    def stay_shut(self, error: CorruptRecord | DamagedFile, positions: Positions) -> None:
        """Serve nothing until what error names is repaired (``is_repaired``)."""
        self.shut()
        self.fault, self._fault_of = error, positions.resumed_dispatch()

    def is_repaired(self, positions: Positions) -> bool:
        """Whether what kept the node shut may be whole again: reput has made the queues anew since.

        A damaged commit log is not repaired by that. Otherwise: 1. a unit of the state queue is
        damaged as the node becomes master; 2. another node takes over, and reput makes the queues
        again; 3. this one serves no reads until its broker is started again.
        """
        made_anew = positions.resumed_dispatch() not in (None, self._fault_of)
        if isinstance(self.fault, DamagedFile) and made_anew:
            self._health.clear_reason(self.fault.code)  # said again if it is damaged still
            self.fault = None
        return self.fault is None

    def open_as(self, standing: Standing) -> None:
        """Open for reads and sends, under what standing says.

        What an earlier role could not read, this one has read. Kept, it would hide what standing
        says: 1. a master meets a damaged queue, and ends; 2. the queue is made again, and the node
        is the master once more; 3. its lease runs out, and it goes on answering readers.
        """
        self.standing, self.fault = standing, None
        self.reads_open = self.sends_open = True

    def shut(self) -> None:
        """The node stops."""
        self.reads_open = self.sends_open = False

    def _why(self, safe: str) -> TidemarkError:
        if self.fault is not None:
            # The same object is raised for every call: without this its traceback would grow.
            return self.fault.with_traceback(None)
        recovery = self._health.recovery
        eta_s = recovery.eta_seconds()
        how_far = (
            f", {recovery.done_bytes} of {recovery.total_bytes} bytes"
            + ("" if eta_s is None else f", about {eta_s} s left")
            if recovery.total_bytes
            else ""
        )
        return NotServing(
            f"the node is {self._health.state}{how_far}. {safe}",
            "Try again; /ready on the admin port shows the progress.",
            state=self._health.state,
            done_bytes=recovery.done_bytes,
            total_bytes=recovery.total_bytes,
            eta_seconds=eta_s,
        )
