"""Thresholds of alert rules that boards draw as limits. A test compares them to the rules. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from deploy.grafana.panels import RED, Step


class Limit(NamedTuple):
    alert: str
    value: float

    @property
    def steps(self) -> tuple[Step, ...]:
        return (Step(self.value, RED),)


DISPATCH_SLOW: Final = Limit("TidemarkDispatchSlow", 2)
REPLICA_LAG: Final = Limit("TidemarkReplicaLag", 10)
CLOCK_SKEW: Final = Limit("TidemarkClockSkew", 1)
PUT_SLOW: Final = Limit("TidemarkPutSlow", 0.2)
REJECTING: Final = Limit("TidemarkRejecting", 1)
STORE_NEARLY_FULL: Final = Limit("TidemarkStoreNearlyFull", 0.1)
TIMER_OVERDUE: Final = Limit("TidemarkTimerOverdue", 5)
FALLING_BEHIND: Final = Limit("TidemarkGroupFallingBehind", 0.98)
NAMES_NEAR_BOUND: Final = Limit("TidemarkNamesNearBound", 0.8)
ANALYTICS_STALE: Final = Limit("TidemarkAnalyticsStale", 300)
ANALYTICS_BEHIND: Final = Limit("TidemarkAnalyticsBehind", 300)

LIMITS: Final = tuple(each for each in globals().values() if isinstance(each, Limit))
