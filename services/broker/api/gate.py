"""Decides whether the API serves reads and sends now, and builds the error if not.

The port listens from the start, so that a caller gets the progress of recovery instead of a refused
connection. Reads open when the queues have caught up with the recovered log; before that a queue
would appear shorter than it is. Sends open after that, when the first records of the start are on
disk. In a group both open together on the master, and a slave opens only reads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from services.broker.log.unit_checks import UnitChecks
from shared.files.positions import Positions
from shared.runtime.health import Health
from tidemark.errors import CorruptRecord, DamagedFile, NotServing, TidemarkError
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

OFFSETS_END: Final = 1 << 62
"""Larger than any physical offset; a damaged unit may contain any 64-bit number."""


class RolePolicy(Protocol):
    """The node's current role in its group (implemented by ``replication.role_policy``)."""

    def check_reads(self, *, anywhere: bool) -> None:
        """Raise the reader's error if another node has to be asked, or if it should retry later.

        anywhere: the reader accepts the data of a slave.
        """
        ...

    def check_sends(self) -> None:
        """Raise the sender's error if another node has to be asked, or if it should retry later."""
        ...


class Gate:
    """Whether reads and sends are open, and the reason if not."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.reads_open = False
        self.sends_open = False
        self.sends_opened = asyncio.Event()
        """Set when sends open; ``own_route`` clears it."""
        self.send_fault: TidemarkError | None = None
        """Reason why sends are refused while reads may be open; None: the node is starting."""
        self.fault: TidemarkError | None = None
        """Error that prevents serving until it is repaired, e.g. a damaged log."""
        self._fault_of: tuple[int, int] | None = None
        """The start of reput whose queues were read when the fault occurred."""
        self.role: RolePolicy | None = None
        """Role of a node in a group; None: the node is standalone."""
        self.damaged_at: int | None = None
        """Physical offset of the damaged record that a read found last; None: there is none."""
        self.unit_checks: UnitChecks | None = None
        """Unit checks of the open store; None before it is open."""

    def check_reads(self, *, anywhere: bool = False) -> None:
        """Raise the reader's error unless reads are open.

        anywhere: the reader accepts the data of a slave: confirmed messages, with a small delay.
        """
        if self.role is not None and self.fault is None:
            self.role.check_reads(anywhere=anywhere)
        if not self.reads_open:
            raise self._why("Nothing was read.")

    def check_sends(self) -> None:
        """Raise the sender's error unless sends are open."""
        if self.role is not None and self.fault is None:
            self.role.check_sends()
        if not self.sends_open:
            if self.fault is None and self.send_fault is not None:
                raise self.send_fault.with_traceback(None)
            raise self._why("Nothing was stored.")

    def judge(self, error: CorruptRecord | DamagedFile) -> TidemarkError:
        """Return the reader's error for damage; retriable while reput may still repair the unit.

        If reput cannot repair it, record the damage and return the given error.
        """
        if self.unit_checks is not None and self.unit_checks.may_heal(error):
            return NotServing(
                f"{error.detail} Reput compares that unit with the log now. Nothing was read.",
                "Try again; the queue's other messages and all sends are not affected. If this "
                "persists, check that reput runs.",
                **error.facts,
            )
        self.note_damage(error)
        return error

    def note_damage(self, error: CorruptRecord | DamagedFile) -> None:
        """Record damage of acknowledged data; the node is not ready until it is repaired.

        Undamaged data is still served. The first damage of a kind is reported on /ready and logged.
        """
        # A valid unit that points to no message also means damage of the log; ha checks that.
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
        """Publish the offset of the damage, if there is one, so that ha checks the log there."""
        at = self.damaged_at
        if at is not None and positions.get(Slot.DAMAGED_AT) != at + 1:
            positions.publish(Slot.DAMAGED_AT, at + 1)

    def stay_shut(self, error: CorruptRecord | DamagedFile, positions: Positions) -> None:
        """Refuse reads and sends until the damage is repaired (``is_repaired``)."""
        self.shut()
        self.fault, self._fault_of = error, positions.resumed_dispatch()

    def is_repaired(self, positions: Positions) -> bool:
        """Return whether the fault may be repaired because reput has rebuilt the queues since.

        A rebuild does not repair a damaged commit log. Without this method: 1. a unit of the state
        queue is damaged when the node becomes master; 2. another node takes over, and reput
        rebuilds the queues; 3. this node serves no reads until its broker is restarted.
        """
        made_anew = positions.resumed_dispatch() not in (None, self._fault_of)
        if isinstance(self.fault, DamagedFile) and made_anew:
            self._health.clear_reason(self.fault.code)  # set again if it is still damaged
            self.fault = None
        return self.fault is None

    def open_as(self, role: RolePolicy) -> None:
        """Open for reads and sends within the limits of the role; clear the fault.

        The new role has read the state that an earlier role could not read. If the fault were kept,
        the role's checks would be skipped: 1. a master finds a damaged queue, and its role ends;
        2. the queue is rebuilt, and the node is the master again; 3. its lease expires, and it
        continues to answer readers.
        """
        self.role, self.fault = role, None
        self.reads_open = True
        self.open_sends()

    def take_role(self, role: RolePolicy) -> None:
        """Apply the limits of this role to all calls from now on."""
        self.role = role

    def check_units_with(self, unit_checks: UnitChecks) -> None:
        """Use the unit checks of the open store."""
        self.unit_checks = unit_checks

    def open_reads(self) -> None:
        """Accept reads."""
        self.reads_open = True

    def close_reads(self, send_fault: TidemarkError | None = None) -> None:
        """Refuse reads. send_fault: reason why sends are refused; None: the node is starting."""
        self.reads_open, self.send_fault = False, send_fault

    def open_reads_only(self, send_fault: TidemarkError) -> None:
        """Accept reads, and refuse sends with this error."""
        self.reads_open, self.send_fault = True, send_fault

    def open_sends(self) -> None:
        """Accept sends."""
        self.sends_open = True
        self.sends_opened.set()

    def fail(self, error: TidemarkError) -> None:
        """Refuse reads and sends with this error until the process is restarted."""
        self.shut()
        self.fault = error

    def shut(self) -> None:
        """Refuse reads and sends."""
        self.reads_open = self.sends_open = False

    def _why(self, safe: str) -> TidemarkError:
        if self.fault is not None:
            # The same object is raised for every call: otherwise its traceback would grow.
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
