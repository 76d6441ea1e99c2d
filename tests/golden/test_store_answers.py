"""Every question of every manifest, answered by our own store code on a fresh copy of the store.

Recovery finds the end that the reference found, dispatch builds queues and index up to it, and then
each answer must be the manifest's. The deviations are few; ``support.golden_store`` lists them and
``support.golden_rules`` has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.files.commit_log import CommitLogAppender
from shared.files.consume_queue import Boundary, ConsumeQueueReader
from shared.files.mapped_file_queue import MappedFileQueue
from shared.files.pull import get_message
from tests.support import golden, golden_rules, golden_store
from tests.support.golden_rules import Answer, has_key
from tests.support.golden_store import IndexFacts, Opened
from tests.support.index_query import headers, hits, query
from tests.support.runs import runs_of
from tidemark.formats import ids, record, scan
from tidemark.formats.hashing import string_hash
from tidemark.formats.record import Checks, Message
from tidemark.formats.scan import Stop
from tidemark.formats.select import Wanted
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset


@pytest.fixture(scope="module", params=golden.golden_names())
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    found = golden_store.open_golden(request.param, tmp_path_factory.mktemp(request.param))
    yield found
    found.close()


def manifest(opened: Opened) -> Answer:
    return golden.manifest(opened.name)


def test_recovery_finds_the_end_that_the_reference_found(opened: Opened) -> None:
    log = manifest(opened)["commitLog"]
    assert opened.recovered.end == log["maxOffset"] == log["confirmOffset"] == log["flushedWhere"]
    assert opened.recovered.min_offset == log["minOffset"] == opened.log.min_offset
    assert opened.recovered.read_only is None


def test_a_torn_tail_is_kept_aside_and_nothing_is_left_behind_the_end(opened: Opened) -> None:
    damage = manifest(opened).get("damage")
    cut = opened.recovered.cut
    if damage is None:
        assert cut is None
        return
    torn = damage["torn"]
    assert cut is not None
    assert cut.start == torn["physicalOffset"] == opened.end
    assert cut.path.read_bytes()[: torn["bytesWritten"]].rstrip(b"\0")
    size = opened.store.config.commit_log_file_size
    for start, path in golden.commit_log_files(opened.store.root):
        assert not any(path.read_bytes()[max(0, opened.end - start) : size])


def test_every_queue_goes_on_with_the_number_the_reference_would_give(opened: Opened) -> None:
    expected = {
        (queue["topic"], queue["queueId"]): queue["nextOffset"]
        for queue in manifest(opened)["queues"]
    }
    assert opened.recovered.next_queue_offsets == expected


def test_the_log_has_the_records_fillers_and_files_of_the_manifest(opened: Opened) -> None:
    log = manifest(opened)["commitLog"]
    size = opened.store.config.commit_log_file_size
    records, blanks, last = 0, [], -1
    at = opened.log.min_offset
    while at < opened.end:
        walk = scan.walk(
            opened.log.window(at, opened.recovered.end),
            at=at,
            checks=Checks(),
            records_max=1000,
            delay_levels_ms=(),
        )
        records += len(walk.entries)
        last = walk.entries[-1].physical_offset if walk.entries else last
        at = PhysicalOffset(at + walk.end)
        if walk.stop is Stop.BLANK:
            blanks.append({"physicalOffset": at, "size": opened.log.next_file(at) - at})
            at = opened.log.next_file(at)
    assert records == log["records"]
    assert blanks == log["blanks"]
    assert last == log["recoveredConfirmPhyOffset"]
    names = [path.name for start, path in golden.commit_log_files(opened.store.root)]
    assert [name for name in names if int(name) < opened.end] == log["files"]
    assert all(
        path.stat().st_size == size for _, path in golden.commit_log_files(opened.store.root)
    )


def test_the_first_record_has_the_earliest_message_time(opened: Opened) -> None:
    first = opened.log.record(opened.log.min_offset, opened.recovered.end)
    assert first is not None
    assert first.store_timestamp_ms == golden_store.expected_earliest_time(opened)


def test_every_queue_has_the_bounds_of_the_manifest(opened: Opened) -> None:
    assert opened.store.queues() == [
        (queue["topic"], queue["queueId"]) for queue in manifest(opened)["queues"]
    ]
    for queue in manifest(opened)["queues"]:
        expected = golden_rules.expected_queue(opened.name, queue)
        units = opened.queue(queue)
        first = units.min_offset(opened.log.min_offset)
        end = units.max_offset(opened.end)
        last = units.last_record_end(opened.end)
        directory = opened.store.queue_directory(queue["topic"], queue["queueId"]).path
        files = sorted(path.name for path in directory.iterdir())
        readable = (number for number in range(first, end) if units.unit(number) is not None)
        answer = {
            "minOffset": first,
            "maxOffset": end,
            "minLogicOffset": first * UNIT_SIZE,
            "maxPhysicOffset": last,
            "lastOffset": last,
            "messageTotal": end - first,
            "files": [name for name in files if int(name) < end * UNIT_SIZE],
            "firstUnit": next(readable, None),
        }
        assert answer == {field: expected[field] for field in answer}


def test_every_message_of_every_queue_is_the_manifests(opened: Opened) -> None:
    found = 0
    for queue in manifest(opened)["queues"]:
        expected = golden_rules.expected_queue(opened.name, queue)
        units = opened.queue(queue)
        number = expected["minOffset"]
        answers = []
        while number < expected["maxOffset"]:
            part = units.units(number, 10_000, opened.end)
            if not part:
                number = units.roll_next(number)
                continue
            for unit in part:
                answers.append((number, unit))
                number += 1
        assert len(answers) == len(expected["messages"])
        for (number, unit), message in zip(answers, expected["messages"], strict=True):
            assert number == message["queueOffset"]
            assert unit.physical_offset == message["physicalOffset"]
            assert unit.size == message["size"]
            assert unit.tags_code == message["tagsCode"]
            if not message.get("readable", True):
                offset = PhysicalOffset(unit.physical_offset)
                assert opened.log.read(offset, unit.size, opened.recovered.end) is None
                continue
            assert_message(opened, queue["queueId"], message)
            found += 1
    assert found == manifest(opened)["messagesInQueues"]


def test_records_without_a_unit_are_the_manifests(opened: Opened) -> None:
    for message in manifest(opened)["unqueued"]:
        assert_message(opened, message["queueId"], message)


def assert_message(opened: Opened, queue: int, message: Answer) -> None:
    found = opened.log.record(PhysicalOffset(message["physicalOffset"]), opened.recovered.end)
    assert found is not None
    answer = golden_store.described(found)
    expected = message | {
        "bornHost": golden_store.host(message["bornHost"]),
        "storeHost": golden_store.host(message["storeHost"]),
    }
    assert answer == {field: expected[field] for field in answer}
    assert found.queue_id == queue


def test_every_time_look_up_gives_the_queue_offset_of_the_manifest(opened: Opened) -> None:
    for asked in manifest(opened)["offsetByTime"]:
        answer = opened.queue(asked).offset_by_time(
            asked["timestamp"], Boundary[asked["boundary"]], dispatched=opened.end
        )
        assert answer == golden_rules.expected_offset_by_time(opened.name, asked), asked


def test_every_pull_has_the_manifests_status_and_messages(opened: Opened) -> None:
    for asked in manifest(opened)["getMessage"]:
        result = get_message(
            opened.queue(asked),
            opened.log,
            offset=asked["offset"],
            count_max=asked["maxMsgNums"],
            bytes_max=asked["maxTotalMsgSize"],
            wanted=subscribed(asked["subscription"]),
            dispatched=opened.end,
        )
        messages = list(result.records())
        answer = {
            "status": result.status.value,
            "nextBeginOffset": result.next_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
            "messageCount": result.message_count,
            "bufferTotalSize": result.bytes_total,
            "queueOffsets": [number for number, _, _ in messages],
            "physicalOffsets": [unit.physical_offset for _, unit, _ in messages],
        }
        expected = golden_rules.expected_pull(opened.name, asked)
        assert answer == {field: expected[field] for field in answer}, asked
        assert sum(map(len, result.stretches)) == result.bytes_total
        assert sum(len(data) for _, _, data in messages) == result.bytes_total


def subscribed(expression: str | None) -> Wanted | None:
    if expression is None or expression == "*":
        return None
    return Wanted(frozenset(string_hash(tag.strip()) for tag in expression.split("||")))


def test_every_key_query_hits_the_records_of_the_manifest(opened: Opened) -> None:
    remade = golden_store.remade_index(opened.name)
    twice = set() if remade is None else remade.twice
    for asked in manifest(opened)["queryMessage"]:
        found = hits(
            opened.key_index,
            opened.log,
            asked["topic"],
            asked["key"],
            begin_ms=asked["begin"],
            end_ms=asked["end"],
            hits_max=asked["maxNum"],
            dispatched=opened.end,
        )
        if twice & set(asked["physicalOffsets"]):
            assert set(asked["physicalOffsets"]) <= set(found.physical_offsets), asked
        else:
            assert found.physical_offsets == asked["physicalOffsets"], asked
        assert found.last_update_timestamp_ms == asked["indexLastUpdateTimestamp"]
        assert found.last_update_offset == asked["indexLastUpdatePhyOffset"]


def test_a_filtered_key_query_returns_each_record_that_has_the_key_once(opened: Opened) -> None:
    by_offset = {m["physicalOffset"]: m for m in golden_rules.messages(opened.name)}
    for asked in manifest(opened)["queryMessage"]:
        answer = query(
            opened.key_index,
            asked["topic"],
            asked["key"],
            begin_ms=asked["begin"],
            end_ms=asked["end"],
            hits_max=asked["maxNum"],
            dispatched=opened.end,
        )
        real = {
            offset
            for offset in asked["physicalOffsets"]
            if has_key(by_offset[offset], asked["topic"], asked["key"])
        }
        assert answer == sorted(set(answer))
        assert real <= set(answer), asked
        assert all(has_key(by_offset[offset], asked["topic"], asked["key"]) for offset in answer)
        limit = min(asked["maxNum"], 64)
        assert len(answer) <= limit
        if len(asked["physicalOffsets"]) < limit:
            assert set(answer) == real, asked


def test_the_index_files_have_the_manifests_headers(opened: Opened) -> None:
    found = [
        IndexFacts(
            beginTimestamp=header.begin_timestamp_ms,
            endTimestamp=header.end_timestamp_ms,
            beginPhyOffset=header.begin_offset,
            endPhyOffset=header.end_offset,
            hashSlotCount=header.slots_used,
            indexCount=header.next_entry,
        )
        for header in headers(opened.key_index)
    ]
    files = manifest(opened)["index"]
    expected = [IndexFacts(*(file[field] for field in IndexFacts._fields)) for file in files]
    remade = golden_store.remade_index(opened.name)
    if remade is not None:
        geometry = opened.store.config.index_geometry
        assert golden_store.index_of(remade, remade.again, geometry) == expected
        expected = golden_store.index_of(remade, remade.once, geometry)
    assert found == expected
    names = [file["name"] for file in files if file["name"] is not None]
    assert opened.key_index.names()[: len(names)] == names


CLEANED = [name for name in golden.golden_names() if golden.manifest(name).get("afterCleaning")]


@pytest.mark.parametrize("name", CLEANED)
def test_after_retention_queues_and_index_equal_the_manifest(name: str, tmp_path: Path) -> None:
    opened = golden_store.open_golden(name, tmp_path)
    expected = golden.manifest(name)["afterCleaning"]
    log_min, config = opened.log.min_offset, opened.store.config
    try:
        for queue in expected["queues"]:
            units = opened.queue(queue)
            units.min_offset(log_min)
            files = MappedFileQueue(
                opened.store.disk,
                opened.store.queue_directory(queue["topic"], queue["queueId"]).path,
                config.consume_queue_file_size,
                writable=True,
            )
            files.load()

            def is_expired(start: int, units: ConsumeQueueReader = units) -> bool:
                last = units.unit(units.roll_next(start // UNIT_SIZE) - 1)
                return last is not None and last.physical_offset < log_min

            while is_expired(files.starts[0]) and files.delete_oldest(files.starts[0]):
                pass
            # The same reader: it must notice that its first file was deleted.
            answer = {
                "topic": queue["topic"],
                "queueId": queue["queueId"],
                "minOffset": units.min_offset(log_min),
                "maxOffset": units.max_offset(opened.end),
                "files": [f"{start:020d}" for start in files.starts],
            }
            assert answer == queue
            files.close()
        files_and_ends = zip(opened.key_index.names(), headers(opened.key_index), strict=True)
        kept = [file for file, header in files_and_ends if header.end_offset >= log_min]
        assert kept == expected["indexFiles"]
    finally:
        opened.close()


@pytest.mark.parametrize("pool_size", [0, 1 << 20], ids=["no pool", "pool"])
@pytest.mark.parametrize("name", golden.golden_names())
def test_the_next_message_of_each_queue_gets_the_manifests_place(
    name: str, pool_size: int, tmp_path: Path
) -> None:
    opened = golden_store.open_golden(name, tmp_path)
    appender = CommitLogAppender(opened.store, opened.positions, pool_size=pool_size)
    appender.start_at(opened.recovered.end)
    placed: dict[PhysicalOffset, bytes] = {}
    try:
        for asked in golden.manifest(name)["nextAppends"]:
            assert asked["status"] == "PUT_OK"
            store_host, physical_offset = ids.parse_offset_id(asked["msgId"])
            key = asked["topic"], asked["queueId"]
            number = opened.recovered.next_queue_offsets.get(key, 0)
            body = asked["body"].encode()
            message = Message(*key, body, store_host, store_host)
            at, sizes = appender.append(runs_of([message]), [number], 1_800_000_000_000)
            (size,) = memoryview(sizes).cast("I")
            assert number == asked["queueOffset"]
            assert at == asked["physicalOffset"] == physical_offset
            assert size == asked["size"] == record.encoded_size(message, record_crc=False)
            assert ids.offset_id(store_host, at) == asked["msgId"]
            opened.recovered.next_queue_offsets[key] = QueueOffset(number + 1)
            placed[at] = body
        end = appender.flush()
        for at, body in placed.items():
            found = opened.log.record(at, end)
            assert found is not None
            assert bytes(found.body) == body
    finally:
        appender.close(clean=True)
        opened.close()
