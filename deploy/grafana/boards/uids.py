"""Uids of the boards in Grafana, and the links between the boards. Pure."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Link

CLUSTER: Final = "tidemark-cluster"
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
TO_BROKER: Final = Link(
    "This broker set", f'/d/{BROKER}?{_KEEP}&var-broker={_FIELD}["Broker set"]}}'
)
"""Link from a table with the column Broker set."""


def to(uid: str, title: str) -> Link:
    """Return a panel's link to another board that keeps variables and time."""
    return Link(title, f"/d/{uid}")
