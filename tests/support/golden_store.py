"""A golden store opened with our own code, and the places where it answers differently on purpose.

``expected`` is the manifest with the table of deviations applied: each is a rule about the kind of
store, never about one store's values, since it has to hold for stores of other sizes and seeds.

| Where the reference | the reference says | ours says, because |
|---|---|---|
| has pre-blank units at the start of a queue while the log starts at 0 | as minimum a unit amid them | the first message: what is before it can never be read (docs/formats.md 4.8); everything derived from the minimum follows |
| looks up a time in such a queue | 0, clamped, when its search meets a pre-blank unit | the message of that time (4.10) |
| has a queue whose last file is exactly full | an exception instead of the last physical end | the end (4.9) |
| cut a queue's lost tail | a last physical end behind the log's end: it reads units that it does not erase | the last message's end (4.7) |
| has a first record with an IPv6 born host | an exception instead of its store time | the store time |
| dispatches again after an unclean stop, and an index file had ended amid a record's keys | all its keys in the next file, some of them for the second time | each key once (5.4) |
"""  # noqa: E501 - the table's rows

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from shared.files.index import IndexReader
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import StoreConfig, StoreDir
from shared.runtime.clock import SystemClock
from tests.support import golden, golden_rules
from tests.support.golden_rules import Answer
from tidemark.formats import hosts
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host
from tidemark.formats.index_file import IndexFile
from tidemark.formats.record import Record

BOOT_ID = (1, 2)


def config_of(name: str) -> StoreConfig:
    """The settings that the store was written with."""
    settings = golden.manifest(name)["config"]
    return StoreConfig(
        commit_log_file_size=settings["mappedFileSizeCommitLog"],
        consume_queue_file_size=settings["mappedFileSizeConsumeQueue"],
        index_slots=settings["maxHashSlotNum"],
        index_entries=settings["maxIndexNum"],
        delay_levels=settings["messageDelayLevel"],
        record_crc=False,
    )


class Opened(NamedTuple):
    """A store after recovery and dispatch."""

    name: str
    store: StoreDir
    positions: Positions
    recovered: Recovered
    log: CommitLogReader
    queues: ConsumeQueues
    key_index: IndexReader

    @property
    def end(self) -> int:
        """End of the log, which is also the end of dispatch."""
        return self.recovered.end

    def queue(self, asked: Answer) -> ConsumeQueueReader:
        """The queue that a manifest's entry speaks of."""
        return self.queues.get(asked["topic"], asked["queueId"])

    def close(self) -> None:
        """Give everything back."""
        self.key_index.close()
        self.queues.forget()
        self.log.close()
        self.positions.close()


def open_golden(name: str, into: Path) -> Opened:
    """Unpack below into, recover, dispatch to the end."""
    return open_unpacked(name, golden.unpack(name, into))


def open_unpacked(name: str, root: Path) -> Opened:
    """Recover the copy of a golden store at root, dispatch to the end."""
    store = StoreDir(OsDisk(), root, config_of(name))
    store.open_or_create()
    positions = Positions.open(store.disk, store.checkpoint_path)
    recovered = recover(store, positions, boot_id=BOOT_ID, now=0)
    log = CommitLogReader(store, positions)
    dispatch_all(store, positions, log)
    return Opened(
        name,
        store,
        positions,
        recovered,
        log,
        ConsumeQueues(store, log),
        IndexReader(store, log),
    )


def dispatch_all(store: StoreDir, positions: Positions, log: CommitLogReader) -> None:
    """Bring queues and index to the end of the log."""
    dispatcher = Dispatcher(store, positions, log, clock=SystemClock(), boot_id=BOOT_ID)
    dispatcher.resume()
    while dispatcher.step():
        pass
    dispatcher.sync()
    dispatcher.close()
    assert dispatcher.dispatched == dispatcher.durable == positions.get(Slot.FLUSHED)


def described(record: Record) -> Answer:
    """A record in the manifest's words."""
    return {
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp_ms,
        "storeTimestamp": record.store_timestamp_ms,
        "bornHost": record.born_host,
        "storeHost": record.store_host,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodySize": len(record.body),
        "bodyCrc": record.body_crc,
        "bodySha256": hashlib.sha256(record.body).hexdigest(),
        "properties": record.property_map,
        "msgId": record.message_id,
    }


def host(text: str) -> Host:
    """A host of the manifest; Java writes IPv6 in full."""
    return hosts.parse(text)


# -- deviations that need the store's files; the others are in ``golden_rules``


class Border(NamedTuple):
    """The record at which an index file of before a crash ended, its last keys yet to come."""

    physical_offset: int
    indexed: int
    """Its keys in the file that was full."""
    file: int
    """Number of the file that goes on with it."""


def indexed_twice(opened: Opened) -> Border | None:
    """The record that the reference indexed again from its first key; None if there is none."""
    files = golden.manifest(opened.name)["index"]
    for number, (full, remade) in enumerate(pairwise(files), start=1):
        offset = full["endPhyOffset"]
        if remade["name"] is None and remade["beginPhyOffset"] == offset:
            raw = (opened.store.index_dir / full["name"]).read_bytes()
            file = IndexFile(memoryview(raw), opened.store.config.index_geometry)
            entries = map(file.entry, range(1, file.entry_count + 1))
            return Border(offset, sum(entry.physical_offset == offset for entry in entries), number)
    return None


def expected_earliest_time(opened: Opened) -> int:
    """Store time of the log's first record."""
    answer = golden.manifest(opened.name)["commitLog"]["earliestMessageTime"]
    if answer is None:
        first = min(
            golden_rules.messages(opened.name), key=lambda message: int(message["physicalOffset"])
        )
        answer = first["storeTimestamp"]
    return int(answer)
