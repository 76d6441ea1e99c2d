"""Cluster: present problems and links to details; the first board to open after an alert."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
from deploy.grafana.limits import DISPATCH_SLOW, REPLICA_LAG, STORE_NEARLY_FULL
from deploy.grafana.panels import (
    ALONE,
    BLUE,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Board,
    Column,
    Lines,
    Row,
    Stat,
    Step,
    Table,
    Timeline,
)
from deploy.grafana.problems import blamed, problems
from deploy.grafana.queries import (
    AGE,
    BY_GROUP,
    BY_PAIR,
    JOBS,
    MEMBERS,
    NODE,
    OBJECTIVE,
    PAIR,
    STUCK,
    TO_OBJECTIVE,
    TOPIC,
    WINDOW,
    Query,
    at_end,
    growth,
    or_zero,
    rate,
)
from deploy.grafana.stages import COLOURS, stages
from deploy.grafana.states import (
    PAIR_WORDS,
    ROLE_WORDS,
    SEVERITY_WORDS,
    pair_state,
    role_state,
    severity_state,
)

TARGETS: Final = f"up{{{JOBS}, {NODE}}}"
FIRING: Final = 'ALERTS{alertname=~"Tidemark.*", alertstate="firing", cluster=~"$cluster"}'
LATE: Final = f"{AGE} > on ({BY_GROUP}) group_left () {OBJECTIVE}"
WORST: Final = f"topk(5, {TO_OBJECTIVE})"
WORST_NOW: Final = at_end(WORST)
"""The five largest at the right edge of the graph, at every point of the graph."""
MESSAGES: Final = f'sum by ({BY_PAIR}) (tidemark_group_lag_messages{{{PAIR}, kind="main"}})'
RULES_RUN: Final = 'tidemark:targets:count{cluster=~"$cluster"}'
WORRY: Final = (Step(1, RED),)
CAUTION: Final = (Step(1, ORANGE),)


def _firing(severity: str) -> Query:
    # 0 only while the rules are evaluated: without them the number of alerts is unknown.
    firing = FIRING.replace("}", f', severity="{severity}"}}')
    return Query(or_zero(f"count({firing})", RULES_RUN))


NOW: Final = (
    Stat(
        title="Pages",
        description="Alerts that fire and wake someone: start with the table below. Unknown means "
        "that Prometheus runs none of the recording rules, so it runs no alerts either.",
        unit=units.COUNT,
        queries=(_firing("page"),),
        width=3,
        steps=WORRY,
    ),
    Stat(
        title="Tickets",
        description="Alerts that fire and wait for the day.",
        unit=units.COUNT,
        queries=(_firing("ticket"),),
        width=3,
        steps=CAUTION,
    ),
    Stat(
        title="Targets down",
        description="Processes that Prometheus cannot scrape: down, cut off, or standing still. "
        "Their series are missing everywhere else, so check here first.",
        unit=units.COUNT,
        queries=(Query(or_zero(f"count({TARGETS} == 0)", TARGETS)),),
        width=3,
        steps=WORRY,
        links=(uids.to(uids.BROKER, "Broker"),),
    ),
    Stat(
        title="Not ready",
        description=describe(
            "Processes that are not ready. `/ready` of the process and its log have the reason.",
            "tidemark_ready",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                or_zero(f"count(tidemark_ready{{{NODE}}} == 0)", f"tidemark_ready{{{NODE}}}"),
            ),
        ),
        width=3,
        steps=WORRY,
        links=(uids.to(uids.BROKER, "Broker"),),
    ),
    Stat(
        title="Without one master",
        description=describe(
            "Broker sets that have no master, or two. None: sends are refused until one is "
            "elected. Unknown: no ha process is scraped, as with a node that runs alone.",
            "tidemark_ha_role",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                or_zero(
                    f'count(sum by (cluster, broker) (tidemark_ha_role{{{NODE}, role="master"}}) '
                    f"!= 1)",
                    f"tidemark_ha_role{{{NODE}}}",
                )
            ),
        ),
        width=3,
        steps=WORRY,
        unknown="no group",
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
    ),
    Stat(
        title="Copies missing",
        description=describe(
            "Configured replicas that are not in sync, over all broker sets. A send with "
            "`ack=replicated` waits for the ones that are.",
            "tidemark_ha_in_sync_replicas",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"sum(max by (cluster, broker) (tidemark_ha_configured_replicas{{{NODE}}}) - "
                f"max by (cluster, broker) (tidemark_ha_in_sync_replicas{{{NODE}}}))"
            ),
        ),
        width=3,
        steps=CAUTION,
        unknown="no group",
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
    ),
    Stat(
        title="Pairs late",
        description=describe(
            "Pairs of group and topic whose oldest unread message is older than the group's "
            "objective.",
            "tidemark_group_lag_seconds",
            "tidemark_group_lag_objective_seconds",
        ),
        unit=units.COUNT,
        queries=(Query(or_zero(f"count({LATE})", AGE)),),
        width=3,
        steps=CAUTION,
        unknown="no group",
        links=(uids.to(uids.CONSUMER_GROUP, "Consumer group"),),
    ),
    Stat(
        title="Queues stuck",
        description=describe(
            "Members are there, messages are there, and nothing is committed: a poison message, or "
            "a member that hangs.",
            "tidemark_group_stuck_queues",
        ),
        unit=units.COUNT,
        queries=(Query(f"sum(tidemark_group_stuck_queues{{{PAIR}}})"),),
        width=3,
        steps=WORRY,
        unknown="no group",
        links=(uids.to(uids.CONSUMER_GROUP, "Consumer group"),),
    ),
)

WHAT: Final = (
    Table(
        title="Firing alerts",
        description="What fires now. The runbook has a heading of the same name, with the query "
        "that shows the evidence.",
        unit=units.PLAIN,
        queries=(
            Query(
                severity_state(FIRING, "alertname, broker, replica, peer, group, topic"),
                needs="an alert that fires",
            ),
        ),
        columns=(
            Column("A", "Severity", units.PLAIN, words=SEVERITY_WORDS, width=90),
            Column("alertname", "Alert"),
            Column("broker", "Broker set", links=(uids.TO_BROKER,), width=100),
            Column("replica", "Node", width=110),
            Column("group", "Group", links=(uids.TO_PAIR,)),
            Column("topic", "Topic", links=(uids.TO_PAIR,)),
            Column("peer", "Peer", width=90),
        ),
        sort="Severity",
        width=12,
        nothing="Nothing fires",
    ),
    Table(
        title="Worst five by age",
        description=describe(
            "The five pairs furthest beyond their objective: age of the oldest unread message over "
            "the group's objective. Click the group.",
            "tidemark_group_lag_seconds",
            "tidemark_group_lag_messages",
        ),
        unit=units.COUNT,
        queries=(
            Query(WORST),
            Query(f"{AGE} and {WORST}"),
            Query(f"{WORST} ^ 0 * on ({BY_GROUP}) group_left () {OBJECTIVE}"),
            Query(f"{MESSAGES} and {WORST}"),
        ),
        columns=(
            Column("group", "Group", links=(uids.TO_PAIR,)),
            Column("topic", "Topic", links=(uids.TO_PAIR,)),
            Column("broker", "Broker set", width=100),
            Column("B", "Age", units.SECONDS, width=90),
            Column("C", "Objective", units.SECONDS, width=90),
            Column(
                "A",
                "Age / objective",
                units.SHARE,
                steps=(Step(0.5, YELLOW), Step(1, RED)),
                width=130,
            ),
            Column("D", "Messages", units.COUNT, width=100),
        ),
        sort="Age / objective",
        width=12,
        nothing="No consumer group",
    ),
)

HOW_LONG: Final = (
    Lines(
        title="Pairs by state",
        description="How many pairs of group and topic are late, stuck, without a member, or not "
        "known. In time are the others. A pair can be in two of them.",
        unit=units.COUNT,
        queries=(
            Query(or_zero(f"count({LATE})", AGE), "late"),
            Query(
                or_zero(
                    f"count({STUCK} > 0)",
                    STUCK,
                ),
                "stuck",
            ),
            Query(
                or_zero(
                    f"count({AGE} > 0 and on ({BY_GROUP}) {MEMBERS} == 0)",
                    AGE,
                ),
                "not read",
            ),
            Query(
                or_zero(
                    f"count(sum by ({BY_PAIR}) (tidemark_group_unknown_queues{{{PAIR}}}) > 0)",
                    f"tidemark_group_unknown_queues{{{PAIR}}}",
                ),
                "unknown queues",
            ),
        ),
        width=8,
        colours=(
            ("late", ORANGE),
            ("stuck", RED),
            ("not read", BLUE),
            ("unknown queues", GREY),
        ),
    ),
    Timeline(
        title="State of the five worst",
        description="The pairs that are furthest beyond their objective now, and how long they "
        "have been so. A gap: unknown.",
        unit=units.PLAIN,
        queries=(Query(f"{pair_state()} and {WORST_NOW}", "{{group}} / {{topic}}"),),
        width=8,
        words=PAIR_WORDS,
    ),
    Timeline(
        title="Roles",
        description=describe(
            "Who led each broker set when. No node in green: sends were refused meanwhile. A gap: "
            "the node's ha did not answer.",
            "tidemark_ha_role",
        ),
        unit=units.PLAIN,
        queries=(Query(role_state(), "{{replica}}"),),
        width=8,
        words=ROLE_WORDS,
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
        nothing=ALONE,
    ),
)

JUDGED: Final = (problems(16, 10), blamed(8))

TRAFFIC_OF_ALL: Final = (
    Lines(
        title="Messages in and out",
        description="Accepted from producers, and handed to consumers, redeliveries included. Out "
        "is a multiple of in where several groups read the same topic.",
        unit=units.MESSAGES_RATE,
        queries=(
            Query(f"sum(rate(tidemark_broker_messages_in_total{{{TOPIC}}}[{WINDOW}]))", "in"),
            Query(f"sum(rate(tidemark_broker_messages_out_total{{{TOPIC}}}[{WINDOW}]))", "out"),
        ),
        width=8,
    ),
    Lines(
        title="Bytes in and out",
        description="Record bytes with their framing, as they stand in the log.",
        unit=units.BYTES_RATE,
        queries=(
            Query(f"sum(rate(tidemark_broker_received_bytes_total{{{TOPIC}}}[{WINDOW}]))", "in"),
            Query(f"sum(rate(tidemark_broker_sent_bytes_total{{{TOPIC}}}[{WINDOW}]))", "out"),
        ),
        width=8,
    ),
    Lines(
        title="Sends not answered with ok",
        description=describe(
            "By result. Some `invalid` are a client's mistake; `disk_full` and `failed` are ours.",
            "tidemark_broker_put_results_total",
        ),
        unit=units.REQUESTS_RATE,
        queries=(
            Query(
                rate("tidemark_broker_put_results_total", "result", f'{NODE}, result!="ok"'),
                "{{result}}",
            ),
        ),
        width=8,
    ),
)
TRAFFIC_BY: Final = (
    Lines(
        title="Messages in by kind",
        description=describe("Stacked.", "tidemark_broker_messages_in_total"),
        unit=units.MESSAGES_RATE,
        queries=(Query(rate("tidemark_broker_messages_in_total", "kind", TOPIC), "{{kind}}"),),
        width=8,
        stacked=True,
    ),
    Lines(
        title="Top five topics in",
        description="The five topics with the most messages over the whole time shown.",
        unit=units.MESSAGES_RATE,
        queries=(
            Query(
                f"{rate('tidemark_broker_messages_in_total', 'topic', TOPIC)} and topk(5, sum by "
                f"(topic) (rate(tidemark_broker_messages_in_total{{{TOPIC}}}[$__range] @ end())))",
                "{{topic}}",
            ),
        ),
        width=8,
    ),
    Lines(
        title="Top five groups out",
        description="The five groups that were handed the most messages over the whole time shown. "
        "A plain pull without a group has an empty name.",
        unit=units.MESSAGES_RATE,
        queries=(
            Query(
                f"{rate('tidemark_broker_messages_out_total', 'group', PAIR)} and topk(5, sum by "
                f"(group) (rate(tidemark_broker_messages_out_total{{{PAIR}}}[$__range] @ end())))",
                "{{group}}",
            ),
        ),
        width=8,
    ),
)

DELAY: Final = (
    Lines(
        title="Where the time goes: the group furthest behind",
        description=describe(
            "Distance of the oldest uncommitted message from the newest record, split without a "
            "rest: waiting for copies, for dispatch, for delivery, for the consumer's commit. The "
            "tallest colour is the stage to check. Of several broker sets, each stage is the "
            "largest.",
            "tidemark_log_newest_message_timestamp_seconds",
        ),
        unit=units.SECONDS,
        queries=stages(),
        width=12,
        nothing="No consumer group",
        stacked=True,
        colours=COLOURS,
        links=(uids.to(uids.CONSUMER_GROUP, "Consumer group"),),
    ),
    Lines(
        title="Behind in dispatch",
        description=describe(
            "Messages become visible to consumers this late, whatever the consumers do.",
            "tidemark_dispatch_lag_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_dispatch_lag_seconds{{{NODE}}})", "{{replica}}"
            ),
        ),
        width=6,
        steps=(Step(DISPATCH_SLOW.value, RED),),
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
    ),
    Lines(
        title="Behind in replication",
        description=describe("As the master sees its slaves.", "tidemark_ha_replica_lag_seconds"),
        unit=units.SECONDS,
        queries=(
            Query(f"max by (broker, peer) (tidemark_ha_replica_lag_seconds{{{NODE}}})", "{{peer}}"),
        ),
        width=6,
        steps=(Step(REPLICA_LAG.value, RED),),
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
        nothing=ALONE,
    ),
)

ROOM: Final = (
    Lines(
        title="Free share of volumes",
        description=describe(
            "At the line the alert fires. Below it retention deletes early, then sends are "
            "refused.",
            "tidemark_store_free_bytes",
        ),
        unit=units.SHARE,
        queries=(
            Query(
                f"min by (broker, replica, volume) (tidemark_store_free_bytes{{{NODE}}} / "
                f"tidemark_store_capacity_bytes{{{NODE}}})",
                "{{replica}} {{volume}}",
            ),
        ),
        width=8,
        steps=(Step(STORE_NEARLY_FULL.value, RED),),
        top=1,
    ),
    Lines(
        title="Time until full",
        description=describe(
            "At the present pace. No line: not to be foreseen, for the volume empties or is new.",
            "tidemark_store_full_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"min by (broker, replica) (tidemark_store_full_seconds{{{NODE}}})", "{{replica}}"
            ),
        ),
        width=8,
        log=True,
    ),
    Lines(
        title="Retention span",
        description=describe(
            "Age of the oldest record that is still there. A group further behind than this loses "
            "messages unread.",
            "tidemark_log_oldest_message_timestamp_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"time() - max by (broker, replica) "
                f"(tidemark_log_oldest_message_timestamp_seconds{{{NODE}}})",
                "{{replica}}",
            ),
            Query(f"max({AGE})", "oldest unread"),
        ),
        width=8,
        over=("oldest unread",),
        colours=(("oldest unread", RED),),
    ),
)
RUNNING: Final = (
    Table(
        title="What runs",
        description=describe(
            "Versions of every process, and since when it runs.", "tidemark_node_info"
        ),
        unit=units.PLAIN,
        queries=(
            Query(
                "max by (broker, replica, service, version, python, store_format) "
                f"(tidemark_up_since_timestamp_seconds{{{NODE}}} * on (cluster, broker, replica, "
                f"service) group_left (version, python, store_format) "
                f"tidemark_node_info{{{NODE}}}) * 1000"
            ),
        ),
        columns=(
            Column("broker", "Broker set", links=(uids.TO_BROKER,)),
            Column("replica", "Node"),
            Column("service", "Service"),
            Column("version", "Version"),
            Column("python", "Python"),
            Column("store_format", "Store format"),
            Column("A", "Running since", units.DATE),
        ),
        sort="Running since",
        nothing="Nothing is scraped",
        width=16,
    ),
    Lines(
        title="Series beyond a bound",
        description=describe(
            "Around each point. What is folded is still counted, but only under `_other`.",
            "tidemark_telemetry_series_dropped_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_telemetry_series_dropped_total", "replica, family"),
                "{{replica}} {{family}}",
                needs="more topics, pairs or groups than a bound allows",
            ),
        ),
        width=8,
        bars=True,
        nothing="Nothing was folded",
    ),
)

CLUSTER: Final = Board(
    uid=uids.CLUSTER,
    title="Tidemark / Cluster",
    description="What is wrong now, and what to check next.",
    rows=(
        Row("Now", (NOW, WHAT, HOW_LONG, JUDGED), (4, 7, 7, 6)),
        Row("Traffic", (TRAFFIC_OF_ALL, TRAFFIC_BY), (7, 7)),
        Row("Pipeline", (DELAY,), (8,)),
        Row("Limits", (ROOM, RUNNING), (7, 7)),
    ),
)
