"""Recorded series that alerts and dashboards share. Pure.

All keep ``broker``, the set of replicas that holds the queues: a consumer group is late on a set,
not on a cluster, and alerts of a set inhibit the alerts that they cause.
"""

from __future__ import annotations

from typing import Final

from deploy.prometheus.model import Group, Record

SET: Final = ("cluster", "broker")
NODE: Final = (*SET, "replica")
PAIR: Final = (*SET, "group", "topic")
ON_PAIR: Final = f"on ({', '.join(PAIR)})"
ON_NODE: Final = f"on ({', '.join(NODE)})"
ON_GROUP: Final = "on (cluster, broker, group)"

RECORDING: Final = Group(
    "tidemark-recording",
    (
        Record(
            "tidemark:group_lag_messages:sum",
            f"sum by ({', '.join(PAIR)}) (tidemark_group_lag_messages)",
            PAIR,
            "Unread messages of a pair, retries included",
        ),
        Record(
            "tidemark:group_lag_seconds:max",
            f'max by ({", ".join(PAIR)}) (tidemark_group_lag_seconds{{kind="main"}})',
            PAIR,
            "Age of the oldest unread message of a pair",
        ),
        Record(
            "tidemark:group_members:sum",
            "sum by (cluster, broker, group) (tidemark_group_members)",
            (*SET, "group"),
            "Members of a group",
        ),
        Record(
            "tidemark:group_subscribed:max",
            f"max by ({', '.join(PAIR)}) (tidemark_group_subscribed)",
            PAIR,
            "1 while a member reads the topic",
        ),
        Record(
            "tidemark:group_lag_objective_seconds:max",
            "max by (cluster, broker, group) (tidemark_group_lag_objective_seconds)",
            (*SET, "group"),
            "How old an unread message may be",
        ),
        Record(
            "tidemark:group_consumed:rate5m",
            f"sum by ({', '.join(PAIR)}) (rate(tidemark_group_consumed_messages_total[5m]))",
            PAIR,
            "Messages committed per second",
        ),
        Record(
            "tidemark:topic_in:rate5m",
            "sum by (cluster, broker, topic) (rate(tidemark_broker_messages_in_total[5m]))",
            (*SET, "topic"),
            "Messages accepted per second",
        ),
        Record(
            "tidemark:group_progress:ratio5m",
            "clamp_min(1 - deriv(tidemark:group_lag_seconds:max[5m]), 0)"
            " and tidemark:group_lag_seconds:max > 0",
            PAIR,
            "Seconds of stored time read per second: 1 keeps pace, 0 stands still; absent without "
            "lag",
        ),
        Record(
            "tidemark:targets:count",
            'count by (cluster) (up{job=~"tidemark-.*"})',
            ("cluster",),
            "Processes that Prometheus scrapes; without any, no alert can fire",
        ),
    ),
)

MEMORY: Final = Group(
    "tidemark-memory",
    (
        Record(
            "tidemark:group_last_read:timestamp_seconds",
            f"max by ({', '.join(PAIR)}) (timestamp(tidemark_group_subscribed == 1))"
            " or max_over_time(tidemark:group_last_read:timestamp_seconds[6h]) > time() - 86400",
            PAIR,
            "When a member last read the topic; absent after a day. The rule keeps the time in its "
            "own last value, because a group without members subscribes to nothing; it survives a "
            "pause of Prometheus of at most six hours",
        ),
    ),
    every="1m",
)
