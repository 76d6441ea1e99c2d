"""Messages in records: which ones of a batch are shown, and under which offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from services.broker.read.pull import parse_tags
from services.broker.read.unpacking import (
    message_at,
    messages_of,
    named_messages,
    pulled_messages,
)
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.pull import PullResult, get_message
from tests.support.small_store import CONFIG, SmallStore
from tidemark.errors import CorruptRecord, UnknownMessage
from tidemark.formats import inner_batch, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.queue_unit import encode_batch
from tidemark.formats.record import Checks, Record
from tidemark.offsets import PhysicalOffset, QueueOffset

ALL = Checks()
TWO_TAGS = [
    WireMessage(b"0", b"TAGS\x01a\x02UNIQ_KEY\x01U0\x02KEYS\x01k0 shared\x02"),
    WireMessage(b"1", b"TAGS\x01b\x02UNIQ_KEY\x01U1\x02KEYS\x01k1 shared\x02"),
    WireMessage(b"2", b"", 7),
]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store", replace(CONFIG, commit_log_file_size=1 << 20))
    yield store
    store.close()


def pulled(
    small: SmallStore, offset: int = 0, *, topic: str = "batches", tags: str | None = None
) -> PullResult:
    small.flush()
    log = CommitLogReader(small.store, small.positions)
    small.with_it.callback(log.close)
    with closing(ConsumeQueueReader(small.store, topic, 0, log)) as queue:
        return get_message(
            queue, log, offset=offset, dispatched=small.end, wanted=parse_tags(tags), bulk=True
        )


def offsets(result: PullResult, tags: str | None = None) -> list[int]:
    found = list(pulled_messages(result, lambda _: ALL, parse_tags(tags)))
    assert all(isinstance(each.found, Record) for each in found)
    return [each.queue_offset for each in found]


def stored(small: SmallStore) -> Record:
    """The record of the newest pull."""
    ((_, _, data),) = pulled(small).records()
    return record.decode(data)


def test_the_messages_of_batches_follow_each_other_from_the_asked_offset_on(
    small: SmallStore,
) -> None:
    small.put_batch([b"0", b"1", b"2"])
    small.put_batch([b"3", b"4"])
    assert offsets(pulled(small)) == [0, 1, 2, 3, 4]
    assert offsets(pulled(small, 2)) == [2, 3, 4]
    found = [each.found for each in pulled_messages(pulled(small, 1), lambda _: ALL)]
    assert [bytes(each.body) for each in found if isinstance(each, Record)] == [
        b"1", b"2", b"3", b"4",
    ]  # fmt: skip


def test_each_message_of_a_batch_is_compared_with_the_wanted_tags(small: SmallStore) -> None:
    small.put_batch(TWO_TAGS)
    for tags, wanted in (("a", [0]), ("b || c", [1]), ("c", []), (None, [0, 1, 2])):
        assert offsets(pulled(small, tags=tags), tags) == wanted
    codes = [each.tags_code for each in pulled_messages(pulled(small), lambda _: ALL)]
    assert codes == [97, 98, 0]


def test_hashes_alone_are_compared_where_there_are_no_tags(small: SmallStore) -> None:
    small.put_batch(TWO_TAGS)
    wanted = parse_tags("b")
    assert wanted is not None
    by_hash = wanted._replace(tags=None)
    found = pulled_messages(pulled(small), lambda _: ALL, by_hash)
    assert [each.queue_offset for each in found] == [1]


def test_a_single_record_is_shown_with_the_code_of_its_unit(small: SmallStore) -> None:
    unit = small.put("orders", body=b"one", tags="new")
    small.put_unit("orders", 0, 0, unit._replace(tags_code=5))
    (only,) = pulled_messages(pulled(small, topic="orders"), lambda _: ALL)
    assert isinstance(only.found, Record)
    assert (only.queue_offset, only.tags_code, bytes(only.found.body)) == (0, 5, b"one")


# The tags have the same hash. In an ordinary queue the pull has compared the tags themselves.
def test_a_single_record_in_a_batch_queue_is_compared_with_the_tags_too(small: SmallStore) -> None:
    small.put_batch([b"0", b"1"])
    unit = small.put("batches", body=b"2", tags="Aa")
    directory = small.store.queue_directory("batches", 0)
    small._put_at(directory, 1, encode_batch(unit, small.now_ms, 2, 1))
    assert offsets(pulled(small)) == [0, 1, 2]
    assert offsets(pulled(small, tags="Aa"), "Aa") == [2]
    assert offsets(pulled(small, tags="BB"), "BB") == []


def test_damage_ends_the_messages_at_the_first_that_is_not_shown(small: SmallStore) -> None:
    small.put_batch([b"first", b"second"])
    unit = small.put_batch([b"third", b"fourth"])
    small.flush()
    log = small.log_file()
    data = bytearray(log.read_bytes())
    data[data.index(b"fourth")] ^= 1
    log.write_bytes(data)
    *sound, (at, damage, _) = pulled_messages(pulled(small), lambda _: ALL)
    assert [each.queue_offset for each in sound] == [0, 1]
    assert at == 2
    assert isinstance(damage, CorruptRecord)
    assert damage.facts["at"] == unit.physical_offset
    ((at, damage, _),) = pulled_messages(pulled(small, 3), lambda _: ALL)
    assert (at, type(damage)) == (3, CorruptRecord)


def test_a_batch_whose_body_holds_other_messages_than_it_says_is_damage(small: SmallStore) -> None:
    small.put_batch([b"0", b"1"])
    one = stored(small)
    broken = one._replace(body=one.body[:-1])
    with pytest.raises(CorruptRecord, match="inner batch"):
        messages_of(broken)
    small.flush()
    log = small.log_file()
    data = bytearray(log.read_bytes())
    data[data.index(one.body) + 19] = 24  # the size of the first body: it spans the second entry
    log.write_bytes(data)
    ((at, damage, _),) = pulled_messages(pulled(small), lambda _: record.SHAPE_ONLY)
    assert (at, type(damage)) == (0, CorruptRecord)


def test_a_message_of_a_record_is_named_by_its_queue_offset(small: SmallStore) -> None:
    small.put_batch([b"before"])
    small.put_batch(TWO_TAGS)
    *_, (_, _, data) = pulled(small).records()
    found = record.decode(data)
    assert message_at(found, None) == message_at(found, 1)
    assert [bytes(message_at(found, each).body) for each in (1, 2, 3)] == [b"0", b"1", b"2"]
    for outside in (0, 4):
        with pytest.raises(UnknownMessage, match=r"it holds 1 to 3 of queue 0") as caught:
            message_at(found, outside)
        assert caught.value.facts["max_offset"] == 4


def test_a_word_of_the_index_finds_the_messages_that_have_it_or_all(small: SmallStore) -> None:
    small.put_batch(TWO_TAGS, unique_id="U0", keys="k0 shared k1")
    found = stored(small)

    def bodies(word: str, *, unique_id_only: bool = False) -> list[bytes]:
        named = named_messages(found, word, unique_id_only=unique_id_only)
        return [bytes(each.body) for each in named]

    assert bodies("k1") == [b"1"]
    assert bodies("shared") == [b"0", b"1"]
    assert bodies("U0", unique_id_only=True) == bodies("U0") == [b"0"]
    assert bodies("of the batch alone") == [b"0", b"1", b"2"]
    assert bodies("k1", unique_id_only=True) == [b"0", b"1", b"2"]


def test_a_single_record_is_its_own_message(small: SmallStore) -> None:
    unit = small.put("orders", body=b"one", keys="k", unique_id="U")
    small.flush()
    with closing(CommitLogReader(small.store, small.positions)) as log:
        found = log.record(PhysicalOffset(unit.physical_offset), small.end)
        assert found is not None
        assert named_messages(found, "anything", unique_id_only=False) == [found]
        assert message_at(found, None) == message_at(found, 0) == found
        with pytest.raises(UnknownMessage):
            message_at(found, 1)
        del found


def test_messages_are_made_when_they_are_taken(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.put_batch([b"x"] * 30_000)
    result = pulled(small, 20_000)
    made: list[int] = []
    real = inner_batch.message

    def noted(stored: Record, index: int, entry: WireMessage) -> Record:
        made.append(index)
        return real(stored, index, entry)

    monkeypatch.setattr(inner_batch, "message", noted)
    first = next(pulled_messages(result, lambda _: ALL))
    assert (first.queue_offset, made) == (20_000, [20_000])
    (_, _, record_bytes), *_ = result.records()
    assert message_at(record.decode(record_bytes), 7).queue_offset == 7
    assert made == [20_000, 7]


def test_the_messages_of_a_pull_end_at_its_next_offset(small: SmallStore) -> None:
    small.put_batch([b"x"] * 9)
    result = pulled(small, 2)._replace(next_offset=QueueOffset(5))
    assert offsets(result) == [2, 3, 4]
