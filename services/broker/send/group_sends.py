"""What a send asks its group: may it be stored, is it confirmed, may success be said now.

The rules are ``promises``; here they meet the term and the line of those who wait. Before:
``sender`` has a request. After: ``sender`` answers it, in the step in which ``reached`` said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.broker.log.confirmer import Confirmer
from services.broker.log.term import Term
from services.broker.send import promises
from services.broker.send.promises import Promise, Reached
from services.broker.send.request import AckLevel
from tidemark.offsets import PhysicalOffset


class GroupSends:
    """Sends of one term."""

    def __init__(
        self, term: Term, confirmer: Confirmer, flushed: Callable[[], PhysicalOffset]
    ) -> None:
        """flushed: end of what is on this node's disk."""
        self._term = term
        self._confirmer = confirmer
        self._flushed = flushed

    def admit(self, asked: AckLevel | None) -> Promise:
        """What the send is to wait for; asked: None: nothing in particular.

        Raises Fenced, SwitchingOver, NotEnoughReplicas: nothing was stored.
        """
        self._term.check_sends()
        return promises.promise(asked, self._term.in_sync)

    def confirmed(self, end: PhysicalOffset, deadline: float) -> asyncio.Future[bool]:
        """True once the group has confirmed what ends at end; see ``Confirmer.durable``."""
        return self._confirmer.durable(end, deadline)

    def is_on_disk(self, end: PhysicalOffset) -> bool:
        """Whether what ends at end is on this node's disk."""
        return self._flushed() >= end

    def reached(self, promised: Promise) -> Reached | None:
        """What may be answered now that the level is reached; None: no success.

        The answer leaves in the same step of the loop: whoever awaits in between asks again.
        """
        return promises.reached(promised, self._term.in_sync) if self._term.may_answer else None
