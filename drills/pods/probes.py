"""What a container's probes come to: may it be started, sent work, must it be killed. Pure.

The rules are the kubelet's prober's: one clock per probe, thresholds in a row, liveness and
readiness wait for the startup probe, and a probe that has had its container killed waits for the
next one. Step before: the shell asks a port or runs a command. Step after: the shell starts or
kills.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from drills.pods.plans import Container, Probe


class Kind(StrEnum):
    """Which probe, in the manifest's words."""

    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class Judgement(NamedTuple):
    """What an answer to a probe changed."""

    unhealthy: bool = False
    """A failure, for the events."""
    kill: bool = False
    """The threshold is reached: the container is to be killed."""


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
        """Count an answer; whether a threshold is reached."""
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
        """Whether the container counts as ready."""
        readiness = self._watches.get(Kind.READINESS)
        return self.started and (readiness is None or readiness.result)

    def due(self, now: float, *, terminating: bool = False) -> list[tuple[Kind, Probe]]:
        """Probes to be asked now, each once per period. terminating: of its pod, when only
        readiness is looked at.
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
        """Note the answer to a probe."""
        watch = self._watches[kind]
        reached = watch.take(succeeded)
        if succeeded:
            return Judgement()
        kill = reached and kind is not Kind.READINESS
        if kill:
            watch.held = True
            watch.in_a_row = 0
        return Judgement(unhealthy=True, kill=kill)
