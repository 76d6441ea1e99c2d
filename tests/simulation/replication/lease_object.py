"""The storage of the lease: compare-and-set on one object, over a lossy network.

A request or its answer can be lost, and a write can be applied after its sender gave up or died.
Versions rise by more than one, as if other objects shared the counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.value import Lease, Stored
from tests.simulation.replication.timeline import Timeline

Request = LeaseGet | LeasePut | LeaseCreate


class Weather(NamedTuple):
    """Faults of the requests; probabilities in [0, 1]."""

    delay_max_ms: int = 4
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    """Applied only after the sender gave up."""
    refused: float = 0.0
    """A conflict without another write. An error with unknown outcome counts as answer_lost."""


class LeaseObject:
    """The object and the network to it."""

    def __init__(
        self, timeline: Timeline, applied: Callable[[Stored | None, Stored | None], None]
    ) -> None:
        """applied: called with the object before and after each change."""
        self._timeline, self._applied = timeline, applied
        self.stored: Stored | None = None
        self.weather = Weather()
        self.unreachable: set[str] = set()
        """Nodes whose requests are lost."""
        self.deaf: set[str] = set()
        """Nodes to which answers are lost."""
        self.late_change: Callable[[Lease, Lease], None] | None = None
        """If set, the next change of the set is applied late, and this is called with the old and
        the new lease."""
        self._flying: list[LeasePut] = []
        """Writes under way. Each is applied or refused when it arrives."""
        self._version = 100
        self.requests_count = 0

    def ask(
        self,
        node: str,
        request: Request,
        *,
        timeout_ms: int,
        answer: Callable[[LeaseAnswered], None],
    ) -> None:
        """Send a request of node; answer is called once, at the latest after timeout_ms."""
        timeline, random, weather = self._timeline, self._timeline.random, self.weather
        self.requests_count += 1
        answered = False

        def reply(outcome: LeaseAnswered) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(outcome)

        def arrive() -> None:
            if isinstance(request, LeasePut):
                self._flying.remove(request)
            if node in self.unreachable:
                return
            outcome = self._carry_out(request)
            if node in self.deaf or random.random() < weather.answer_lost:
                return
            timeline.after(random.randint(50, weather.delay_max_ms * 1000), lambda: reply(outcome))

        delay_us = random.randint(50, weather.delay_max_ms * 1000)
        if random.random() < weather.late:
            delay_us += timeout_ms * 1000 + random.randint(0, 4_000_000)
        if self._is_late_change(request):
            delay_us = timeout_ms * 1000 + random.randint(0, 500_000)
        if random.random() >= weather.lost:
            if isinstance(request, LeasePut):
                self._flying.append(request)
            timeline.after(delay_us, arrive)
        unknown = LeaseAnswered(request.request, LeaseOutcome.UNKNOWN, None, "no answer in time")
        timeline.after(timeout_ms * 1000, lambda: reply(unknown))

    def possible(self) -> list[Lease]:
        """Contents that a write under way may give to the object."""
        stored = self.stored
        return [
            put.lease
            for put in self._flying
            if stored is not None
            and (put.base.version, put.base.uid) == (stored.version, stored.uid)
        ]

    def delete(self) -> None:
        """Delete the object, as an operator may by mistake."""
        before, self.stored = self.stored, None
        if before is not None:
            self._applied(before, None)

    def touch(self) -> None:
        """Change something outside the lease: only the version rises."""
        if self.stored is not None:
            self.stored = self.stored._replace(version=self._next_version())

    def replace(self, lease: Lease) -> None:
        """Replace the lease, as an edit by hand does."""
        if self.stored is not None:
            self._store(lease, self.stored.uid)

    def _is_late_change(self, request: Request) -> bool:
        call = self.late_change
        if call is None or not isinstance(request, LeasePut):
            return False
        before = request.base.lease
        if before.epoch != request.lease.epoch or before.in_sync == request.lease.in_sync:
            return False
        self.late_change = None
        call(before, request.lease)
        return True

    def _carry_out(self, request: Request) -> LeaseAnswered:
        stored, number = self.stored, request.request
        refused = self._timeline.random.random() < self.weather.refused
        match request:
            case LeaseGet():
                if stored is None:
                    return LeaseAnswered(number, LeaseOutcome.ABSENT)
                return LeaseAnswered(number, LeaseOutcome.FOUND, stored)
            case LeasePut(_, lease, base):
                if stored is None:
                    return LeaseAnswered(number, LeaseOutcome.ABSENT)
                if (base.version, base.uid) != (stored.version, stored.uid) or refused:
                    return LeaseAnswered(number, LeaseOutcome.CONFLICT)
                return LeaseAnswered(number, LeaseOutcome.APPLIED, self._store(lease, stored.uid))
            case LeaseCreate(_, lease):
                if stored is not None or refused:
                    return LeaseAnswered(number, LeaseOutcome.CONFLICT)
                uid = f"{self._timeline.random.getrandbits(64):016x}"
                return LeaseAnswered(number, LeaseOutcome.APPLIED, self._store(lease, uid))

    def _store(self, lease: Lease, uid: str) -> Stored:
        before = self.stored
        self.stored = Stored(lease, self._next_version(), uid)
        self._applied(before, self.stored)
        return self.stored

    def _next_version(self) -> str:
        self._version += self._timeline.random.randint(1, 3)
        return str(self._version)
