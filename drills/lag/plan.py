"""The planted faults and their expected diagnoses. Pure.

Set ``g0`` is a master and a slave with the topic ``orders``, read by four groups. Set ``g1`` is a
single node with the topic ``payments``, whose reput is stopped when the faults are planted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from analytics.schema import Stage
from analytics.statuses import Status

CLUSTER: Final = "shop"
ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
ORDERS_QUEUES: Final = 8
PAYMENTS_QUEUES: Final = 4
ORDERS_PER_S: Final = 80.0
"""Messages per second: ten per queue."""
PAYMENTS_PER_S: Final = 20.0
SLOW_SHARE: Final = 0.8
"""Share of the input that the slow group processes."""
POISON_QUEUE: Final = 3
POISON_KEY: Final = "poison"
DEFAULT_PERIOD_S: Final = 15.0
"""Default time between samples, for which all windows of the rules are made."""


class Planted(NamedTuple):
    """One group on one topic: its fault, and the expected result of the analytics."""

    group: str
    topic: str
    broker: str
    what: str
    """Short description of the fault."""
    status: Status
    blamed: Stage | None
    """The stage in which its messages spend their time; None if it keeps up."""
    skew_kind: str | None = None
    stuck_queues: int = 0
    hides: bool = False
    """Whether stored messages are missing in its lag because they are not dispatched."""


HEALTHY: Final = Planted("healthy", ORDERS, "g0", "reads all messages", Status.OK, None)
SLOW: Final = Planted(
    "slow",
    ORDERS,
    "g0",
    f"processes {SLOW_SHARE:.0%} of the input",
    Status.FALLING_BEHIND,
    Stage.PROCESSING,
)
STOPPED: Final = Planted(
    "stopped", ORDERS, "g0", "its only member was killed", Status.STOPPED, Stage.DELIVERY
)
POISON: Final = Planted(
    "poison",
    ORDERS,
    "g0",
    f"fails repeatedly at one message of queue {POISON_QUEUE}",
    Status.STALLED,
    Stage.PROCESSING,
    skew_kind="poison_message",
    stuck_queues=1,
)
HIDDEN: Final = Planted(
    "hidden",
    PAYMENTS,
    "g1",
    "has read all that is dispatched; reput is stopped",
    Status.OK,
    Stage.DISPATCH,
    hides=True,
)
PLANTED: Final = (HEALTHY, SLOW, STOPPED, POISON, HIDDEN)


class Times(NamedTuple):
    """Durations of a run. All windows of the rules shrink with the period."""

    period_s: float
    watch_s: float
    """How long samples are taken."""

    @property
    def calm_s(self) -> float:
        """How long the run is healthy before the faults."""
        return max(14.0, 5 * self.period_s)

    @property
    def factor(self) -> float:
        """Speed-up against the default."""
        return DEFAULT_PERIOD_S / self.period_s

    @property
    def objective_ms(self) -> int:
        """Lag objective of the groups on ``orders``. The slow group exceeds it after a sixth of the
        rules' five minutes; the other groups stay far below."""
        return max(4000, round(10_000 / self.factor))

    @property
    def session_ms(self) -> int:
        """Session timeout of the members that die; the group continues without them after it."""
        return max(3000, round(30_000 / self.factor))

    @property
    def crash_s(self) -> float:
        """Time between two crashes of the poisoned group's program."""
        return max(4.0, 12.0 / self.factor)
