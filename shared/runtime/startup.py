"""``GET /startup``: reports whether the start makes progress or is stuck.

An orchestrator kills a process whose start takes too long. The duration of recovery depends on the
log, so this probe checks whether recovery advances, not how long it has taken. It answers 200 while
recovery advances, while the process waits for another process of its node, and once recovery is
over. It answers 503 before recovery has begun, and when nothing has advanced for ``STILL_MAX_S``.
The state is evaluated on request: each call compares with the previous one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from shared.runtime.health import Health

STILL_MAX_S: Final = 60.0
"""A recovery that has read nothing for this long hangs: the disk does not answer, or a bug."""
BEFORE: Final = "starting"
UNDER_WAY: Final = frozenset({"recovering", "catching-up", "promoting"})
"""States in which progress is checked; all later ones mean that recovery has ended or failed."""


class Startup(NamedTuple):
    """The answer to one call."""

    ok: bool
    body: dict[str, object]


class StartupProbe:
    """Remembers the last state of recovery, to detect progress."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._seen: tuple[object, ...] = ()
        self._moved_at = 0.0

    def look(self) -> Startup:
        """Evaluate the start as it is now."""
        health = self._health
        recovery, now = health.recovery, health.clock.monotonic()
        seen = (health.state, recovery.done_bytes, recovery.total_bytes, tuple(health.reasons))
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        still_s = now - self._moved_at
        if health.state == BEFORE:
            # A reason names what the process waits for: the store, the other process's recovery,
            # or a role. That may take as long as a copy of the log; a restart would not help.
            ok, phase = bool(health.reasons), "waiting" if health.reasons else "not-begun"
        elif health.state in UNDER_WAY:
            ok = still_s < STILL_MAX_S
            phase = "advancing" if ok else "stuck"
        else:
            ok, phase = True, "over"
        body: dict[str, object] = {
            "startup": phase,
            "state": health.state,
            "waits_for": [reason._asdict() for reason in health.reasons],
            "recovery": recovery.as_dict(),
            "still_seconds": round(still_s, 1),
        }
        return Startup(ok, body)
