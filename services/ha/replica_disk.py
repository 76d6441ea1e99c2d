"""The replica's effects on its own disk, each carried out in a thread and answered by an event.

Two threads, so that a promise does not wait for the log: one for ``ha/`` and the epoch table, one
for the log and its lock byte. Each carries out what it is given in order. The log's thread may wait
long for byte 0, which a stopped broker keeps; promises are still kept meanwhile.

Step before: the replica decides. Step after: its event comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.effects import (
    Copy,
    Cut,
    PersistConfirm,
    PersistPromise,
    PersistTable,
    ReleaseAppendLock,
    Resync,
    Settle,
    TakeAppendLock,
)
from services.ha.events import Event
from services.ha.opening import HeldStore

DiskEffect = (
    Copy
    | Settle
    | PersistPromise
    | PersistTable
    | PersistConfirm
    | TakeAppendLock
    | ReleaseAppendLock
    | Cut
    | Resync
)


class ReplicaDisk:
    """Carries out ``DiskEffect``s of one replica."""

    def __init__(self, held: HeldStore, report: Callable[[Event], None]) -> None:
        """held: opened and recovered, byte 0 held. report: takes the events; called in threads of
        this object."""
        self._held, self._report = held, report

    def start(self) -> None:
        """Begin. Effects may be given before."""
        raise NotImplementedError

    def carry_out(self, effect: DiskEffect) -> None:
        """Have it carried out after all that were given before; returns at once."""
        raise NotImplementedError

    def close(self) -> None:
        """End both threads; what is being written is written to its end. Blocks."""
        raise NotImplementedError
