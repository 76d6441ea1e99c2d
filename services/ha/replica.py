"""One replica of a group: every decision of ha, as one object (docs/replication.md). Pure.

Events in, effects out (``events``, ``effects``), the boot-time clock as an argument. The shell
carries effects out in their order; the simulation runs the same object on a simulated world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.ha.effects import Effect
from services.ha.events import Event
from services.ha.setup import Found, LogBytes, Setup

__all__ = ["Found", "LogBytes", "Replica", "Setup"]


class Replica:
    """One start of ha on one volume. Byte 0 is held and the log recovered when it is made."""

    def __init__(
        self, setup: Setup, found: Found, *, log: LogBytes, random: Callable[[], float]
    ) -> None:
        """random: uniform in [0, 1), for the waits that keep candidates apart."""
        self.setup, self.found = setup, found
        self._log, self._random = log, random

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done because of event. The first one of all begins."""
        raise NotImplementedError

    def status(self, now_ms: int) -> dict[str, Any]:
        """The answer to ``GET /v1/cluster``."""
        raise NotImplementedError
