"""Names: broker groups, nodes and topics that have registered, and routes. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import SECONDS_BUCKETS, counter, declared, gauge, histogram

# One family is one row of a table.
# fmt: off
NAMES_GROUPS: Final = gauge("tidemark_names_groups", "broker groups",
    "Broker groups with at least one registered node",
    alert="fewer than the cluster has")
NAMES_GROUPS_WITHOUT_MASTER: Final = gauge(
    "tidemark_names_groups_without_master", "broker groups",
    "Broker groups whose nodes are registered and none of them as the master",
    alert="above 0 for longer than a failover takes")
NAMES_NODES: Final = gauge("tidemark_names_nodes", "nodes",
    "Registered nodes")
NAMES_TOPICS: Final = gauge("tidemark_names_topics", "topics",
    "Different topics of all broker groups")
NAMES_ENTRIES: Final = gauge("tidemark_names_entries", "topics",
    "Topics of all broker groups, once for each broker group that has one",
    alert="above 80 % of `entries_max`")
NAMES_MISSING_GROUPS: Final = gauge("tidemark_names_missing_groups", "broker groups",
    "Expected broker groups that are not registered",
    alert="above 0 for 2 minutes: a broker group is down, or `groups` has a wrong name")
NAMES_COMPLETE: Final = gauge("tidemark_names_complete", "–",
    "1 while all expected broker groups are registered: unknown topics get 404 then")
NAMES_REGISTRATIONS_TOTAL: Final = counter("tidemark_names_registrations_total{kind}", "requests",
    "Registrations applied: `whole`, `difference`, or `slave` without topics")
NAMES_REFUSED_TOTAL: Final = counter("tidemark_names_refused_total{request,code}", "requests",
    "Requests answered with an error, by its [runbook](runbook.md) code. `request` is `register` "
    "or `route`",
    alert="any `broker-group-conflict`, `node-identity-taken`, `bad-signature`, "
    "`clock-skew`, `names-limit` or `internal`")
NAMES_EXPIRED_NODES_TOTAL: Final = counter("tidemark_names_expired_nodes_total", "nodes",
    "Nodes dropped because they did not register for two minutes",
    alert="any while all nodes run")
NAMES_REGISTER_DURATION_SECONDS: Final = histogram(
    "tidemark_names_register_duration_seconds", "s",
    "From the last byte of a registration to its effect on the answers",
    buckets=SECONDS_BUCKETS,
    alert="99th percentile above 50 ms")
NAMES_ROUTES_TOTAL: Final = counter("tidemark_names_routes_total{kind}", "requests",
    "Routes answered: `topic`, or `groups` without a topic; long polls count at their end")
NAMES_LONG_POLLS: Final = gauge("tidemark_names_long_polls", "requests",
    "Long polls that are held now",
    alert="above 80 % of `held_polls_max`")
NAMES_CONNECTIONS: Final = gauge("tidemark_names_connections", "connections",
    "Open connections",
    alert="above 80 % of `connections_max`")
# fmt: on

NAMES: Final = declared(globals())
