"""Times of leases, links and in-sync sets in ms; three profiles (docs/replication.md, times). Pure.

Correctness depends on none of them: they limit how long a group is without a master, and how long a
stale master may serve reads. The relations between them are checked before a node starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class TimeRules(NamedTuple):
    """All times in ms of the boot-time clock."""

    lease_ms: int
    """D: time after a renewal in which no other node may take the lease."""
    renew_ms: int
    """Time from the start of one renewal to the start of the next."""
    request_timeout_ms: int
    """Time-out of one request to the lease store."""
    margin_ms: int
    """A master stops D minus this after it sent its last successful renewal."""
    link_dead_ms: int
    """A link without a frame for this long is closed."""
    heartbeat_ms: int
    """Interval of frames on a link without data."""
    lag_max_ms: int
    """Maximum time in which a member must reach the master's present end; otherwise it leaves the
    set."""
    ack_limit_ms: int
    """Longest time until a send is answered, unless its sender requests another limit."""
    wait_random_ms: int
    """Largest random delay of a candidate."""
    wait_rank_ms: int
    """Additional delay of a candidate for each candidate with a higher priority."""
    client_timeout_ms: int = 3000
    """Default time-out of senders."""
    broker_silent_ms: int = 2000
    """The lease is renewed or claimed only while the broker's heartbeat is younger than this."""

    def broken(self) -> list[str]:
        """Return the relations that these times violate; a node with any does not start."""
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
