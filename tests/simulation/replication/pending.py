"""Requests of clients at one start of a broker that have no answer yet, and their time limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from services.broker.log.term import GrantedTerm
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.broker import Broker

ANSWERED_US: Final = 500_000
"""Time after the timeout of a send within which a running broker has answered."""
WOKEN_US: Final = 1_000_000
"""Time within which a held pull is answered after a new message or the end of its term."""


@dataclass
class HeldPull:
    """A pull that waits for the next message of a queue."""

    topic: str
    queue: int
    offset: int
    parts: Any
    """The components of the term of the request."""
    idle_us: int
    """When the pull last had a reason to wait."""


@dataclass
class _OfTerm:
    """A request that waits until the group has confirmed what it appended."""

    term: GrantedTerm
    valid_us: int
    """When the term was last valid."""
    limit_us: int
    """Longest time for an answer after the end of the term."""


class PendingRequests:
    """The requests of one start of a broker that wait for an answer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._machine, self._process = broker.machine, broker.process
        self.waiting: dict[asyncio.Task[Any], int | None] = {}
        """Sends without an answer and the time limit of each; None while it may still wait for the
        creation of a topic or a file, which has its own limits."""
        self.held: dict[asyncio.Task[Any], HeldPull] = {}
        """Pulls that wait."""
        self._of_term: dict[asyncio.Task[Any], _OfTerm] = {}
        """Requests that wait for the group."""

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Forget a request that has ended. An unexpected error ends the process."""
        self.waiting.pop(task, None)
        self.held.pop(task, None)
        self._of_term.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._process.alive:
            self._broker.failed(error)

    def check_answered(self) -> None:
        """Check that every send which has stored something is answered in time."""
        now_us = self._machine.timeline.now_us
        if self._process.paused or now_us - self._process.resumed_us < ANSWERED_US:
            return
        waiting = [answered_us for answered_us in self.waiting.values() if answered_us is not None]
        late_us = now_us - min(waiting, default=now_us)
        if late_us > 0:
            raise Violation(
                f"a send at {self._machine.name} has no answer {late_us} µs after its time limit"
            )

    def wait_for_group(self, task: asyncio.Task[Any], limit_us: int = WOKEN_US) -> None:
        """Register a request that must be answered at the latest when the present term ends."""
        term = None if self._broker.node is None else self._broker.node._term
        if term is not None and not task.done():
            self._of_term[task] = _OfTerm(term, self._machine.timeline.now_us, limit_us)
            task.add_done_callback(self.ended)

    def check_terms(self) -> None:
        """Check that requests which wait for the group are answered when their term ends."""
        now_us = self._machine.timeline.now_us
        for asked in self._of_term.values():
            if asked.term.is_valid or self._process.paused or self._machine.is_full:
                asked.valid_us = now_us
            elif now_us - max(asked.valid_us, self._process.resumed_us) > asked.limit_us:
                raise Violation(
                    f"a request at {self._machine.name} has no answer, and epoch "
                    f"{asked.term.epoch} ended {now_us - asked.valid_us} µs ago"
                )
