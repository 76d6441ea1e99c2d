"""Damage in what this node's log holds below the confirm offset, met while it is the master. Pure.

1. A consumer reads a record whose CRC is wrong, or a slave refuses what this master sent it, or
finds that confirmed bytes of the two logs differ. 2. A queue, the network or the slave's log may be
damaged instead: ha reads the log file itself, record by record. 3. If a record is damaged, the node
has trouble: it hands over to a sound member, and is made master only if no sound one stands. 4. As
soon as it follows a sound master it halts, and an operator has it copied anew.

Of a slave, damage that is found halts it at once (``following``); it looks where the logs differ,
too. Step before: the broker's page, STATUS of slaves. Step after: ``operator`` hands over.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.effects import CheckLog
from services.ha.core.failover import State
from services.ha.core.mastership import Mastership
from services.ha.core.own import DAMAGE, Own, damage_sentence
from services.ha.core.peers import Peers

CHECKED_MAX: Final = 1000
"""Places that are remembered as looked at; then all are forgotten, and may be looked at again."""


class Damage:
    """Of one start of ha."""

    def __init__(self, own: Own, peers: Peers) -> None:
        self._own, self._peers = own, peers
        self._checked: set[tuple[str, int]] = set()

    def tick(self, term: Mastership | None) -> None:
        """Have the log looked at where somebody met damage, each place once."""
        own = self._own
        if own.damage or own.halted is not None:
            return
        met = {own.sensed.damaged_at, *self._places(own.differs_at)}
        if term is not None:
            own.logs_agree()
            # Also of slaves without a link: one that refuses the stream closes it at once.
            for node in own.setup.names:
                status = None if node == own.name else self._peers.fresh(node)
                at = None if status is None else status.facts.get("refused_at")
                met.update(self._places(at if isinstance(at, int) else None))
        if len(self._checked) > CHECKED_MAX:
            self._checked.clear()
        for at in sorted(at for at in met if at is not None):
            if (own.incarnation, at) not in self._checked:
                self._checked.add((own.incarnation, at))
                own.out.put(CheckLog(at))

    def _places(self, at: int | None) -> list[int]:
        """Where the log is checked for damage at ``at`` or up to ``CRC_WINDOW`` bytes before it.

        One place per log file, since a check reads one file from its start to the place. With small
        files, what two nodes compare may cover many.
        """
        own = self._own
        if at is None or not own.first_offset <= at < own.confirm:
            return []
        before = max(own.first_offset, at - CRC_WINDOW)
        size = own.setup.file_size
        return [*range(before - before % size + size - 1, at, size), at]

    def found(self, detail: str) -> None:
        """A record of the own log is damaged, and this node does not follow anybody, or was known
        to be damaged."""
        own = self._own
        if own.state is State.RESYNC:
            return  # of the log that is being emptied
        own.damage = detail
        own.alarm(DAMAGE, damage_sentence(detail))
