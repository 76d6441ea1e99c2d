"""``GET /startup``: may this start go on, or has it got stuck before it did anything of use.

An orchestrator ends a process whose start takes too long. How long recovery takes depends on the
log, so this judges whether it moves and not how long it has taken: 200 once it is over, while it
advances, and while the process waits for another one of its node; 503 before it has begun, and when
nothing has moved for ``STILL_MAX_S``. Judged when asked: each call compares with the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from shared.runtime.health import Health

STILL_MAX_S: Final = 60.0
"""A recovery that has read nothing for so long hangs: a disk that does not answer, a bug."""
BEFORE: Final = "starting"
UNDER_WAY: Final = frozenset({"recovering", "catching-up", "promoting"})
"""States whose progress counts; all later ones mean that recovery is over, well or not."""


class Startup(NamedTuple):
    """What one call is answered."""

    ok: bool
    body: dict[str, object]


class StartupProbe:
    """Remembers where recovery was, to see whether it has moved."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._seen: tuple[object, ...] = ()
        self._moved_at = 0.0

    def look(self) -> Startup:
        """Judge the start as it is now."""
        health = self._health
        recovery, now = health.recovery, health.clock.monotonic()
        seen = (health.state, recovery.done_bytes, recovery.total_bytes, tuple(health.reasons))
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        still_s = now - self._moved_at
        if health.state == BEFORE:
            # A reason is what it waits for: the store, the other's recovery, a role. That may take
            # as long as a copy of the whole log takes, and a new start would only wait again.
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
