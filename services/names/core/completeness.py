"""Whether an instance knows enough to say that a topic does not exist. Pure.

A name service starts with an empty table. If it answered "no such topic" then, clients would give
up on topics that exist. So it waits for the broker groups that its configuration and the other
instances name. A configured one is awaited without a limit: the operator has said that it exists.
One that only another instance named is awaited for EXPIRE_S: if it lives, it registers by then.
Without configured ones the instance waits for SETTLE_S: each node that runs has registered then.

A configured one whose entry expires is awaited again. If the answers were complete without it,
clients would count its queues out and send messages with a sharding key elsewhere until it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from shared.cluster.routes import EXPIRE_S, RENEW_S

SETTLE_S: Final = RENEW_S + 5.0
"""Time after a start in which every node that runs registers."""


class Completeness:
    """Broker groups that are expected and not registered."""

    def __init__(self, configured: Iterable[str], now_s: float) -> None:
        """now_s: monotonic clock at the start."""
        self._configured = frozenset(configured)
        self._missing = set(self._configured)
        self._settles_s, self._until_s = now_s + SETTLE_S, now_s + EXPIRE_S
        self._settled = bool(self._configured)
        """Whether no other broker groups than the missing ones may be unheard of."""
        self._asks_peers = True

    @property
    def complete(self) -> bool:
        """Whether every expected broker group is registered."""
        return self._settled and not self._missing and not self._asks_peers

    @property
    def missing(self) -> list[str]:
        """The expected broker groups that are not registered, by name."""
        return sorted(self._missing)

    def note_peers(self, named: Iterable[str], known: Collection[str]) -> None:
        """Expect what the other instances name; called once, without names if none has answered.

        known: broker groups that have registered already.
        """
        self._asks_peers = False
        self._missing |= set(named) - set(known)

    def note_heard(self, group: str) -> bool:
        """Note that a broker group has registered; return whether it was missing."""
        was_missing = group in self._missing
        self._missing.discard(group)
        return was_missing

    def note_gone(self, groups: Iterable[str]) -> bool:
        """Await those that are configured again; return whether there are any. groups: expired."""
        awaited = self._configured.intersection(groups)
        self._missing |= awaited
        return bool(awaited)

    def expire(self, now_s: float) -> bool:
        """End what is awaited for a time only; return whether anything was."""
        settles = not self._settled and now_s > self._settles_s
        self._settled |= settles
        given_up = self._missing - self._configured if now_s > self._until_s else frozenset()
        self._missing -= given_up
        return settles or bool(given_up)
