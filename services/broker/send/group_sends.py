"""Checks of a send in a group: may it be stored, is it confirmed, may success be reported.

The rules are in ``promises``; this class applies them to the term and to waiting sends. Before:
``sender`` has a request. Step after: ``sender`` answers it, in the step in which ``reached``
allowed it.
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
    """The sends of one term."""

    def __init__(
        self, term: Term, confirmer: Confirmer, flushed: Callable[[], PhysicalOffset]
    ) -> None:
        """flushed: end of what is on this node's disk."""
        self._term = term
        self._confirmer = confirmer
        self._flushed = flushed

    def admit(self, asked: AckLevel | None) -> Promise:
        """Return the level that the send is to wait for; asked: None: the default.

        Raises Fenced, SwitchingOver, NotEnoughReplicas: nothing was stored.
        """
        self._term.check_sends()
        return promises.promise(asked, self._term.in_sync)

    def confirmed(self, end: PhysicalOffset, deadline: float) -> asyncio.Future[bool]:
        """Return a future: True once the group has confirmed end; see ``Confirmer.durable``."""
        return self._confirmer.durable(end, deadline)

    def is_on_disk(self, end: PhysicalOffset) -> bool:
        """Return whether the log is on this node's disk up to end."""
        return self._flushed() >= end

    def reached(self, promised: Promise) -> Reached | None:
        """Return the level that may be reported once it is reached; None: no success.

        The response must leave in the same step of the loop; after an await, call it again.
        """
        return promises.reached(promised, self._term.in_sync) if self._term.may_answer else None
