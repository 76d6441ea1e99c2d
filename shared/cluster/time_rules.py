"""The times of leases, links and sets, in ms; three profiles (docs/replication.md, times). Pure.

Correctness needs none of them: they bound how long a group is without a master and how long a
stale one may serve reads. The relations between them are checked before a node starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class TimeRules(NamedTuple):
    """All in ms of the boot-time clock."""

    lease_ms: int
    """D: how long nobody else may take a lease that was renewed."""
    renew_ms: int
    """From the start of one renewal to that of the next."""
    request_timeout_ms: int
    """One request to where the lease is kept."""
    margin_ms: int
    """A master stops D minus this after it sent its last good renewal."""
    link_dead_ms: int
    """A link without a frame for so long is over."""
    heartbeat_ms: int
    """A link without data carries a frame so often."""
    lag_max_ms: int
    """A member that did not reach, within this, what the master had then leaves the set."""
    ack_limit_ms: int
    """A send is answered at the latest after this, if its sender does not say otherwise."""
    wait_random_ms: int
    """A candidate waits up to this longer, at random,"""
    wait_rank_ms: int
    """and this for each candidate that should come first."""
    client_timeout_ms: int = 3000
    """What senders wait for by default."""
    broker_silent_ms: int = 2000
    """A lease is renewed, and campaigned for, only while the broker's heartbeat is younger."""

    def broken(self) -> list[str]:
        """The relations that these times do not keep; a node with any does not start."""
        rules = (
            (
                self.renew_ms + 2 * self.request_timeout_ms <= self.lease_ms - self.margin_ms,
                "renew_ms + 2 × request_timeout_ms must be at most lease_ms − margin_ms",
            ),
            (self.ack_limit_ms < self.client_timeout_ms, "ack_limit_ms must be below the clients'"),
            (self.link_dead_ms < self.lag_max_ms, "link_dead_ms must be below lag_max_ms"),
            (2 * self.heartbeat_ms <= self.link_dead_ms, "two heartbeats must fit link_dead_ms"),
        )
        return [sentence for kept, sentence in rules if not kept]


LONG: Final = TimeRules(15_000, 3_000, 4_000, 3_000, 5_000, 1_000, 10_000, 2_500, 1_000, 2_000)
DEFAULT: Final = TimeRules(8_000, 1_500, 1_500, 2_000, 3_000, 1_000, 5_000, 2_500, 500, 1_000)
LOCAL: Final = TimeRules(3_000, 500, 500, 800, 1_000, 250, 2_000, 900, 300, 500)
PROFILES: Final[Mapping[str, TimeRules]] = {"long": LONG, "default": DEFAULT, "local": LOCAL}
