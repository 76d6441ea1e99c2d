"""How soon a start of ha does the same again: what came to nothing is tried again, but not at once.

A mistake in a pause breaks no promise. It shows itself as a storm of frames or of writes to a full
disk, which on real machines takes the time of everything else.
"""

from __future__ import annotations

from typing import Final

from services.ha.core import effects as do
from services.ha.core.effects import Effect, LeasePut
from services.ha.core.events import Event, Failed
from services.ha.lease.value import Member
from tests.simulation.replication.violation import Violation

HEARTBEATS_APART_MS: Final = 50
"""Half of what the plan's times ask for."""
GROWTHS_APART_MS: Final = 500
"""Half of what a member waits that could not be added."""
TRIED_WITHIN_MS: Final = 3_000
TRIES_MAX: Final = 10
"""Pauses of 100, 200, 400, 800 and then 1000 ms are seven tries, and the pauses may begin anew once
by an order."""
FENCES_MAX: Final = 2
"""By a switch, and by what ends its term before the switch is over."""
WRITES_APART_MS: Final = 500
"""A quarter of what a promise waits that found no room."""


class Repeats:
    """Of one start of ha."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sent: dict[int, tuple[int, int]] = {}
        """By link: confirm offset that the last frame of a master told, and when it was sent."""
        self._greeted: dict[tuple[int, int], tuple[int, int]] = {}
        """By link and epoch in which it has introduced itself: epochs of the log that it told."""
        self._added: dict[tuple[int, Member], tuple[str, int]] = {}
        """By epoch and member that was to be added: version of the lease, and when it was asked."""
        self._tried: dict[str, tuple[int, list[int]]] = {}
        """By node: the epoch, and when a connection was tried that came to nothing."""
        self._fences = 0
        """Since its last grant, or since it asked for a term."""
        self.promise: int | None = None
        """Token of the promise that is being written, or was last."""
        self._failed_ms: int | None = None
        """When a promise could not be written, last."""

    def happened(self, event: Event, now_ms: int) -> None:
        """An effect has come to an end."""
        if isinstance(event, Failed) and event.token == self.promise:
            self._failed_ms = now_ms

    def sends(self, link: int, confirm: int, now_ms: int, *, empty: bool) -> None:
        """A frame of a master. empty: a heartbeat, or to tell a new confirm offset."""
        before, sent_ms = self._sent.get(link, (-1, 0))
        if empty and before == confirm and now_ms - sent_ms < HEARTBEATS_APART_MS:
            raise Violation(
                f"{self._node} has nothing to tell on link {link}, and sends a frame "
                f"{now_ms - sent_ms} ms after another one"
            )
        self._sent[link] = confirm, now_ms

    def greets(self, link: int, epoch: int, epochs_count: int, end: int) -> None:
        """A slave describes its log to a master; again only if it has found less of it to be the
        same."""
        before = self._greeted.get((link, epoch))
        if before is not None and epochs_count >= before[0] and end >= before[1]:
            raise Violation(f"{self._node} says HELLO twice on link {link} in epoch {epoch}")
        self._greeted[link, epoch] = epochs_count, end

    def connects(self, node: str, epoch: int, now_ms: int) -> None:
        """A connection is tried again behind a pause, and ever more seldom. In another epoch a node
        may be tried at once: it may be the new master."""
        known_epoch, tried = self._tried.get(node, (epoch, []))
        since = [at_ms for at_ms in tried if now_ms - at_ms < TRIED_WITHIN_MS]
        since = [*since, now_ms] if known_epoch == epoch else [now_ms]
        self._tried[node] = epoch, since
        if len(since) > TRIES_MAX:
            raise Violation(
                f"{self._node} connects to {node} {len(since)} times in {TRIED_WITHIN_MS} ms"
            )

    def connected(self, node: str) -> None:
        """A connection that was tried is there."""
        self._tried.pop(node, None)

    def _asks(self, put: LeasePut, now_ms: int) -> None:
        """A master wants another set; of one version it is asked again until it is known."""
        if put.lease.epoch != put.base.lease.epoch:
            self._fences = 0  # a term that ends before its first grant is fenced once more
            return
        for member in sorted({*put.lease.in_sync} - {*put.base.lease.in_sync}):
            version, asked_ms = self._added.get((put.lease.epoch, member), ("", -GROWTHS_APART_MS))
            if version == put.base.version:
                continue  # the same write, tried until its outcome is known
            if now_ms - asked_ms < GROWTHS_APART_MS:
                raise Violation(
                    f"{self._node} asks to add {member.node} again, {now_ms - asked_ms} ms after "
                    "that came to nothing"
                )
            self._added[put.lease.epoch, member] = put.base.version, now_ms

    def does(self, effect: Effect, now_ms: int) -> None:
        """It is about to do that."""
        match effect:
            case LeasePut():
                self._asks(effect, now_ms)
            case do.Grant() | do.LeaseCreate():
                self._fences = 0
            case do.Fence():
                self._fences += 1
                if self._fences > FENCES_MAX:
                    raise Violation(f"{self._node} fences its broker {self._fences} times")
        if not isinstance(effect, do.PersistPromise):
            return
        self.promise = effect.token
        if self._failed_ms is not None and now_ms - self._failed_ms < WRITES_APART_MS:
            raise Violation(
                f"{self._node} writes its promise again {now_ms - self._failed_ms} ms after that "
                "has failed"
            )
