"""The settings of evaluation: windows, bounds and raise times, all in seconds. Pure.

No setting is a number of ticks, so that a shorter period does not raise alerts sooner. Only `ticks`
converts seconds to a number of ticks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final

from analytics.kernel.columns import Floats
from analytics.statuses import TABLE, Status

MICROSECOND: Final = 1e-6
_DURATIONS: Final = (
    "history_s",
    "interpolation_s",
    "progress_window_s",
    "objective_s",
    "grace_s",
    "unknown_after_s",
    "forget_after_s",
    "abandoned_after_s",
    "stall_least_s",
    "stall_most_s",
    "stall_unlearned_s",
    "recovery_s",
    "lost_for_s",
    "recommit_s",
    "minute_s",
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of `evaluate`. The defaults are those of production; drills use `scaled`."""

    period_s: float = 15.0
    """Time between ticks, which are multiples of it since 1970. Equal to the scrape interval."""
    history_s: float = 900.0
    """The tables of a Window begin this long before `after`."""
    interpolation_s: float = 600.0
    """Max offsets up to this old are used to date a message without a known store time. Together
    with progress_window_s at most history_s: ages inside a window of progress need it too."""
    progress_window_s: float = 300.0
    """Window of the slope of the age. Longer: less noise, but faults are found later."""
    objective_s: float = 60.0
    """Largest age in time for a group without its own objective."""
    grace_s: float = 120.0
    """A group without members for this long is STOPPED; a rolling restart takes less."""
    unknown_after_s: float = 45.0
    """A series without a sample for this long is UNKNOWN; before that it has no row."""
    forget_after_s: float = 86_400.0
    """A series without samples is dropped after this; after history_s if its broker still reports
    others."""
    abandoned_after_s: float = 86_400.0
    """A pair whose last member left is STOPPED for this long before it counts as ABANDONED. Shorter
    hides a dead consumer over a long weekend; longer keeps an old alarm."""
    stall_least_s: float = 60.0
    stall_most_s: float = 1_800.0
    """Bounds of the learned stall time."""
    stall_factor: float = 4.0
    """Stall time = this × the 95th percentile of the gaps between commits with lag."""
    overdue_factor: float = 1.1
    """A commit is overdue after this × the 95th percentile of the pair's gaps."""
    overdue_unlearned_factor: float = 2.0
    """The factor for a pair with fewer than stall_gaps_needed gaps, which may be short ones."""
    stall_unlearned_s: float = 420.0
    """Stall time of a pair with fewer than stall_gaps_needed gaps. Shorter pages healthy groups
    that commit every five minutes; longer finds stalled new groups later."""
    stall_gaps_needed: int = 5
    stall_half_life_s: float = 3_600.0
    """Half-life of the weight of a gap between commits."""
    recovery_s: float = 60.0
    """A group whose age falls at every sample for this long is catching up."""
    lost_for_s: float = 600.0
    """A group that lost messages is LOST for this long, even if it continues after the loss."""
    recommit_s: float = 120.0
    """A commit that goes back by no more than what was committed within this time is a
    rebalance."""
    keeps_pace_above: float = 0.98
    """A group with progress below this is falling behind."""
    catches_up_above: float = 1.05
    """A group with progress above this is catching up."""
    racing_share: float = 0.8
    """A group is RACING if its head is older than this share of the retained time."""
    minute_s: float = 60.0
    """Interval of the rates that give drain times; drills scale it as well."""
    drain_minutes: int = 15
    drain_minutes_least: int = 5
    """Number of one-minute rates for a drain time, and their minimum."""
    raise_s: dict[Status, float] = field(
        default_factory=lambda: {status: row.after_s for status, row in TABLE.items()}
    )
    """How long the rule of each status must hold before the status changes."""

    def __post_init__(self) -> None:
        """Reject values that would give wrong results later."""
        if self.period_s <= 0:
            raise ValueError(f"period_s is {self.period_s}, must be above 0")
        # Scaled rules have thirds of seconds, whose sums are not exact; a microsecond is tolerated.
        if self.interpolation_s + self.progress_window_s > self.history_s + MICROSECOND:
            raise ValueError(
                f"interpolation_s {self.interpolation_s} and progress_window_s "
                f"{self.progress_window_s} are together longer than history_s {self.history_s}"
            )

    def objective_slack(self, objective: Floats) -> Floats:
        """Largest age at a sample at which a group still counts as in time [s]: its objective plus
        a period."""
        return objective + self.period_s

    @property
    def period_us(self) -> int:
        """The period in microseconds."""
        return round(self.period_s / MICROSECOND)

    def ticks(self, seconds: float) -> int:
        """Seconds as a number of ticks, at least one."""
        return max(1, round(seconds / self.period_s))

    def raise_ticks(self, status: Status) -> int:
        """Number of consecutive ticks on which the rule of a status must hold.

        At least two for FALLING_BEHIND, however long the period: the slope at one sample also
        contains the time before, such as the end of a pause.
        """
        least = 2 if status is Status.FALLING_BEHIND else 1
        return max(least, self.ticks(self.raise_s[status]))

    def scaled(self, by: float) -> Rules:
        """The same rules with all times, period included, multiplied: for drills.

        `Rules().scaled(1 / 3)` has a period of 5 s, an objective of 20 s, and raises in a third of
        the time. Objectives and stall times of pairs are not scaled.
        """
        changed = {name: getattr(self, name) * by for name in _DURATIONS}
        changed["period_s"] = self.period_s * by
        changed["stall_half_life_s"] = self.stall_half_life_s * by
        raised = {status: seconds * by for status, seconds in self.raise_s.items()}
        return dataclasses.replace(self, **changed, raise_s=raised)
