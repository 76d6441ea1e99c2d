"""What is planted, and what must be found of it. Pure.

Set ``g0`` is a master and a slave with the topic ``orders``, read by four groups; set ``g1`` is a
node alone with the topic ``payments``, whose reput stands still from the beginning of the watch.
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
"""Messages per second: ten for each queue."""
PAYMENTS_PER_S: Final = 20.0
SLOW_SHARE: Final = 0.8
"""Of the input, what the slow group gets done."""
POISON_QUEUE: Final = 3
POISON_KEY: Final = "poison"
DEFAULT_PERIOD_S: Final = 15.0
"""Between two looks where nobody says otherwise; all windows of the rules are made for it."""


class Planted(NamedTuple):
    """One group on one topic: what is done to it, and what the analytics must say."""

    group: str
    topic: str
    broker: str
    what: str
    """For people, in a few words."""
    status: Status
    blamed: Stage | None
    """Where its messages spend their time; None: nowhere, it keeps pace."""
    skew_kind: str | None = None
    stuck_queues: int = 0
    hides: bool = False
    """Messages are stored that no lag shows, since they are not dispatched."""


HEALTHY: Final = Planted("healthy", ORDERS, "g0", "reads whatever comes", Status.OK, None)
SLOW: Final = Planted(
    "slow",
    ORDERS,
    "g0",
    f"gets {SLOW_SHARE:.0%} of the input done",
    Status.FALLING_BEHIND,
    Stage.PROCESSING,
)
STOPPED: Final = Planted(
    "stopped",
    ORDERS,
    "g0",
    "its only member was killed",
    Status.STOPPED,
    Stage.DELIVERY,
)
POISON: Final = Planted(
    "poison",
    ORDERS,
    "g0",
    f"fails at one message of queue {POISON_QUEUE} again and again",
    Status.STALLED,
    Stage.PROCESSING,
    skew_kind="poison_message",
    stuck_queues=1,
)
HIDDEN: Final = Planted(
    "hidden",
    PAYMENTS,
    "g1",
    "has read all that is dispatched; reput stands still",
    Status.OK,
    Stage.DISPATCH,
    hides=True,
)
PLANTED: Final = (HEALTHY, SLOW, STOPPED, POISON, HIDDEN)


class Times(NamedTuple):
    """How fast everything is watched. All windows of the rules shrink with the period."""

    period_s: float
    watch_s: float
    """How long samples are taken."""

    @property
    def calm_s(self) -> float:
        """Everything is well for so long before the faults come."""
        return max(14.0, 5 * self.period_s)

    @property
    def factor(self) -> float:
        """How much faster than by default."""
        return DEFAULT_PERIOD_S / self.period_s

    @property
    def objective_ms(self) -> int:
        """Lag objective of the groups on ``orders``: the slow one passes it after a sixth of the
        time that the rules' five minutes take, and the others are far from it."""
        return max(4000, round(10_000 / self.factor))

    @property
    def session_ms(self) -> int:
        """After which the killed member is forgotten."""
        return max(3000, round(30_000 / self.factor))

    @property
    def crash_s(self) -> float:
        """How long the program of the poisoned group lives between two crashes."""
        return max(4.0, 12.0 / self.factor)
