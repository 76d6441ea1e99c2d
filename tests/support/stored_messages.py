"""The messages of a log, dispatched or not, those of inner batches one by one."""

from __future__ import annotations

from services.broker.send.stored_ids import walk
from tests.support.small_broker import SmallBroker
from tidemark.formats import inner_batch
from tidemark.formats.record import Record


def records_of(broker: SmallBroker, topic: str) -> list[Record]:
    """Return all records of a topic in the order of the log."""
    at, end = broker.reader.min_offset, broker.appender.appended
    found: list[Record] = []
    while at < end:
        entries, at = walk(broker.reader, at, end)
        found += [broker.record(each.physical_offset) for each in entries if each.topic == topic]
    return found


def messages_of(broker: SmallBroker, topic: str) -> list[Record]:
    """Return all messages of a topic in the order of the log."""
    return [message for each in records_of(broker, topic) for message in inner_batch.unpack(each)]
