"""Parameters and results of chaos for a consumer group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.group_chaos_check import Verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a run."""

    seed: int
    seconds: float = 20.0
    rate: int = 6000
    """Messages a second."""
    queues: int = 64
    members: int = 8
    members_min: int = 3
    """Minimum number of members, so that there is one to be killed."""
    pause_s: float = 1.0
    """Mean time between two joins, leaves or kills."""
    session_ms: int = 5000
    work_ms: float = 0.0
    """Time that a member takes between handling a message, or a batch, and asking for the next: a
    member that is killed then has handled messages that it has not committed."""
    ordered: bool = False
    node_pause_s: float | None = None
    """Mean time between two SIGKILLs of broker or reput, which start again; None: they live."""


@dataclass(slots=True)
class Outcome:
    """The results, for people and for asserts."""

    plan: Plan
    verdict: Verdict
    sent: int
    events: Counter[str]
    drained_s: float
    """From the last message sent until the group had no lag."""
    lag_max: int
    samples: int
    wrong: list[str] = field(default_factory=list)
    """Errors besides the verdict."""

    def sentence(self) -> str:
        """The counts in one line."""
        verdict, plan = self.verdict, self.plan
        return (
            f"seed {plan.seed}{', ordered' * plan.ordered}: {plan.seconds:.0f} s, {self.sent} "
            f"messages sent over {plan.queues} queues; {self.events['joined']} members joined, "
            f"{self.events['left']} left, {self.events['killed']} were killed"
            f"{self._node_kills()}; {verdict.moves} "
            f"queues changed hands in {verdict.generations} generations seen; {verdict.distinct} "
            f"messages handled, {verdict.missing} not, {verdict.duplicates} more than once "
            f"({verdict.duplicate_share:.2%}); {self._violations()}; lag {self.lag_max} "
            f"at most in {self.samples} samples, 0 after {self.drained_s:.1f} s"
        )

    def _violations(self) -> str:
        found = self.verdict.violations
        return ", ".join(f"{count} × {kind}" for kind, count in found.items()) or "no violation"

    def _node_kills(self) -> str:
        if self.plan.node_pause_s is None:
            return ""
        return (
            f", broker {self.events['broker']} times and reput {self.events['reput']} times, "
            f"{self.events['unanswered']} sends without an answer"
        )
