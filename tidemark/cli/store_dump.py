"""``tidemark store dump``: prints records or queues as one JSON object per line. Read-only.

The names are those of the API. ``--queues`` shows the queues as the next start will leave them: the
units in the files up to the log's end, then those of records that are not dispatched yet.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator

from shared.files.consume_queue import EVERYTHING, ConsumeQueueReader
from shared.state.state import BrokerState
from tidemark.cli.offline import UNQUEUED, LogEnd, OfflineStore, apply_state, units_of
from tidemark.cli.output import body_facts
from tidemark.formats import record
from tidemark.formats.inner_batch import message_count
from tidemark.formats.record import Record
from tidemark.formats.scan import Entry

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def record_lines(offline: OfflineStore) -> Iterator[str | LogEnd]:
    """Yield one line per record in physical order, and finally the end of the log."""
    for found in offline.windows():
        if isinstance(found, LogEnd):
            yield found
            return
        for entry in found.entries:
            stored = record.decode(found.view, found.at(entry))
            yield _encode(record_facts(stored, entry.tags_code))


def record_facts(stored: Record, tags_code: int) -> dict[str, object]:
    """Return a record with the names of the API, and the body's SHA-256.

    batch_size: number of messages of an inner batch; 0 if the record is one message.
    """
    return {
        "message_id": stored.message_id,
        "unique_id": stored.unique_id,
        "topic": stored.topic,
        "queue": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "physical_offset": stored.physical_offset,
        "size": stored.size,
        "tags": stored.tags,
        "keys": stored.keys,
        "properties": stored.property_map,
        **body_facts(stored.body),
        "born_timestamp_ms": stored.born_timestamp_ms,
        "store_timestamp_ms": stored.store_timestamp_ms,
        "born_host": stored.born_host.text,
        "store_host": stored.store_host.text,
        "reconsume_times": stored.reconsume_times,
        "flag": stored.flag,
        "sys_flag": stored.sys_flag,
        "body_crc": stored.body_crc,
        "tags_code": tags_code,
        "prepared_transaction_offset": stored.prepared_transaction_offset,
        "batch_size": message_count(stored.sys_flag, stored.properties, stored.queue_offset),
        "body_sha256": hashlib.sha256(stored.body).hexdigest(),
    }


def queue_lines(offline: OfflineStore) -> Iterator[str | LogEnd]:
    """Yield one line per (topic, queue), sorted, and finally the end of the log."""
    ends: dict[tuple[str, int], int] = {}
    for topic, queue in offline.queues():
        reader = offline.reader(topic, queue)
        ends[topic, queue] = reader.max_offset(EVERYTHING)
        reader.close()
    state = BrokerState()
    log_end, behind = _undispatched(offline, ends, state)
    for topic, queue in sorted(ends.keys() | behind.keys()):
        known = state.find(topic)
        begins = 0 if known is None else known.min_offsets.get(queue, 0)
        reader = offline.reader(topic, queue)
        yield _encode(_queue_facts(offline, reader, log_end.end, behind[topic, queue], begins))
        reader.close()
    yield log_end


def _undispatched(
    offline: OfflineStore, ends: dict[tuple[str, int], int], state: BrokerState
) -> tuple[LogEnd, dict[tuple[str, int], list[Entry]]]:
    """Return the end of the log, and the records without a unit in any file, by queue.

    state: the log's state records are applied to it.
    """
    behind: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for found in offline.windows():
        if isinstance(found, LogEnd):
            return found, behind
        for entry in found.entries:
            apply_state(state, found, entry)
            key = entry.topic, entry.queue_id
            if (
                entry.queue_offset >= ends.get(key, 0)
                and entry.sys_flag & record.TRANSACTION_MASK not in UNQUEUED
            ):
                behind[key].append(entry)
    raise AssertionError("windows() ends with a LogEnd")


def _queue_facts(
    offline: OfflineStore,
    reader: ConsumeQueueReader,
    log_end: int,
    behind: list[Entry],
    begins: int,
) -> dict[str, object]:
    """Describe a queue. begins: no unit below it is shown, because the topic was deleted there."""
    end: int = reader.max_offset(log_end)
    first: int = min(reader.min_offset(offline.min_offset), end)
    if behind and reader.directory_is_empty:
        first = end = behind[0].queue_offset
    first = max(first, begins)
    units = [
        _unit(number, unit.physical_offset, unit.size, unit.tags_code)
        for number, unit in units_of(reader, first, end, log_end)
    ]
    for entry in behind:
        # After a lost log tail the files extend further than the log; offsets are reused there.
        if entry.queue_offset == end:
            if end >= first:
                units.append(_unit(end, entry.physical_offset, entry.size, entry.tags_code))
            end = entry.next_queue_offset
    return {
        "topic": reader.topic,
        "queue": reader.queue,
        "min_offset": min(first, end),
        "max_offset": end,
        "units": units,
    }


def _unit(queue_offset: int, physical_offset: int, size: int, tags_code: int) -> dict[str, int]:
    return {
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "size": size,
        "tags_code": tags_code,
    }
