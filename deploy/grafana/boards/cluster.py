"""Cluster: present problems and links to details; the first board to open after an alert."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.limits import DISPATCH_SLOW, REPLICA_LAG, STORE_NEARLY_FULL
from deploy.grafana.panels import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Board,
    Column,
    Lines,
    Link,
    Row,
    Stat,
    Step,
    Table,
    Timeline,
    rare,
)
from deploy.grafana.problems import blamed, problems
from deploy.grafana.queries import (
    AGE,
    BY_GROUP,
    BY_PAIR,
    JOBS,
    MEMBERS,
    NODE,
    NODES,
    OBJECTIVE,
    PAIR,
    STUCK,
    TO_OBJECTIVE,
    TOPIC,
    Query,
    age,
    at_end,
    gauge,
    legend,
    or_zero,
    rate,
    series,
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
UNKNOWN: Final = f"tidemark_group_unknown_queues{{{PAIR}}}"
RULES_RUN: Final = 'tidemark:targets:count{cluster=~"$cluster"}'
WORRY: Final = (Step(1, RED),)
CAUTION: Final = (Step(1, ORANGE),)
NO_GROUP: Final = "no group"
BEYOND: Final = "more topics, pairs or groups than a bound allows"
MASTERS: Final = f'sum by (cluster, broker) (tidemark_ha_role{{{NODE}, role="master"}})'


def _firing(severity: str) -> str:
    # 0 only while the rules are evaluated: without them the number of alerts is unknown.
    firing = FIRING.replace("}", f', severity="{severity}"}}')
    return or_zero(f"count({firing})", RULES_RUN)


def _count(
    expr: str,
    title: str,
    text: str,
    steps: tuple[Step, ...] = WORRY,
    unknown: str = "unknown",
    links: tuple[Link, ...] = (),
) -> Stat:
    shown, unit = Query(expr), units.COUNT
    return Stat(shown, title=title, text=text, unit=unit, steps=steps, unknown=unknown, links=links)


def _top_five(name: str, by: str, where: str) -> Query:
    chosen = f"topk(5, sum by ({by}) (rate({name}{{{where}}}[$__range] @ end())))"
    return Query(f"{rate(name, by, where=where).expr} and {chosen}", legend(by))


NOW: Final = (
    _count(
        _firing("page"),
        "Pages",
        "Alerts that fire and page: start with the table below. Unknown means that Prometheus "
        "runs none of the recording rules, so it runs no alerts either.",
    ),
    _count(_firing("ticket"), "Tickets", "Alerts that fire and wait for the day.", CAUTION),
    _count(
        or_zero(f"count({TARGETS} == 0)", TARGETS),
        "Targets down",
        "Processes that Prometheus cannot scrape: down, cut off, or standing still. Their "
        "series are missing everywhere else, so check here first.",
        links=(uids.ON_BROKER,),
    ),
    _count(
        or_zero(f"count(tidemark_ready{{{NODE}}} == 0)", f"tidemark_ready{{{NODE}}}"),
        "Not ready",
        "Processes that are not ready. `/ready` of the process and its log have the reason.",
        links=(uids.ON_BROKER,),
    ),
    _count(
        or_zero(f"count({MASTERS} != 1)", f"tidemark_ha_role{{{NODE}}}"),
        "Without one master",
        "Broker sets that have no master, or two. None: sends are refused until one is "
        "elected. Unknown: no ha process is scraped, as with a node that runs alone.",
        unknown=NO_GROUP,
        links=(uids.ON_PIPELINE,),
    ),
    Stat(
        Query(
            f"sum(max by (cluster, broker) (tidemark_ha_configured_replicas{{{NODE}}}) - "
            f"max by (cluster, broker) (tidemark_ha_in_sync_replicas{{{NODE}}}))"
        ),
        title="Copies missing",
        text="Configured replicas that are not in sync, over all broker sets. A send with "
        "`ack=replicated` waits for the ones that are.",
        steps=CAUTION,
        unknown=NO_GROUP,
        links=(uids.ON_PIPELINE,),
    ),
    _count(
        or_zero(f"count({LATE})", AGE),
        "Pairs late",
        "Pairs of group and topic whose oldest unread message is older than the group's objective.",
        CAUTION,
        unknown=NO_GROUP,
        links=(uids.ON_CONSUMER_GROUP,),
    ),
    Stat(
        gauge("tidemark_group_stuck_queues", "", how="sum", where=PAIR),
        steps=WORRY,
        unknown=NO_GROUP,
        links=(uids.ON_CONSUMER_GROUP,),
    ),
)

WHAT: Final = (
    Table(
        Query(
            severity_state(FIRING, "alertname, broker, replica, peer, group, topic"),
            given="an alert that fires",
        ),
        title="Firing alerts",
        text="What fires now. The runbook has a heading of the same name, with the query that "
        "shows the evidence.",
        unit=units.PLAIN,
        columns=(
            Column("A", "Severity", units.PLAIN, words=SEVERITY_WORDS, width=90),
            Column("alertname", "Alert"),
            Column("broker", "Broker set", links=(uids.TO_BROKER,), width=100),
            Column("replica", "Node", width=110),
            *uids.PAIR_COLUMNS,
            Column("peer", "Peer", width=90),
        ),
        sort="Severity",
        nothing="Nothing fires",
    ),
    Table(
        (
            Query(WORST),
            Query(f"{AGE} and {WORST}"),
            Query(f"{WORST} ^ 0 * on ({BY_GROUP}) group_left () {OBJECTIVE}"),
            Query(f"{MESSAGES} and {WORST}"),
        ),
        title="Worst five by age",
        text="The five pairs furthest beyond their objective: age of the oldest unread message "
        "over the group's objective. Click the group.",
        unit=units.COUNT,
        columns=(
            *uids.PAIR_COLUMNS,
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
        nothing="No consumer group",
    ),
)

HOW_LONG: Final = (
    Lines(
        (
            Query(or_zero(f"count({LATE})", AGE), "late"),
            Query(or_zero(f"count({STUCK} > 0)", STUCK), "stuck"),
            Query(or_zero(f"count({AGE} > 0 and on ({BY_GROUP}) {MEMBERS} == 0)", AGE), "not read"),
            Query(or_zero(f"count(sum by ({BY_PAIR}) ({UNKNOWN}) > 0)", UNKNOWN), "unknown queues"),
        ),
        title="Pairs by state",
        text="How many pairs of group and topic are late, stuck, without a member, or not known. "
        "The others are in time. A pair can be in two of them.",
        unit=units.COUNT,
        colours=(("late", ORANGE), ("stuck", RED), ("not read", BLUE), ("unknown queues", GREY)),
    ),
    Timeline(
        Query(f"{pair_state()} and {WORST_NOW}", legend(BY_PAIR)),
        title="State of the five worst",
        text="The pairs that are furthest beyond their objective now, and since when. A gap: "
        "unknown.",
        unit=units.PLAIN,
        words=PAIR_WORDS,
    ),
    Timeline(Query(role_state(), "{{replica}}"), words=ROLE_WORDS, links=(uids.ON_PIPELINE,)),
)

EVALUATED: Final = (problems(16, 10), blamed(8))

TRAFFIC_OF_ALL: Final = (
    Lines(
        (
            rate("tidemark_broker_messages_in_total", "", "in", where=TOPIC),
            rate("tidemark_broker_messages_out_total", "", "out", where=TOPIC),
        ),
        title="Messages in and out",
        text="Out is a multiple of in where several groups read the same topic.",
    ),
    Lines(
        (
            rate("tidemark_broker_received_bytes_total", "", "in", where=TOPIC),
            rate("tidemark_broker_sent_bytes_total", "", "out", where=TOPIC),
        ),
        title="Bytes in and out",
    ),
    Lines(
        rate("tidemark_broker_put_results_total", "result", where=f'{NODE}, result!="ok"'),
        title="Sends not answered with ok",
    ),
)
TRAFFIC_BY: Final = (
    Lines(rate("tidemark_broker_messages_in_total", "kind", where=TOPIC), stacked=True),
    Lines(
        _top_five("tidemark_broker_messages_in_total", "topic", TOPIC),
        title="Top five topics in",
        text="The five topics with the most messages over the whole time shown.",
    ),
    Lines(
        _top_five("tidemark_broker_messages_out_total", "group", PAIR),
        title="Top five groups out",
        text="The five groups with the most deliveries over the whole time shown.",
    ),
)

DELAY: Final = (
    Lines(
        stages(),
        width=12,
        title="Where the time goes: the group furthest behind",
        text="The delay of the group furthest behind, split into its stages. Of several broker "
        "sets, each stage is the largest. The tallest colour is the stage to check.",
        nothing="No consumer group",
        stacked=True,
        colours=COLOURS,
        links=(uids.ON_CONSUMER_GROUP,),
    ),
    Lines(
        gauge("tidemark_dispatch_lag_seconds", NODES),
        width=6,
        steps=DISPATCH_SLOW.steps,
        links=(uids.ON_PIPELINE,),
    ),
    Lines(
        gauge("tidemark_ha_replica_lag_seconds", "broker, peer"),
        width=6,
        steps=REPLICA_LAG.steps,
        links=(uids.ON_PIPELINE,),
    ),
)

ROOM: Final = (
    Lines(
        series(
            f"tidemark_store_free_bytes{{{NODE}}} / tidemark_store_capacity_bytes{{{NODE}}}",
            f"{NODES}, volume",
            how="min",
        ),
        title="Free share of volumes",
        text="Below the line retention deletes early, then sends are refused.",
        unit=units.SHARE,
        steps=STORE_NEARLY_FULL.steps,
        top=1,
    ),
    Lines(gauge("tidemark_store_full_seconds", NODES, how="min"), log=True),
    Lines(
        (
            age("tidemark_log_oldest_message_timestamp_seconds", NODES),
            Query(f"max({AGE})", "oldest unread"),
        ),
        title="Retention span",
        text="Age of the oldest stored record. A group further behind loses messages unread.",
        over=("oldest unread",),
        colours=(("oldest unread", RED),),
    ),
)
PROCESS: Final = "broker, replica, service, version, python, store_format"
RUNNING: Final = (
    Table(
        Query(
            f"max by ({PROCESS}) "
            f"(tidemark_up_since_timestamp_seconds{{{NODE}}} * on (cluster, broker, replica, "
            f"service) group_left (version, python, store_format) "
            f"tidemark_node_info{{{NODE}}}) * 1000"
        ),
        width=16,
        title="Versions",
        unit=units.PLAIN,
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
    ),
    rare("tidemark_telemetry_series_dropped_total", "replica, family", BEYOND, width=8),
)

CLUSTER: Final = Board(
    uid=uids.CLUSTER,
    title="Tidemark / Cluster",
    description="What is wrong now, and what to check next?",
    rows=(
        Row("Now", (NOW, WHAT, HOW_LONG, EVALUATED), (4, 7, 7, 6)),
        Row("Traffic", (TRAFFIC_OF_ALL, TRAFFIC_BY), (7, 7)),
        Row("Pipeline", (DELAY,), (8,)),
        Row("Limits", (ROOM, RUNNING), (7, 7)),
    ),
)
