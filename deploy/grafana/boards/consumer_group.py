"""Consumer group: its delay, the trend, and the stage or queue that causes the delay."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
from deploy.grafana.limits import FALLING_BEHIND
from deploy.grafana.panels import (
    BLUE,
    ENDLESS,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Board,
    Column,
    Heat,
    Lines,
    Row,
    Stat,
    Step,
    Table,
    Timeline,
    Word,
)
from deploy.grafana.queries import (
    AGE,
    GROUP,
    MOST,
    OBJECTIVE,
    PAIR,
    TO_OBJECTIVE,
    TOPIC,
    WINDOW,
    Query,
    at_end,
    growth,
    quantiles,
    rate,
)
from deploy.grafana.stages import COLOURS, stages
from deploy.grafana.states import PAIR_WORDS, pair_state

PROGRESS: Final = f"tidemark:group_progress:ratio5m{{{PAIR}}}"
NO_RETRIES: Final = 'topic!~"%RETRY%.*"'
BEHIND: Final = "a group that has unread messages"

STATE: Final = (
    Stat(
        title="Age",
        description=describe(
            "How old the oldest unread message is, of the worst pair chosen: how late the group "
            "is.",
            "tidemark_group_lag_seconds",
        ),
        unit=units.SECONDS,
        queries=(Query(f"max({AGE})"),),
        width=4,
        calm=BLUE,
        spark=True,
        unknown="no group",
    ),
    Stat(
        title="Age / objective",
        description=describe(
            "The same against what the group is meant to keep; above 100 % it is late.",
            "tidemark_group_lag_objective_seconds",
        ),
        unit=units.SHARE,
        queries=(Query(f"max({TO_OBJECTIVE})"),),
        width=4,
        steps=(Step(0.5, YELLOW), Step(1, RED)),
        spark=True,
        unknown="no group",
    ),
    Stat(
        title="Progress",
        description="Seconds of stored time read per second, of the slowest pair chosen, over five "
        "minutes: 1 keeps pace, 0 stands still, 3 catches up at triple speed. Nothing is shown "
        "while there is no lag.",
        unit=units.PLAIN,
        queries=(Query(f"min({PROGRESS})", needs=BEHIND),),
        width=4,
        calm=RED,
        steps=(Step(0.5, ORANGE), Step(FALLING_BEHIND.value, GREEN)),
        unknown="no lag",
    ),
    Stat(
        title="Drain time",
        description="How long until the age is 0 again at the present pace, of the slowest pair: "
        "age / (progress − 1). Never while it does not shrink. Not the age: a group can be an hour "
        "behind and drained in a minute.",
        unit=units.SECONDS,
        queries=(
            Query(
                f"max(tidemark:group_lag_seconds:max{{{PAIR}}} / clamp_min({PROGRESS} - 1, 0)) "
                f"or max({AGE}) == 0",
                needs="a group without lag, or lag for a minute",
            ),
        ),
        width=4,
        steps=(Step(86_400, RED),),
        words=(Word(ENDLESS, "never", RED),),
    ),
    Stat(
        title="Members",
        description=describe("Over all chosen groups and broker sets.", "tidemark_group_members"),
        unit=units.COUNT,
        queries=(Query(f"sum(tidemark_group_members{{{GROUP}}})"),),
        width=4,
        calm=ORANGE,
        steps=(Step(1, GREEN),),
        spark=True,
        unknown="no group",
    ),
    Stat(
        title="Unread",
        description=describe(
            "A count has no natural limit: use the age.", "tidemark_group_lag_messages"
        ),
        unit=units.COUNT,
        queries=(Query(f"sum(tidemark_group_lag_messages{{{PAIR}}})"),),
        width=4,
        calm=BLUE,
        spark=True,
        unknown="no group",
    ),
)
HISTORY: Final = (
    Timeline(
        title="State by topic",
        description="Per group and topic. Late: the age is above the objective. Stuck: members are "
        "there, messages are there, nothing is committed. A gap: unknown.",
        unit=units.PLAIN,
        queries=(
            Query(
                f"{pair_state()} and topk({MOST}, {at_end(TO_OBJECTIVE)})", "{{group}} / {{topic}}"
            ),
        ),
        width=16,
        words=PAIR_WORDS,
        nothing="No consumer group",
    ),
    Lines(
        title="Members by group",
        description=describe(
            "A saw means members that come and go: sessions that run out, or restarts.",
            "tidemark_group_members",
        ),
        unit=units.COUNT,
        queries=(Query(f"sum by (group) (tidemark_group_members{{{GROUP}}})", "{{group}}"),),
        width=8,
    ),
)

LATE: Final = (
    Lines(
        title="Age by topic",
        description=describe(
            "The twenty oldest; those that wait for another try are below. Dashed: the objective "
            "of the chosen groups, the smallest.",
            "tidemark_group_lag_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"topk({MOST}, {AGE})",
                "{{group}} / {{topic}}",
            ),
            Query(f"min({OBJECTIVE})", "objective"),
        ),
        width=12,
        over=("objective",),
        colours=(("objective", RED),),
    ),
    Lines(
        title="Where the time goes",
        description=describe(
            "Distance of the oldest uncommitted message of the chosen pairs from the newest "
            "record, split without a rest: waiting for copies, for dispatch, for delivery, for the "
            "commit. The age is larger by the time since anything was stored.",
            "tidemark_group_awaiting_delivery_timestamp_seconds",
            "tidemark_group_oldest_uncommitted_timestamp_seconds",
        ),
        unit=units.SECONDS,
        queries=stages(),
        width=12,
        stacked=True,
        colours=COLOURS,
        links=(uids.to(uids.PIPELINE, "Dispatch and replication"),),
    ),
)
HOW_MUCH: Final = (
    Lines(
        title="Unread messages",
        description=describe("The twenty largest.", "tidemark_group_lag_messages"),
        unit=units.COUNT,
        queries=(
            Query(
                f"topk({MOST}, sum by (group, topic) "
                f'(tidemark_group_lag_messages{{{PAIR}, kind="main"}}))',
                "{{group}} / {{topic}}",
            ),
        ),
        width=6,
    ),
    Lines(
        title="Unread in retry topics",
        description=describe(
            "Messages whose handling failed and whose time for another try has come.",
            "tidemark_group_lag_messages",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"topk({MOST}, sum by (group) "
                f'(tidemark_group_lag_messages{{{GROUP}, kind="retry"}}))',
                "{{group}}",
            ),
        ),
        width=6,
    ),
    Lines(
        title="In flight",
        description=describe(
            "The twenty largest. Flat at a bound: the members' buffers are full, they are what is "
            "slow.",
            "tidemark_group_inflight_messages",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"topk({MOST}, sum by (group, topic) "
                f"(tidemark_group_inflight_messages{{{PAIR}, {NO_RETRIES}}}))",
                "{{group}} / {{topic}}",
            ),
        ),
        width=6,
    ),
    Lines(
        title="Queues by condition",
        description=describe(
            "Over all chosen pairs.",
            "tidemark_group_lagging_queues",
            "tidemark_group_stuck_queues",
            "tidemark_group_ahead_queues",
            "tidemark_group_unknown_queues",
        ),
        unit=units.COUNT,
        queries=tuple(
            Query(f"sum(tidemark_group_{name}_queues{{{PAIR}}})", name)
            for name in ("lagging", "stuck", "ahead", "unknown")
        ),
        width=6,
        colours=(("lagging", ORANGE), ("stuck", RED), ("ahead", YELLOW), ("unknown", "#8e8e8e")),
    ),
)

RATES: Final = (
    Lines(
        title="Produced against consumed",
        description="Stored in the topics that the chosen groups read, and committed by them. "
        "Several groups on one topic commit a multiple.",
        unit=units.MESSAGES_RATE,
        queries=(
            Query(
                f"sum({rate('tidemark_broker_messages_in_total', 'cluster, broker, topic', TOPIC)} "
                f"and "
                "on (cluster, broker, topic) "
                f"tidemark_group_lag_messages{{{PAIR}}})",
                "produced",
            ),
            Query(
                f"sum(rate(tidemark_group_consumed_messages_total{{{PAIR}}}[{WINDOW}]))", "consumed"
            ),
            Query(
                f"sum(rate(tidemark_broker_messages_out_total{{{PAIR}}}[{WINDOW}]))", "delivered"
            ),
        ),
        width=12,
    ),
    Lines(
        title="Consumed by topic",
        description=describe("Stacked.", "tidemark_group_consumed_messages_total"),
        unit=units.MESSAGES_RATE,
        queries=(
            Query(
                f"topk({MOST}, "
                f"{rate('tidemark_group_consumed_messages_total', 'group, topic', PAIR)})",
                "{{group}} / {{topic}}",
            ),
        ),
        width=12,
        stacked=True,
    ),
)
AGAIN: Final = (
    Lines(
        title="Delivered again, withheld",
        description=describe(
            "Work without progress.",
            "tidemark_group_redelivered_messages_total",
            "tidemark_group_filtered_messages_total",
        ),
        unit=units.MESSAGES_RATE,
        queries=(
            Query(
                f"sum(rate(tidemark_group_redelivered_messages_total{{{PAIR}}}[{WINDOW}]))",
                "delivered again",
                needs="a message delivered twice",
            ),
            Query(
                f"sum(rate(tidemark_group_filtered_messages_total{{{PAIR}}}[{WINDOW}]))",
                "withheld by tags",
                needs="a subscription with tags",
            ),
        ),
        width=8,
        nothing="None",
    ),
    Lines(
        title="Given up, never read",
        description=describe(
            "Messages per step of the graph. `expired` are lost to the group.",
            "tidemark_group_dead_messages_total",
            "tidemark_group_skipped_messages_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_group_dead_messages_total", "group", PAIR),
                "{{group}} dead letters",
                needs="a dead letter",
            ),
            Query(
                growth("tidemark_group_skipped_messages_total", "group, reason", PAIR),
                "{{group}} {{reason}}",
                needs="messages passed over",
            ),
        ),
        width=8,
        bars=True,
        nothing="None",
    ),
    Lines(
        title="Offset resets",
        description=describe(
            "Per step of the graph. An operator moved the offsets of the group.",
            "tidemark_group_offset_resets_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_group_offset_resets_total", "group, direction", PAIR),
                "{{group}} {{direction}}",
                needs="a reset",
            ),
        ),
        width=8,
        bars=True,
        nothing="No resets",
    ),
)

UNREAD_OF_QUEUE: Final = (
    f"max by (cluster, broker, group, topic, queue) (tidemark_queue_max_offset_messages{{{TOPIC}}} "
    "- on (cluster, broker, replica, topic, queue) group_right () "
    f"tidemark_group_queue_offset_messages{{{PAIR}}})"
)
SKEW: Final = (
    Lines(
        title="Largest queue's share of the lag",
        description=describe(
            "1 / number of queues when the lag is even; 100 % when a single queue has all of it: a "
            "hot key, or one slow member. Nothing is shown without lag.",
            "tidemark_group_lag_queue_max_messages",
        ),
        unit=units.SHARE,
        queries=(
            Query(
                f"topk({MOST}, max by (group, topic) "
                f"(tidemark_group_lag_queue_max_messages{{{PAIR}}}) / sum by (group, topic) "
                f'(tidemark_group_lag_messages{{{PAIR}, kind="main"}} > 0))',
                "{{group}} / {{topic}}",
                needs=BEHIND,
            ),
        ),
        width=8,
        top=1,
        nothing="No lag",
    ),
    Lines(
        title="Longest since a commit moved",
        description=describe(
            "Rises by a second per second while a queue with lag stands still.",
            "tidemark_group_commit_age_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"topk({MOST}, max by (group, topic) "
                f"(tidemark_group_commit_age_seconds{{{PAIR}, {NO_RETRIES}}}))",
                "{{group}} / {{topic}}",
            ),
        ),
        width=8,
    ),
    Table(
        title="Ten longest queues",
        description=describe(
            "Unread messages per queue now, the age of the oldest, and which member has the queue: "
            "queues of a group and broker set with one number are one member's. Only for queues "
            "below the bound of series by queue.",
            "tidemark_group_queue_offset_messages",
            "tidemark_group_queue_oldest_timestamp_seconds",
            "tidemark_group_queue_member_number",
        ),
        unit=units.COUNT,
        queries=(
            Query(f"topk(10, {UNREAD_OF_QUEUE})"),
            Query(
                "max by (cluster, broker, group, topic, queue) "
                f"(time() - tidemark_group_queue_oldest_timestamp_seconds{{{PAIR}}}) "
                f"and topk(10, {UNREAD_OF_QUEUE})",
                needs=BEHIND,
            ),
            Query(
                "max by (cluster, broker, group, topic, queue) "
                f"(tidemark_group_queue_member_number{{{PAIR}}}) "
                f"and topk(10, {UNREAD_OF_QUEUE})",
                needs="a group with members",
            ),
        ),
        columns=(
            Column("group", "Group"),
            Column("topic", "Topic"),
            Column("broker", "Broker set", width=90, links=(uids.TO_BROKER,)),
            Column("queue", "Queue", width=65),
            Column("A", "Unread", units.COUNT, width=80),
            Column("B", "Age of oldest", units.SECONDS, width=110),
            Column("C", "Member", units.PLAIN, words=(Word(0, "none", ORANGE),), width=80),
        ),
        sort="Unread",
        width=8,
        nothing="No committed offsets",
    ),
)

DELAYS: Final = (
    Heat(
        title="Store to delivery",
        description=describe(
            "Each column is a moment; dark cells are where most deliveries fell.",
            "tidemark_group_delivery_delay_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(rate("tidemark_group_delivery_delay_seconds_bucket", "le", GROUP), "{{le}}"),
        ),
        width=12,
    ),
    Heat(
        title="Store to commit",
        description=describe(
            "Each column is a moment; dark cells are where most commits fell.",
            "tidemark_group_consume_delay_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(rate("tidemark_group_consume_delay_seconds_bucket", "le", GROUP), "{{le}}"),
        ),
        width=12,
    ),
)
DELAY_SHARES: Final = (
    Lines(
        title="Store to delivery, quantiles",
        description=describe(
            "Half, 99 % and 99.9 % of deliveries were faster.",
            "tidemark_group_delivery_delay_seconds",
        ),
        unit=units.SECONDS,
        queries=quantiles("tidemark_group_delivery_delay_seconds", GROUP),
        width=12,
        log=True,
    ),
    Lines(
        title="Store to commit, quantiles",
        description=describe(
            "Half, 99 % and 99.9 % of commits were faster.", "tidemark_group_consume_delay_seconds"
        ),
        unit=units.SECONDS,
        queries=quantiles("tidemark_group_consume_delay_seconds", GROUP),
        width=12,
        log=True,
    ),
)

CONSUMER_GROUP: Final = Board(
    uid=uids.CONSUMER_GROUP,
    title="Tidemark / Consumer group",
    description="How late a group is, whether it catches up, and what holds it up.",
    rows=(
        Row("State", (STATE, HISTORY), (4, 7)),
        Row("Lag", (LATE, HOW_MUCH), (9, 7)),
        Row("Rates", (RATES, AGAIN), (7, 6)),
        Row("Skew", (SKEW,), (8,)),
        Row("Delays", (DELAYS, DELAY_SHARES), (8, 7)),
    ),
)
