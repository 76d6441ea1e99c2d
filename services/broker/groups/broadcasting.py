"""A broadcasting group: every member has every queue of its topics. Pure.

Queues are not shared out, so no queue has an owner or is ever in transit, and no offset is
committed: each member keeps track of its own position. Before and after: as ``membership``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from services.broker.groups.group_membership import NOTHING, Change, GroupMembership
from tidemark.offsets import Queue


class Broadcasting(GroupMembership):
    """The members of one broadcasting group."""

    def __init__(self, next_generation: Callable[[], int]) -> None:
        super().__init__(next_generation)
        self._had: dict[str, frozenset[Queue]] = {}

    def assignment(self, name: str) -> list[Queue]:
        """Return the member's queues, sorted."""
        return sorted(self._had.get(name, ()))

    def owner(self, queue: Queue) -> str | None:
        """Return None: no member owns a queue."""
        return None

    def holds(self, name: str, queue: Queue) -> bool:
        """Return whether the member has the queue."""
        return queue in self._had.get(name, ())

    def holder_number(self, queue: Queue) -> int | None:
        """Return None: no member owns a queue."""
        return None

    @property
    def in_transit(self) -> int:
        """Return 0: no queue changes its owner."""
        return 0

    def _plan(self, now_ms: int, claims: Iterable[Queue], claimant: str) -> Change:
        granted: list[tuple[Queue, str]] = []
        revoked: list[tuple[Queue, str]] = []
        has: dict[str, frozenset[Queue]] = {}
        for member in self.members.values():
            has[member.name] = frozenset(
                (topic, number) for topic in member.topics for number in self.queues.get(topic, ())
            )
        for name, queues in has.items():
            had = self._had.get(name, frozenset())
            granted += [(queue, name) for queue in sorted(queues - had)]
            revoked += [(queue, name) for queue in sorted(had - queues)]
        for name in self._had.keys() - has.keys():
            revoked += [(queue, name) for queue in sorted(self._had[name])]
        self._had = has
        if not granted and not revoked:
            return NOTHING
        self.generation = self._next_generation()
        return Change(granted, revoked)

    def _release(
        self, now_ms: int, name: str, holding: Collection[Queue] | None, knows: int | None
    ) -> Change:
        return NOTHING

    def _overdue(self, now_ms: int) -> Change:
        return NOTHING

    def _deadlines(self) -> Iterable[int]:
        return ()
