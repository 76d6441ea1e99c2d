"""State of a container's probes (started, ready, or to be killed), and its backoff. Pure.

The rules are those of the kubelet: one timer per probe, thresholds of consecutive results, liveness
and readiness start after the startup probe succeeded, and a probe that caused a kill pauses until
the next run. The shell executes the probes before, and starts or kills containers after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from drills.pods.plans import Container, Probe

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0
FORGOTTEN_S: Final = 600.0


class Kind(StrEnum):
    """Kind of probe, with the name in the manifest."""

    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class Judgement(NamedTuple):
    """Effect of a probe's result."""

    unhealthy: bool = False
    """The probe failed, which is recorded as an event."""
    kill: bool = False
    """The failure threshold is reached: the container must be killed."""


@dataclass(slots=True)
class _Watch:
    """One probe of one run of a container."""

    probe: Probe
    due_at: float
    result: bool
    last: bool | None = None
    in_a_row: int = 0
    held: bool = False

    def take(self, succeeded: bool) -> bool:
        """Count a result; return whether a threshold is reached."""
        self.in_a_row = self.in_a_row + 1 if succeeded == self.last else 1
        self.last = succeeded
        needed = self.probe.success_threshold if succeeded else self.probe.failure_threshold
        if self.in_a_row < needed:
            return False
        self.result = succeeded
        return True


@dataclass(slots=True)
class Probes:
    """All probes of one run of a container; times are seconds of one monotonic clock."""

    container: Container
    started_at: float
    _watches: dict[Kind, _Watch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, probe, first in (
            (Kind.STARTUP, self.container.startup, False),
            (Kind.LIVENESS, self.container.liveness, True),
            (Kind.READINESS, self.container.readiness, False),
        ):
            if probe is not None:
                due = self.started_at + probe.initial_delay_s
                self._watches[kind] = _Watch(probe, due, first)

    @property
    def started(self) -> bool:
        """Whether the startup probe has succeeded, if there is one."""
        startup = self._watches.get(Kind.STARTUP)
        return startup is None or startup.result

    @property
    def ready(self) -> bool:
        readiness = self._watches.get(Kind.READINESS)
        return self.started and (readiness is None or readiness.result)

    def due(self, now: float, *, terminating: bool = False) -> list[tuple[Kind, Probe]]:
        """Return the probes that are due, each once per period. terminating: the pod is
        terminating, so only readiness is probed.
        """
        asked: list[tuple[Kind, Probe]] = []
        for kind, watch in self._watches.items():
            if now < watch.due_at:
                continue
            watch.due_at += watch.probe.period_s
            if watch.due_at <= now:
                watch.due_at = now + watch.probe.period_s
            if watch.held or (terminating and kind is not Kind.READINESS):
                continue
            if (kind is Kind.STARTUP) == self.started:
                continue
            asked.append((kind, watch.probe))
        return asked

    def take(self, kind: Kind, *, succeeded: bool) -> Judgement:
        watch = self._watches[kind]
        reached = watch.take(succeeded)
        if succeeded:
            return Judgement()
        kill = reached and kind is not Kind.READINESS
        if kill:
            watch.held = True
            watch.in_a_row = 0
        return Judgement(unhealthy=True, kill=kill)


@dataclass(slots=True)
class Backoff:
    """Restart backoff of one container of one pod; times are seconds of one monotonic clock.

    The first restart is immediate, the next after 10 s, and the delay doubles each time up to five
    minutes. After a run of ten minutes the delay is reset.
    """

    _wait_s: float = 0.0

    def ended(self, *, started_at: float, now: float) -> float:
        """Record the end of a run; return when the next one may start."""
        if now - started_at > FORGOTTEN_S:
            self._wait_s = 0.0
        at = now + self._wait_s
        self._wait_s = min(max(FIRST_S, self._wait_s * 2), LONGEST_S)
        return at
