"""Alerts about consumer groups: based on age and progress, never on counts. Pure.

A pair is a group and a topic. With members on the topic it may be late, stuck or close to the
messages that retention deletes. Without members it counts as stopped if it was read within a day;
otherwise as abandoned.
"""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.recording import ON_GROUP, ON_NODE, ON_PAIR, PAIR, SET
from deploy.prometheus.model import Alert, Group, Severity, events

AGE: Final = "tidemark:group_lag_seconds:max"
OBJECTIVE: Final = "tidemark:group_lag_objective_seconds:max"
LATE: Final = f"{AGE} > {ON_GROUP} group_left () {OBJECTIVE}"
READ: Final = f"{ON_PAIR} tidemark:group_subscribed:max == 1"
NO_MEMBERS: Final = f"{ON_GROUP} tidemark:group_members:sum == 0"
READ_LATELY: Final = f"{ON_PAIR} tidemark:group_last_read:timestamp_seconds"

CONSUMERS: Final = Group(
    "tidemark-consumers",
    (
        Alert(
            "TidemarkGroupStopped",
            f"{LATE} and {NO_MEMBERS} and {READ_LATELY}",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} has no consumer and is {{ $value | humanizeDuration }} behind on "
            "{{ $labels.topic }}",
            "No member has sent a heartbeat, unread messages are older than the group's objective, "
            "and the topic was read within the last day. Messages wait until retention takes them.",
            waits="2m",
        ),
        Alert(
            "TidemarkGroupAbandoned",
            f"{LATE} and {NO_MEMBERS} unless {READ_LATELY}",
            Severity.INFO,
            PAIR,
            "{{ $labels.group }} has left {{ $labels.topic }} unread for "
            "{{ $value | humanizeDuration }}",
            "No member of the group has been seen for a day, and it holds offsets in the topic. "
            "Delete the group if it is not needed any more.",
            waits="1h",
        ),
        Alert(
            "TidemarkGroupStalled",
            f"sum by ({', '.join(PAIR)}) (tidemark_group_stuck_queues) > 0",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} makes no progress on {{ $value }} queues of {{ $labels.topic }}",
            "Members are there, messages are unread, and the commits stand still for far longer "
            "than is usual for these queues.",
            waits="2m",
            keeps="6m",
        ),
        Alert(
            "TidemarkGroupFallingBehind",
            f"tidemark:group_progress:ratio5m < 0.98 and {ON_PAIR} ({LATE}) and {READ}",
            Severity.TICKET,
            PAIR,
            "{{ $labels.group }} reads {{ $labels.topic }} at {{ $value | humanizePercentage }} of "
            "its pace",
            "The group is later than its objective and gets later: it reads fewer seconds of "
            "stored time than pass.",
            waits="10m",
            keeps="3m",
        ),
        Alert(
            "TidemarkGroupLagObjective",
            f"{AGE} > {ON_GROUP} group_left () (5 * {OBJECTIVE}) and {READ}"
            f" unless {ON_PAIR} tidemark:group_progress:ratio5m > 1.05",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} is {{ $value | humanizeDuration }} behind on {{ $labels.topic }}",
            "Unread messages are more than five times as old as the objective allows, and the "
            "group is not catching up.",
            waits="15m",
            keeps="5m",
        ),
        Alert(
            "TidemarkGroupRetentionRace",
            f'max by ({", ".join(PAIR)}) (tidemark_group_lag_seconds{{kind="main"}} > {ON_NODE}'
            " group_left () (0.8 * (time() - tidemark_log_oldest_message_timestamp_seconds))"
            f" and {ON_NODE} tidemark_retention_expiring_groups > 0) and {READ_LATELY}",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} is about to lose unread messages of {{ $labels.topic }} to "
            "retention: it is {{ $value | humanizeDuration }} behind",
            "What the group has not read is nearly as old as the oldest message of the log, and "
            "the file that goes next holds unread messages.",
            waits="5m",
        ),
        Alert(
            "TidemarkGroupMessagesLost",
            events('tidemark_group_skipped_messages_total{reason="expired"}', "10m", PAIR)
            + f" and {READ_LATELY}",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} lost about {{ $value | humanize }} unread messages of "
            "{{ $labels.topic }} to retention",
            "Retention deleted log files with messages that the group had not read. They cannot be "
            "read any more.",
            keeps="10m",
        ),
        Alert(
            "TidemarkGroupOffsetAhead",
            f"sum by ({', '.join(PAIR)}) (tidemark_group_ahead_queues) > 0",
            Severity.PAGE,
            PAIR,
            "{{ $labels.group }} committed beyond the end of {{ $value }} queues of "
            "{{ $labels.topic }}",
            "The group would skip what is stored there next. The log was cut behind the commit, or "
            "a wrong offset was written.",
            waits="1m",
        ),
        Alert(
            "TidemarkGroupOffsetReset",
            events("tidemark_group_offset_resets_total", "10m", (*PAIR, "direction")),
            Severity.INFO,
            (*PAIR, "direction"),
            "offsets of {{ $labels.group }} on {{ $labels.topic }} were moved "
            "{{ $labels.direction }}, about {{ $value | humanize }} times",
            "An operator reset the group: backward it reads again, forward it skips.",
            keeps="10m",
        ),
        Alert(
            "TidemarkDeadLetters",
            events("tidemark_group_dead_messages_total", "15m", PAIR),
            Severity.TICKET,
            PAIR,
            "{{ $labels.group }} gave up on about {{ $value | humanize }} messages of "
            "{{ $labels.topic }}",
            "They failed as often as the group allows and lie in its dead-letter topic until "
            "an operator redrives them or retention deletes them.",
            keeps="15m",
        ),
    ),
)
assert all(set(SET) <= set(alert.labels) for alert in CONSUMERS.alerts)
