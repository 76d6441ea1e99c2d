"""Consumer group: its delay, the trend, and the stage or queue that causes the delay."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.limits import FALLING_BEHIND
from deploy.grafana.panels import (
    BLUE,
    ENDLESS,
    GREEN,
    GREY,
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
    rare,
)
from deploy.grafana.queries import (
    AGE,
    BY_PAIR,
    GROUP,
    MOST,
    OBJECTIVE,
    PAIR,
    TO_OBJECTIVE,
    TOPIC,
    Query,
    at_end,
    buckets,
    gauge,
    growth,
    largest,
    legend,
    quantiles,
    rate,
)
from deploy.grafana.stages import COLOURS, stages
from deploy.grafana.states import PAIR_WORDS, pair_state

PROGRESS: Final = f"tidemark:group_progress:ratio5m{{{PAIR}}}"
NO_RETRIES: Final = f'{PAIR}, topic!~"%RETRY%.*"'
BEHIND: Final = "a group that has unread messages"
NO_GROUP: Final = "no group"
UNREAD: Final = "tidemark_group_lag_messages"

STATE: Final = (
    Stat(Query(f"max({AGE})"), calm=BLUE, spark=True, unknown=NO_GROUP),
    Stat(
        Query(f"max({TO_OBJECTIVE})"),
        title="Age / objective",
        text="Of the worst pair chosen; above 100 % it is late.",
        unit=units.SHARE,
        steps=(Step(0.5, YELLOW), Step(1, RED)),
        spark=True,
        unknown=NO_GROUP,
    ),
    Stat(
        Query(f"min({PROGRESS})", given=BEHIND),
        title="Progress",
        text="Seconds of stored time read per second, of the slowest pair chosen, over five "
        "minutes: 1 keeps pace, 0 stands still, 3 catches up at triple speed. Nothing is shown "
        "while there is no lag.",
        unit=units.PLAIN,
        calm=RED,
        steps=(Step(0.5, ORANGE), Step(FALLING_BEHIND.value, GREEN)),
        unknown="no lag",
    ),
    Stat(
        Query(
            f"max(tidemark:group_lag_seconds:max{{{PAIR}}} / clamp_min({PROGRESS} - 1, 0)) "
            f"or max({AGE}) == 0",
            given="a group without lag, or lag for a minute",
        ),
        title="Drain time",
        text="How long until the age is 0 again at the present pace, of the slowest pair: "
        "age / (progress − 1). Never while it does not shrink. Not the age: a group can be an "
        "hour behind and drained in a minute.",
        steps=(Step(86_400, RED),),
        words=(Word(ENDLESS, "never", RED),),
    ),
    Stat(
        gauge("tidemark_group_members", "", how="sum", where=GROUP),
        calm=ORANGE,
        steps=(Step(1, GREEN),),
        spark=True,
        unknown=NO_GROUP,
    ),
    Stat(gauge(UNREAD, "", how="sum", where=PAIR), calm=BLUE, spark=True, unknown=NO_GROUP),
)
HISTORY: Final = (
    Timeline(
        Query(f"{pair_state()} and topk({MOST}, {at_end(TO_OBJECTIVE)})", legend(BY_PAIR)),
        width=16,
        title="State by topic",
        text="Per group and topic. Late: the age is above the objective. Not read: the group has "
        "no members. A gap: unknown.",
        unit=units.PLAIN,
        words=PAIR_WORDS,
        nothing="No consumer group",
    ),
    Lines(
        gauge("tidemark_group_members", "group", how="sum", where=GROUP),
        width=8,
        title="Members by group",
    ),
)

LATE: Final = (
    Lines(
        (largest(Query(AGE, legend(BY_PAIR))), Query(f"min({OBJECTIVE})", "objective")),
        title="Age by topic",
        text="Without retry topics. Dashed: the smallest objective of the chosen groups.",
        over=("objective",),
        colours=(("objective", RED),),
    ),
    Lines(
        stages(),
        title="Where the time goes",
        text="Distance of the oldest uncommitted message of the chosen pairs from the newest "
        "record, split into the waits for copies, for dispatch, for delivery and for the commit. "
        "The age is larger by the time since anything was stored.",
        stacked=True,
        colours=COLOURS,
        links=(uids.ON_PIPELINE,),
    ),
)
HOW_MUCH: Final = (
    Lines(
        largest(gauge(UNREAD, "group, topic", how="sum", where=f'{PAIR}, kind="main"')),
        title="Unread by topic",
    ),
    Lines(
        largest(gauge(UNREAD, "group", how="sum", where=f'{GROUP}, kind="retry"')),
        title="Unread in retry topics",
        text="Messages whose processing failed and that are due for another try.",
    ),
    Lines(
        largest(
            gauge("tidemark_group_inflight_messages", "group, topic", how="sum", where=NO_RETRIES)
        )
    ),
    Lines(
        tuple(
            gauge(f"tidemark_group_{name}_queues", "", name, how="sum", where=PAIR)
            for name in ("lagging", "stuck", "ahead", "unknown")
        ),
        title="Queues by condition",
        colours=(("lagging", ORANGE), ("stuck", RED), ("ahead", YELLOW), ("unknown", GREY)),
    ),
)

BY_TOPIC: Final = "cluster, broker, topic"
PRODUCED: Final = rate("tidemark_broker_messages_in_total", BY_TOPIC, where=TOPIC).expr
RATES: Final = (
    Lines(
        (
            Query(f"sum({PRODUCED} and on ({BY_TOPIC}) {UNREAD}{{{PAIR}}})", "produced"),
            rate("tidemark_group_consumed_messages_total", "", "consumed", where=PAIR),
            rate("tidemark_broker_messages_out_total", "", "delivered", where=PAIR),
        ),
        title="Produced against consumed",
        text="Stored in the topics that the chosen groups read, and committed by them. Several "
        "groups on one topic commit a multiple.",
    ),
    Lines(
        largest(rate("tidemark_group_consumed_messages_total", "group, topic", where=PAIR)),
        stacked=True,
    ),
)
AGAIN: Final = "tidemark_group_redelivered_messages_total"
WITHHELD: Final = "tidemark_group_filtered_messages_total"
DEAD: Final = "tidemark_group_dead_messages_total"
SKIPPED: Final = "tidemark_group_skipped_messages_total"
NO_PROGRESS: Final = (
    Lines(
        (
            rate(AGAIN, "", "delivered again", where=PAIR, given="a message delivered twice"),
            rate(WITHHELD, "", "withheld by tags", where=PAIR, given="a subscription with tags"),
        ),
        title="Delivered again, withheld",
        text="Work without progress.",
        nothing="None",
    ),
    Lines(
        (
            growth(DEAD, "group", "dead letters", where=PAIR, given="a dead letter"),
            growth(SKIPPED, "group, reason", where=PAIR, given="messages passed over"),
        ),
        title="Given up, never read",
        bars=True,
    ),
    rare("tidemark_group_offset_resets_total", "group, direction", "a reset", where=PAIR),
)

BY_QUEUE: Final = "cluster, broker, group, topic, queue"
UNREAD_OF_QUEUE: Final = (
    f"max by ({BY_QUEUE}) (tidemark_queue_max_offset_messages{{{TOPIC}}} "
    "- on (cluster, broker, replica, topic, queue) group_right () "
    f"tidemark_group_queue_offset_messages{{{PAIR}}})"
)
LONGEST: Final = f"topk(10, {UNREAD_OF_QUEUE})"
SKEW: Final = (
    Lines(
        Query(
            f"topk({MOST}, max by (group, topic) "
            f"(tidemark_group_lag_queue_max_messages{{{PAIR}}}) / sum by (group, topic) "
            f'(tidemark_group_lag_messages{{{PAIR}, kind="main"}} > 0))',
            legend(BY_PAIR),
            given=BEHIND,
        ),
        title="Largest queue's share of the lag",
        text="1 / number of queues when the lag is even; 100 % when a single queue has all of it: "
        "a hot key, or one slow member. Nothing is shown without lag.",
        unit=units.SHARE,
        top=1,
        nothing="No lag",
    ),
    Lines(largest(gauge("tidemark_group_commit_age_seconds", "group, topic", where=NO_RETRIES))),
    Table(
        (
            Query(LONGEST),
            Query(
                f"max by ({BY_QUEUE}) "
                f"(time() - tidemark_group_queue_oldest_timestamp_seconds{{{PAIR}}}) and {LONGEST}",
                given=BEHIND,
            ),
            Query(
                f"max by ({BY_QUEUE}) (tidemark_group_queue_member_number{{{PAIR}}}) and {LONGEST}",
                given="a group with members",
            ),
        ),
        title="Ten longest queues",
        text="Unread messages per queue, the age of the oldest, and its member: queues of a group "
        "and broker set with one number have the same member. Only for queues below the bound of "
        "series by queue.",
        unit=units.COUNT,
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
        nothing="No committed offsets",
    ),
)

DELAY_FAMILIES: Final = (
    "tidemark_group_delivery_delay_seconds",
    "tidemark_group_consume_delay_seconds",
)
DELAYS: Final = tuple(Heat(buckets(name, GROUP)) for name in DELAY_FAMILIES)
DELAY_SHARES: Final = tuple(
    Lines(quantiles(name, where=GROUP), log=True) for name in DELAY_FAMILIES
)

CONSUMER_GROUP: Final = Board(
    uid=uids.CONSUMER_GROUP,
    title="Tidemark / Consumer group",
    description="How late is a group, does it catch up, and what delays it?",
    rows=(
        Row("State", (STATE, HISTORY), (4, 7)),
        Row("Lag", (LATE, HOW_MUCH), (9, 7)),
        Row("Rates", (RATES, NO_PROGRESS), (7, 6)),
        Row("Skew", (SKEW,), (8,)),
        Row("Delays", (DELAYS, DELAY_SHARES), (8, 7)),
    ),
)
