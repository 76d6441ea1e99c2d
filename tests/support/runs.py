"""Runs made of messages: what an append takes, for tests that think in single messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.record import Message
from tidemark.formats.runs import Run


def runs_of(messages: Sequence[Message]) -> list[Run]:
    """The messages as runs, in their order: neighbours that have all but flag, body and properties
    in common share one, and so get adjacent queue offsets."""
    return [
        Run(
            first.topic,
            first.queue_id,
            batch.encode(
                WireMessage(message.body, message.properties, message.flag)
                for message in (first, *rest)
            ),
            1 + len(rest),
            first.born_host,
            first.store_host,
            first.born_timestamp_ms,
            first.sys_flag,
            first.reconsume_times,
            first.prepared_transaction_offset,
        )
        for _, (first, *rest) in itertools.groupby(messages, key=_in_common)
    ]


def _in_common(message: Message) -> Message:
    return message._replace(body=b"", properties=b"", flag=0)
