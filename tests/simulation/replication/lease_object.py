"""The lease of one group as it really is, the faults of its requests, and the judge of answers.

The lease is kept by the product's own stores: ``lease_api`` has an API server of Kubernetes under
them, and ``lease_volume`` a directory that the nodes share. Whatever a store does to a lease on
the way, a node must read what was written, and nothing that was not the newest meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from services.ha.core.events import LeaseOutcome
from services.ha.lease.interface import LeaseStore, Outcome
from services.ha.lease.value import Lease, Stored
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha


class Weather(NamedTuple):
    """Faults of the requests; probabilities in [0, 1]."""

    delay_max_ms: int = 4
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    """Applied only after the sender gave up."""
    refused: float = 0.0
    """A conflict without another write. An error with unknown outcome counts as answer_lost."""
    sync_fails: float = 0.0
    """Of a directory: the change is made, and it is not known whether it is on the disk."""


class Fate(NamedTuple):
    """What becomes of a request that gets an error at once."""

    is_write: bool
    is_applied: bool


class _Write(NamedTuple):
    """A write under way."""

    process: Process
    lease: Lease
    base: Stored


class LeaseObject:
    """The content and its past. Each start of ha has a store of its own."""

    name = "simulated-g0"

    def __init__(
        self, timeline: Timeline, applied: Callable[[Stored | None, Stored | None], None]
    ) -> None:
        """applied: called with the object before and after each change."""
        self._timeline, self._applied = timeline, applied
        self._random = Random(timeline.seed)
        """Draws what does not change the order of events elsewhere."""
        self.stored: Stored | None = None
        self.weather = Weather()
        self.unreachable: set[str] = set()
        """Nodes whose requests are lost."""
        self.deaf: set[str] = set()
        """Nodes to which answers are lost."""
        self.fates: dict[str, list[Fate]] = {}
        """By node, what becomes of its next requests, in this order."""
        self.late_change: Callable[[Lease, Lease], None] | None = None
        """If set, the next change of the set is applied late, and this is called with the old and
        the new lease."""
        self.fails_once = False
        """Whether the next change is applied and answered with an error; a renewal is none."""
        self._wanted: dict[int, Lease] = {}
        """What each attempt to write wanted, by ``renewed``."""
        self._late: set[int] = set()
        """Attempts that are late changes, by ``renewed``."""
        self._flying: dict[int, _Write] = {}
        """Writes under way, by ``renewed``. Each is applied or refused when it arrives."""
        self._versions: dict[tuple[str, str], Stored] = {}
        """All versions, by uid and version."""
        self._replaced_us: dict[tuple[str, str], int] = {}
        """When each was replaced by the next one."""
        self._known: dict[str, Stored] = {}
        """The version that each node read or wrote last."""
        self._made_us = 0
        """When the object was last created."""

    # -- for the services ------------------------------------------------------------------

    def store_of(self, ha: Ha) -> LeaseStore:
        """Return the store of one start of ha."""
        raise NotImplementedError

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Let the stores work on this object."""
        raise NotImplementedError
        yield

    def sends(self, process: Process, lease: Lease, base: Stored | None) -> None:
        """Note a write before it is sent. base: None for a creation."""
        self._wanted[lease.renewed] = lease
        if base is None:
            return
        self._flying[lease.renewed] = _Write(process, lease, base)
        call, before = self.late_change, base.lease
        if call is None or before.epoch != lease.epoch or before.in_sync == lease.in_sync:
            return
        self.late_change = None
        self._late.add(lease.renewed)
        call(before, lease)

    def check_answer(self, node: str, begun_us: int, wanted: Lease | None, is_: Outcome) -> None:
        """Check the answer to a request that began at that time. wanted: what it was to write."""
        stored, now = is_.stored, self.stored
        match is_.outcome:
            case LeaseOutcome.ABSENT if now is not None and self._made_us < begun_us:
                raise Violation(f"{node} takes the lease for absent, but it is {now}")
            case LeaseOutcome.CONFLICT if now is not None and now.lease == wanted:
                raise Violation(f"{node} takes its write for refused, but the lease is {now}")
            case LeaseOutcome.FOUND | LeaseOutcome.APPLIED:
                assert stored is not None
                key = stored.uid, stored.version
                if self._versions.get(key) != stored:
                    raise Violation(f"{node} reads {stored}, but that is {self._versions.get(key)}")
                if self._replaced_us.get(key, begun_us) < begun_us:
                    raise Violation(f"{node} reads the lease {stored}, which is now {now}")
                if is_.outcome is LeaseOutcome.APPLIED and stored.lease != wanted:
                    raise Violation(f"{node} was to write {wanted}, and has written {stored}")
                self._known[node] = stored

    def power_cut(self) -> None:
        """Note a power cut that ended all nodes at once."""

    # -- for the world ---------------------------------------------------------------------

    def possible(self) -> list[Lease]:
        """Contents that a write under way may give to the object."""
        stored = self.stored
        return [
            put.lease
            for put in self._flying.values()
            if stored is not None
            and (put.base.version, put.base.uid) == (stored.version, stored.uid)
        ]

    def shown_role(self, node: str) -> str | None:
        """Role that the pod of a node shows; None if nodes are no pods."""
        return None

    def is_known_to(self, node: str) -> bool:
        """Whether a node has read the present version, or has the answer to its write."""
        return self._known.get(node) == self.stored

    def delete(self) -> None:
        """Delete the object, as an operator may by mistake."""
        raise NotImplementedError

    def touch(self) -> None:
        """Change something outside the lease, as another tool does."""
        raise NotImplementedError

    def replace(self, lease: Lease) -> None:
        """Replace the lease by an earlier one, as an operator with a backup does."""
        raise NotImplementedError

    def _fate_of(self, node: str, *, is_write: bool) -> Fate | None:
        """The fate of a request; None if it gets its answer."""
        fates = self.fates.get(node)
        return fates.pop(0) if fates and fates[0].is_write == is_write else None

    def _fails(self) -> bool:
        """Whether the change that was just applied is answered with an error."""
        fails, self.fails_once = self.fails_once, False
        return fails

    def _delay_us(self) -> int:
        return self._timeline.random.randint(50, self.weather.delay_max_ms * 1000)

    def _becomes(self, stored: Stored | None) -> None:
        """Note a change of the object and have it judged."""
        before, self.stored = self.stored, stored
        now_us = self._timeline.now_us
        if before is not None:
            self._replaced_us[before.uid, before.version] = now_us
        if stored is not None:
            self._versions[stored.uid, stored.version] = stored
            self._flying.pop(stored.lease.renewed, None)
        if stored is not None and before is None:
            self._made_us = now_us
        self._applied(before, stored)


def is_change(before: Stored | None, now: Stored | None) -> bool:
    """Whether more than ``renewed`` differs."""
    if before is None or now is None:
        return before is not now
    return before.lease._replace(renewed=0) != now.lease._replace(renewed=0)
