"""Damage below the confirm offset of a master's own log. Pure.

1. A consumer reads a record with a wrong CRC, or a slave rejects the stream of this master, or a
   slave finds that confirmed bytes of the two logs differ.
2. A queue, the network or the slave's log may be damaged instead, so ha reads the log file itself,
   record by record.
3. If a record is damaged, the node reports trouble. It hands over to a healthy member, and becomes
   master again only if there is none.
4. As soon as it follows a healthy master it halts. An operator then has it copied anew.

Damage in the log of a slave halts the slave at once (``following``). A slave also checks the places
at which the logs differ. Step before: the broker's page, STATUS of slaves. Step after:
``switch_orders`` begins a switch.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.effects import CheckLog
from services.ha.core.mastership import Mastership
from services.ha.core.peers import Peers
from services.ha.core.replica_context import DAMAGE, ReplicaContext, damage_sentence
from services.ha.core.states import State

RECHECK_MS: Final = 60_000
"""A place is not checked more often than this: each check reads up to a whole log file."""


class Damage:
    """Requests checks of the log for one start of ha."""

    def __init__(self, context: ReplicaContext, peers: Peers) -> None:
        self._context, self._peers = context, peers
        self._reported: set[tuple[str, int]] = set()
        """Volumes and places of the present reports."""
        self._due: set[tuple[str, int]] = set()
        """Those of them that have not been checked since they were reported."""
        self._checked_ms: dict[tuple[str, int], int] = {}
        """Times of the checks of the last ``RECHECK_MS``."""

    def tick(self, term: Mastership | None) -> None:
        """Request a check of each place at which damage is reported, once per report.

        A place that is reported anew after it was not is checked again, because it may be damaged
        since, but no sooner than ``RECHECK_MS`` after its last check. Otherwise: 1. Two consumers
        retry reads that fail at two places of a sound log. 2. The page shows them in turn. 3. Each
        turn is a new report, and ha reads both files without end.
        """
        context = self._context
        if context.damage or context.halted is not None:
            return
        met = {context.snapshot.damaged_at, *self._places(context.differs_at)}
        if term is not None:
            context.logs_agree()
            # Slaves without a link count too: one that rejects the stream closes its link at once.
            for node in context.names:
                status = None if node == context.name else self._peers.fresh(node)
                met.update(self._places(None if status is None else status.facts.refused_at))
        places = {(context.incarnation, at) for at in met if at is not None}
        self._due = (self._due | (places - self._reported)) & places
        self._reported = places
        checked = self._checked_ms.items()
        self._checked_ms = {
            place: at_ms for place, at_ms in checked if context.now_ms - at_ms < RECHECK_MS
        }
        for place in sorted(self._due - self._checked_ms.keys()):
            self._due.remove(place)
            self._checked_ms[place] = context.now_ms
            context.out.put(CheckLog(place[1]))

    def _places(self, at: int | None) -> list[int]:
        """Return the places to check for damage at ``at`` or up to ``CRC_WINDOW`` bytes before it.

        There is one place per log file, because a check reads one file from its start to the place.
        With small files, the bytes that two nodes compare may lie in many.
        """
        context = self._context
        if at is None or not context.first_offset <= at < context.confirm:
            return []
        before = max(context.first_offset, at - CRC_WINDOW)
        size = context.setup.file_size
        return [*range(before - before % size + size - 1, at, size), at]

    def found(self, detail: str) -> None:
        """Note a damaged record in this node's log, while this node follows no master or is already
        known to be damaged."""
        context = self._context
        if context.state is State.RESYNC:
            return  # it concerns the log that is being emptied
        context.damage = detail
        context.alarm(DAMAGE, damage_sentence(detail))
