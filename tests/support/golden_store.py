"""A golden store opened with our own code, and the places where it answers differently on purpose.

``expected`` is the manifest with the table of deviations applied: each is a rule about the kind of
store, never about one store's values, since it has to hold for stores of other sizes and seeds.

| Where the reference | the reference says | ours says, because |
|---|---|---|
| has pre-blank units at the start of a queue while the log starts at 0 | as minimum a unit amid them | the first message: what is before it can never be read (docs/formats.md 4.8); everything derived from the minimum follows |
| searches a time in such a queue | 0, clamped, when its search meets a pre-blank unit | the message of that time (4.10) |
| has a queue whose last file is exactly full | an exception instead of the last physical end | the end (4.9) |
| cut a queue's lost tail | a last physical end behind the log's end: it reads units that it does not erase | the last message's end (4.7) |
| has a first record with an IPv6 born host | an exception instead of its store time | the store time |
| dispatches again after an unclean stop, and an index file had ended amid a record's keys | all its keys in the next file, some of them for the second time | each key once (5.4) |
"""  # noqa: E501 - the table's rows

from __future__ import annotations

import hashlib
import struct
import tarfile
from collections.abc import Iterator
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
from tidemark.formats.hashing import index_hash
from tidemark.formats.hosts import Host
from tidemark.formats.index_file import ENTRY_SIZE, HEADER_SIZE, Geometry, Header
from tidemark.formats.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record

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
        """The queue of a manifest's entry."""
        return self.queues.get(asked["topic"], asked["queueId"])

    def close(self) -> None:
        """Close all files."""
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
    recovered = recover(store, positions, boot_id=BOOT_ID)
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
    assert dispatcher.dispatched == dispatcher.dispatched_mark.offset == positions.get(Slot.FLUSHED)


def described(record: Record) -> Answer:
    """A record with the manifest's field names."""
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


class IndexFacts(NamedTuple):
    """The header of an index file. The fields have the names of the manifest."""

    beginTimestamp: int
    endTimestamp: int
    beginPhyOffset: int
    endPhyOffset: int
    hashSlotCount: int
    indexCount: int


class Key(NamedTuple):
    """One key of a record, as the index holds it."""

    physical_offset: int
    store_timestamp_ms: int
    key_hash: int


class Remade(NamedTuple):
    """The index files that the reference kept after a kill, and the keys that it put again."""

    kept: list[IndexFacts]
    held: list[Key]
    """Keys of the newest file that was kept, in the order of its entries."""
    again: list[Key]
    """Keys of the records that the reference dispatched again, from the last kept record on."""

    @property
    def twice(self) -> set[int]:
        """Physical offsets of the records of which the reference has a key twice."""
        last = self.held[-1].physical_offset if self.held else None
        return {key.physical_offset for key in self.again} & {last}

    @property
    def once(self) -> list[Key]:
        """The keys put again without those that the kept file holds already."""
        end = [key.key_hash for key in self.held if key.physical_offset in self.twice]
        missing = []
        for key in self.again:
            if key.physical_offset in self.twice and key.key_hash in end:
                end.remove(key.key_hash)
            else:
                missing.append(key)
        return missing


def remade_index(name: str) -> Remade | None:
    """What the reference did to the index when it opened a store; None if it kept all of it."""
    manifest = golden.manifest(name)
    if not manifest["packed"]["abort"]:
        return None
    kept = [file for file in manifest["index"] if file["name"] is not None]
    held = _keys_held(name, kept[-1]) if kept else []
    first = held[-1].physical_offset if held else manifest["commitLog"]["minOffset"]
    by_offset = {m["physicalOffset"]: m for m in golden_rules.messages(name)}
    again = [
        Key(offset, by_offset[offset]["storeTimestamp"], key_hash)
        for offset in sorted(by_offset)
        if offset >= first
        for key_hash in _key_hashes(by_offset[offset])
    ]
    # The newest kept file may have room: the reference goes on in it, and so its header in the
    # manifest is not the one of the archive.
    return Remade([_facts(file) for file in kept[:-1]], held, again)


def index_of(remade: Remade, added: list[Key], geometry: Geometry) -> list[IndexFacts]:
    """Headers of the index files after keys were added behind those that were kept."""
    files = list(remade.kept)
    keys = remade.held + added
    for start in range(0, len(keys), geometry.entries - 1):
        part = keys[start : start + geometry.entries - 1]
        files.append(
            IndexFacts(
                beginTimestamp=part[0].store_timestamp_ms,
                endTimestamp=part[-1].store_timestamp_ms,
                beginPhyOffset=part[0].physical_offset,
                endPhyOffset=part[-1].physical_offset,
                hashSlotCount=len({key.key_hash % geometry.slots for key in part}),
                indexCount=len(part) + 1,
            )
        )
    return files


def _facts(file: Answer) -> IndexFacts:
    return IndexFacts(*(file[field] for field in IndexFacts._fields))


def _keys_held(name: str, file: Answer) -> list[Key]:
    """Keys of an index file of the archive, which the reference may have gone on with."""
    geometry = config_of(name).index_geometry
    with tarfile.open(golden.directory_of(name) / f"{name}.tar.gz") as archive:
        member = archive.extractfile(f"{name}/index/{file['name']}")
        assert member is not None
        header = Header(*struct.unpack(">4q2i", member.read(HEADER_SIZE)))
        member.seek(geometry.entry_offset(1))
        raw = member.read((header.next_entry - 1) * ENTRY_SIZE)
    times = {m["physicalOffset"]: m["storeTimestamp"] for m in golden_rules.messages(name)}
    times |= {
        header.begin_offset: header.begin_timestamp_ms,
        header.end_offset: header.end_timestamp_ms,
    }
    return [
        Key(offset, times.get(offset, -1), key_hash)
        for key_hash, offset, _, _ in struct.iter_unpack(">iqii", raw)
    ]


def _key_hashes(message: Answer) -> Iterator[int]:
    """Key hashes of a message in the order in which they are put (docs/formats.md 5.4)."""
    if message["sysFlag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return
    properties = message["properties"]
    if "UNIQ_KEY" in properties:
        yield index_hash(message["topic"], properties["UNIQ_KEY"])
    for key in properties.get("KEYS", "").split(" "):
        if key:
            yield index_hash(message["topic"], key)


def expected_earliest_time(opened: Opened) -> int:
    """Store time of the log's first record."""
    answer = golden.manifest(opened.name)["commitLog"]["earliestMessageTime"]
    if answer is None:
        first = min(
            golden_rules.messages(opened.name), key=lambda message: int(message["physicalOffset"])
        )
        answer = first["storeTimestamp"]
    return int(answer)
