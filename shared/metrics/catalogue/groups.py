"""Broker: consumer groups. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import DELAY_BUCKETS, Fold, counter, declared, gauge, histogram

# One family is one row of a table.
# fmt: off
GROUP_LAG_MESSAGES: Final = gauge("tidemark_group_lag_messages{group,topic,kind}", "messages",
    "Max offset minus the later of commit and min offset, summed over queues",
    title="Unread messages", alert="nothing: a count has no natural threshold")
GROUP_LAG_SECONDS: Final = gauge("tidemark_group_lag_seconds{group,topic,kind}", "s",
    "Now minus the store time of the oldest unread message, largest over queues; 0 without one",
    title="Age", fold=Fold.MAX,
    alert="above the group's `tidemark_group_lag_objective_seconds` for 2 minutes")
GROUP_LAG_QUEUE_MAX_MESSAGES: Final = gauge(
    "tidemark_group_lag_queue_max_messages{group,topic}", "messages",
    "Largest lag of a single queue: compared with the sum it shows skew",
    fold=Fold.MAX)
GROUP_INFLIGHT_MESSAGES: Final = gauge("tidemark_group_inflight_messages{group,topic}", "messages",
    "Messages delivered to members and not committed",
    title="In flight", alert="flat at a bound: the members' buffers are full, the members are slow")
GROUP_COMMIT_AGE_SECONDS: Final = gauge("tidemark_group_commit_age_seconds{group,topic}", "s",
    "Longest time since the commit was seen to move, over queues with lag; 0 without one. Its "
    "resolution is the scrape interval",
    title="Time since a commit moved", fold=Fold.MAX)
GROUP_LAGGING_QUEUES: Final = gauge("tidemark_group_lagging_queues{group,topic}", "queues",
    "Queues whose oldest unread message is older than the objective")
GROUP_STUCK_QUEUES: Final = gauge("tidemark_group_stuck_queues{group,topic}", "queues",
    "Queues with lag whose commit has not moved for four times its longest recent gap (a minute "
    "at least, half an hour at most) while the group has members",
    title="Queues stuck", alert="above 0 for 2 minutes")
GROUP_AHEAD_QUEUES: Final = gauge("tidemark_group_ahead_queues{group,topic}", "queues",
    "Queues whose commit lies beyond all that is stored",
    alert="any")
GROUP_UNKNOWN_QUEUES: Final = gauge("tidemark_group_unknown_queues{group,topic}", "queues",
    "Queues with unknown lag; they are in no sum")
GROUP_SUBSCRIBED: Final = gauge("tidemark_group_subscribed{group,topic}", "–",
    "1 while a member subscribes to the topic",
    fold=Fold.MAX)
GROUP_MEMBERS: Final = gauge("tidemark_group_members{group}", "members",
    "Members that have sent a heartbeat within their session",
    title="Members",
    alert="0 for a group that should have members; a saw: sessions run out, or members restart")
GROUP_LAG_OBJECTIVE_SECONDS: Final = gauge("tidemark_group_lag_objective_seconds{group}", "s",
    "`lag_objective_ms` of the group; 60 s unless it was set",
    fold=Fold.NONE)
GROUP_CONSUME_ENABLED: Final = gauge("tidemark_group_consume_enabled{group}", "–",
    "`consume_enabled` of the group: 0 while an operator has paused it; then no member joins or "
    "gets messages",
    fold=Fold.NONE)
GROUP_BROADCASTING: Final = gauge("tidemark_group_broadcasting{group}", "–",
    "`broadcast` of the group: 1 if each member reads everything for itself, so that there are "
    "no commits and no lag",
    fold=Fold.NONE)
GROUP_CONSUMED_MESSAGES_TOTAL: Final = counter(
    "tidemark_group_consumed_messages_total{group,topic}", "messages",
    "Sum of forward commit moves",
    title="Consumed by topic")
GROUP_SKIPPED_MESSAGES_TOTAL: Final = counter(
    "tidemark_group_skipped_messages_total{group,topic,reason}", "messages",
    "Messages that the group can never read: `expired`, `reset_forward`",
    alert="`expired`: any")
GROUP_FILTERED_MESSAGES_TOTAL: Final = counter(
    "tidemark_group_filtered_messages_total{group,topic}", "messages",
    "Messages withheld by a subscription's tags")
GROUP_OFFSET_RESETS_TOTAL: Final = counter(
    "tidemark_group_offset_resets_total{group,topic,direction}", "resets",
    "Resets that moved a queue's commit, `backward` or `forward`",
    title="Offset resets")
GROUP_REDELIVERED_MESSAGES_TOTAL: Final = counter(
    "tidemark_group_redelivered_messages_total{group,topic}", "messages",
    "Deliveries beyond the first from the same queue",
    alert="a steady rate: members die, or sessions are too short")
GROUP_DEAD_MESSAGES_TOTAL: Final = counter(
    "tidemark_group_dead_messages_total{group,topic}", "messages",
    "Messages moved to the dead-letter topic, by the topic they came from",
    alert="any")
GROUP_DELIVERY_DELAY_SECONDS: Final = histogram("tidemark_group_delivery_delay_seconds{group}", "s",
    "Store time to delivery of the oldest message of each queue's share of a fetch",
    title="Store to delivery", buckets=DELAY_BUCKETS)
GROUP_CONSUME_DELAY_SECONDS: Final = histogram("tidemark_group_consume_delay_seconds{group}", "s",
    "Store time to commit of the oldest message that each commit of a queue covers",
    title="Store to commit", buckets=DELAY_BUCKETS)
GROUP_QUEUE_OFFSET_MESSAGES: Final = gauge(
    "tidemark_group_queue_offset_messages{group,topic,queue}", "messages",
    "Committed offset of the group on one queue, read in one pass with the queue's max offset; "
    "absent where it never committed",
    fold=Fold.NONE)
GROUP_QUEUE_OLDEST_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_group_queue_oldest_timestamp_seconds{group,topic,queue}", "s",
    "Store time of the oldest message of the queue that the group has not committed; absent when "
    "there is none",
    fold=Fold.NONE)
GROUP_QUEUE_MEMBER_NUMBER: Final = gauge(
    "tidemark_group_queue_member_number{group,topic,queue}", "–",
    "A number that stands for the member that holds the queue, the same on all queues of that "
    "member as long as it is there; 0 when no member of a group that has some holds it. Absent "
    "where the broker does not know: of a group without members, and while members of before a "
    "restart are waited for",
    fold=Fold.NONE)
GROUP_OLDEST_UNDELIVERED_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_group_oldest_undelivered_timestamp_seconds{group,topic}", "s",
    "Store time of the oldest undelivered message, over queues; that of "
    "`tidemark_log_dispatched_message_timestamp_seconds` when all are",
    fold=Fold.MIN)
GROUP_OLDEST_UNCOMMITTED_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_group_oldest_uncommitted_timestamp_seconds{group,topic}", "s",
    "Store time of the oldest message not yet committed, over queues; that of the oldest "
    "undelivered one when nothing is in flight",
    fold=Fold.MIN)
GROUP_AWAITING_DELIVERY_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_group_awaiting_delivery_timestamp_seconds{group,topic}", "s",
    "Of the queue with the oldest uncommitted message: store time of its oldest message not yet "
    "handed to a member; that of `tidemark_log_dispatched_message_timestamp_seconds` when all "
    "are, or when the queue's member has messages in hand and does not fetch, or when the next "
    "message was handed out twice or more before. Delivery ends here, and processing begins",
    fold=Fold.MIN)
# fmt: on

GROUPS: Final = declared(globals())
