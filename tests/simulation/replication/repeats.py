"""How soon a start of ha does the same again: what came to nothing is tried again, but not at once.

A mistake in a pause breaks no promise. It shows itself as a storm of frames or of writes to a full
disk, which on real machines takes the time of everything else.
"""

from __future__ import annotations

from typing import Final

from services.ha import effects as do
from services.ha.effects import Effect
from services.ha.events import Event, Failed
from tests.simulation.replication.violation import Violation

HEARTBEATS_APART_MS: Final = 50
"""Half of what the plan's times ask for."""
WRITES_APART_MS: Final = 500
"""A quarter of what a promise waits that found no room."""


class Repeats:
    """Of one start of ha."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sent: dict[int, tuple[int, int]] = {}
        """By link: confirm offset that the last frame of a master told, and when it was sent."""
        self._greeted: set[tuple[int, int]] = set()
        """Links and epochs in which it has introduced itself."""
        self._promise: int | None = None
        """Token of the promise that is being written, or was last."""
        self._failed_ms: int | None = None
        """When a promise could not be written, last."""

    def happened(self, event: Event, now_ms: int) -> None:
        """An effect has come to an end."""
        if isinstance(event, Failed) and event.token == self._promise:
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

    def greets(self, link: int, epoch: int) -> None:
        """A slave describes its log to a master."""
        if (link, epoch) in self._greeted:
            raise Violation(f"{self._node} says HELLO twice on link {link} in epoch {epoch}")
        self._greeted.add((link, epoch))

    def does(self, effect: Effect, now_ms: int) -> None:
        """It is about to do that."""
        if not isinstance(effect, do.PersistPromise):
            return
        self._promise = effect.token
        if self._failed_ms is not None and now_ms - self._failed_ms < WRITES_APART_MS:
            raise Violation(
                f"{self._node} writes its promise again {now_ms - self._failed_ms} ms after that "
                "has failed"
            )
