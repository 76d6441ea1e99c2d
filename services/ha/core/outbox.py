"""Effects of one handled event in their order, and the continuations of answered ones. Pure.

Step before: the parts of the core put effects. Step after: ``replica`` returns them to the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.effects import Effect
from services.ha.core.events import Done, Failed

NO_ROOM: Final = frozenset({"disk-full", "read-only-disk"})
"""Codes of writes that failed because the disk had no room, which may change."""
Unwritten = Callable[[str, str], None]
"""Called with code and detail of a failed write."""


class Outbox:
    """Effects in their order, and the continuations of those that are answered."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        """failed: called with code and detail of an effect that failed."""
        self._failed = failed
        self._effects: list[Effect] = []
        self._token = 0
        self._then: dict[int, tuple[Callable[[Done], None], Unwritten | None]] = {}

    def put(self, *effects: Effect) -> None:
        """Add effects, to be run in this order after all earlier ones."""
        self._effects += effects

    def token(self, then: Callable[[Done], None], unwritten: Unwritten | None = None) -> int:
        """Return a token for an effect; ``then`` is called with its answer.

        unwritten: called instead if the disk had no room, which may change. Every other failure
        goes to ``failed``, and this one as well if unwritten is None.
        """
        self._token += 1
        self._then[self._token] = then, unwritten
        return self._token

    def ask(
        self,
        make: Callable[[int], Effect],
        then: Callable[[Done], None],
        unwritten: Unwritten | None = None,
    ) -> int:
        """Add an effect that is answered; return its token."""
        token = self.token(then, unwritten)
        self._effects.append(make(token))
        return token

    def awaits(self, token: int) -> bool:
        """Return whether the effect with that token has not been answered."""
        return token in self._then

    def answered(self, event: Done | Failed) -> None:
        """Handle the answer to an effect."""
        found = self._then.pop(event.token, None)
        if found is None:
            return
        then, unwritten = found
        if isinstance(event, Done):
            then(event)
        elif unwritten is not None and event.code in NO_ROOM:
            unwritten(event.code, event.detail)
        else:
            self._failed(event.code, event.detail)

    def take(self) -> list[Effect]:
        """Return all effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
