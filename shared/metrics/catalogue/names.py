"""Names: broker groups, nodes and topics that have registered, and routes. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import SECONDS_BUCKETS, counter, declared, gauge, histogram

# One family is one row of a table.
# fmt: off
NAMES_GROUPS: Final = gauge("tidemark_names_groups", "broker groups",
    "Broker groups with at least one registered node",
    title="Broker groups", alert="fewer than the cluster has")
NAMES_GROUPS_WITHOUT_MASTER: Final = gauge(
    "tidemark_names_groups_without_master", "broker groups",
    "Broker groups whose nodes are registered and none of them as the master",
    title="Without a registered master", alert="above 0 for longer than a failover takes")
NAMES_NODES: Final = gauge("tidemark_names_nodes", "nodes",
    "Registered nodes",
    title="Registered nodes")
NAMES_TOPICS: Final = gauge("tidemark_names_topics", "topics",
    "Different topics of all broker groups",
    title="Topics of the cluster")
NAMES_ENTRIES: Final = gauge("tidemark_names_entries", "topics",
    "Topics of all broker groups, once for each broker group that has one",
    title="Topics by broker group")
NAMES_MISSING_GROUPS: Final = gauge("tidemark_names_missing_groups", "broker groups",
    "Expected broker groups that are not registered",
    title="Expected and missing",
    alert="above 0 for 5 minutes: a broker group is down, or `groups` has a wrong name")
NAMES_COMPLETE: Final = gauge("tidemark_names_complete", "–",
    "1 while all expected broker groups are registered: unknown topics get 404 then",
    title="Complete")
NAMES_REGISTRATIONS_TOTAL: Final = counter("tidemark_names_registrations_total{kind}", "requests",
    "Registrations applied: `whole`, `difference`, or `slave` without topics",
    title="Registrations applied")
NAMES_REFUSED_TOTAL: Final = counter("tidemark_names_refused_total{request,code}", "requests",
    "Requests answered with an error, by its [runbook](runbook.md) code. `request` is `register` "
    "or `route`",
    title="Refused by name services",
    alert="any `broker-group-conflict`, `node-identity-taken`, `wrong-cluster`, `bad-signature`, "
    "`clock-skew`, `names-limit`, `too-large` or `internal`")
NAMES_EXPIRED_NODES_TOTAL: Final = counter("tidemark_names_expired_nodes_total", "nodes",
    "Nodes dropped because they did not register for two minutes",
    title="Expired nodes", alert="any while all nodes run")
NAMES_REGISTER_DURATION_SECONDS: Final = histogram(
    "tidemark_names_register_duration_seconds", "s",
    "From the last byte of a registration to its effect on the answers",
    title="Time to apply a registration", buckets=SECONDS_BUCKETS,
    alert="99th percentile above 50 ms")
NAMES_ROUTES_TOTAL: Final = counter("tidemark_names_routes_total{kind}", "requests",
    "Routes answered: `topic`, or `groups` without a topic; long polls count at their end",
    title="Routes answered")
NAMES_LONG_POLLS: Final = gauge("tidemark_names_long_polls", "requests",
    "Long polls that are held now",
    title="Routes held as long polls")
NAMES_CONNECTIONS: Final = gauge("tidemark_names_connections", "connections",
    "Open connections",
    title="Connections to name services")
NAMES_BOUND_USED_RATIO: Final = gauge("tidemark_names_bound_used_ratio{bound}", "ratio",
    "Used share of a bound, by its setting; of `nodes_max` and `topics_max`, that of the broker "
    "group with the most",
    title="Used share of bounds", alert="above 0.8")
# fmt: on

NAMES: Final = declared(globals())
