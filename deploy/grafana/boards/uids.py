"""Uids of the boards in Grafana, and the links between the boards. Pure."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Column, Link

CLUSTER: Final = "tidemark-cluster"
BROKER_GROUPS: Final = "tidemark-broker-groups"
CONSUMER_GROUP: Final = "tidemark-consumer-group"
BROKER: Final = "tidemark-broker"
PIPELINE: Final = "tidemark-pipeline"
ANALYTICS: Final = "tidemark-analytics"

_KEEP: Final = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
_FIELD: Final = "${__data.fields"

TO_PAIR: Final = Link(
    "This group and topic",
    f"/d/{CONSUMER_GROUP}?{_KEEP}&${{broker:queryparam}}"
    f"&var-group={_FIELD}.Group}}&var-topic={_FIELD}.Topic}}",
)
"""Link from a table with the columns Group and Topic."""
PAIR_COLUMNS: Final = (
    Column("group", "Group", links=(TO_PAIR,)),
    Column("topic", "Topic", links=(TO_PAIR,)),
)
TO_BROKER: Final = Link(
    "This broker set", f'/d/{BROKER}?{_KEEP}&var-broker={_FIELD}["Broker set"]}}'
)
"""Link from a table with the column Broker set."""
ON_CLUSTER: Final = Link("Cluster", f"/d/{CLUSTER}")
ON_BROKER: Final = Link("Broker", f"/d/{BROKER}")
ON_CONSUMER_GROUP: Final = Link("Consumer group", f"/d/{CONSUMER_GROUP}")
ON_PIPELINE: Final = Link("Dispatch and replication", f"/d/{PIPELINE}")
"""Links of panels to other boards; they keep variables and time."""
