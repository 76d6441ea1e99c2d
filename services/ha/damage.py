"""Damage in what this node's log holds below the confirm offset, met while it is the master. Pure.

1. A consumer reads a record whose CRC is wrong, or a slave refuses what this master sent it. 2. A
queue or the network may be damaged instead: ha reads the log file itself, record by record. 3. If a
record is damaged, the node has trouble: it hands over to a sound member, and is made master only if
no sound one stands. 4. As soon as it follows a sound master it halts, and an operator has it copied
anew.

Of a slave, damage that is found halts it at once (``following``). Step before: the broker's page,
STATUS of slaves. Step after: ``operator`` hands over.
"""

from __future__ import annotations

from typing import Final

from services.ha.effects import CheckLog
from services.ha.failover import State
from services.ha.following import LOGS_DIFFER
from services.ha.mastership import Mastership
from services.ha.own import DAMAGE, Halt, Own, damage_sentence
from services.ha.peers import Peers

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
        met = set()
        if own.sensed.damaged_at is not None:
            met.add((own.incarnation, own.sensed.damaged_at))
        if term is not None:
            # Also of slaves without a link: one that refuses the stream closes it at once.
            for node in own.setup.names:
                status = None if node == own.name else self._peers.fresh(node)
                at = None if status is None else status.facts.get("refused_at")
                if isinstance(at, int) and own.first_offset <= at < own.confirm:
                    met.add((own.incarnation, at))
        if len(self._checked) > CHECKED_MAX:
            self._checked.clear()
        for place in sorted(met - self._checked):
            self._checked.add(place)
            own.out.put(CheckLog(place[1]))

    def found(self, detail: str) -> None:
        """A record of the own log is damaged, and this node does not follow anybody, or was known
        to be damaged."""
        own = self._own
        if own.state is State.RESYNC:
            return  # of the log that is being emptied
        own.damage = detail
        own.alarm(DAMAGE, damage_sentence(detail))
        if own.halted is not None and own.halted.code == LOGS_DIFFER:
            own.halted = Halt(
                DAMAGE, damage_sentence(detail)
            )  # now it is known which of the two it is
