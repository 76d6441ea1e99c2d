"""What a broker's answers become: each planned offset is a message or inside a gap."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.schema import TOPIC_MESSAGES, Gap
from analytics.sources.gap_rows import SourceGap
from analytics.sources.topic import reader as reader_module
from analytics.sources.topic.offsets import QueuePart
from analytics.sources.topic.options import TopicOptions
from analytics.sources.topic.pull import TopicUnreadable
from analytics.sources.topic.reader import TopicReader
from tidemark.client.messages import RawPull
from tidemark.formats import batch, inner_batch, properties, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message

HOST = Host(bytes([10, 9, 8, 7]), 10911)
Answer = Callable[[int, int], RawPull]


def stored(queue_offset: int, **pairs: str) -> bytes:
    return record.encode(
        Message(
            "orders",
            2,
            f"body {queue_offset}".encode(),
            HOST,
            HOST,
            properties.encode(pairs),
            born_timestamp_ms=1_700_000_000_000,
            reconsume_times=4,
        ),
        queue_offset=queue_offset,
        physical_offset=1000 * queue_offset,
        store_timestamp_ms=1_700_000_000_000 + queue_offset,
        record_crc=True,
    )


def stored_batch(base: int, count: int, *, stated: int | None = None) -> bytes:
    """The record of an inner batch; stated: the number of messages by its properties."""
    raw = inner_batch.encode_properties("BATCH", stated or count, tags=b"TagB", keys=b"k0 k1")
    message = Message(
        "orders",
        2,
        batch.encode(
            WireMessage(f"body {base + index}".encode(), f"KEYS\x01k{index}\x02".encode())
            for index in range(count)
        ),
        HOST,
        HOST,
        inner_batch.with_base(raw, base),
        sys_flag=inner_batch.SYS_FLAGS,
        reconsume_times=4,
    )
    return record.encode(
        message,
        queue_offset=base,
        physical_offset=1000 * base,
        store_timestamp_ms=1_700_000_000_000 + base,
        record_crc=True,
    )


class ScriptedClient:
    """Stands where ``TopicClient`` does; answers from a function of (offset, count)."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def pull(self, queue: int, offset: int, count: int) -> RawPull:
        assert queue == 2
        return self._answer(offset, count)


def rows_of(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, part: QueuePart, **named: Any
) -> list[dict[str, Any]]:
    monkeypatch.setattr(reader_module, "TopicClient", lambda options: ScriptedClient(answer))
    reader = TopicReader(TopicOptions(urls=("http://a",), topic="orders", **named))
    rows: list[dict[str, Any]] = []
    for found in reader.read(part):
        assert found.schema == reader.schema
        rows += found.to_pylist()
    return rows


def queue_of(offsets: set[int], least: int, most: int) -> Answer:
    """A queue that has these messages; its answers hold up to three."""

    def answer(offset: int, count: int) -> RawPull:
        found = sorted(each for each in offsets if each >= offset)[: min(count, 3)]
        if not found:
            after = least if offset < least else most
            return RawPull("MESSAGE_WAS_REMOVING", after, least, most, memoryview(b""))
        if offset < least:
            return RawPull("OFFSET_TOO_SMALL", least, least, most, memoryview(b""))
        raw = b"".join(stored(each) for each in found)
        return RawPull("FOUND", found[-1] + 1, least, most, memoryview(raw))

    return answer


def test_every_field_is_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(offset: int, count: int) -> RawPull:
        raw = stored(7, TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="u", color="größer")
        return RawPull("FOUND", 8, 0, 8, memoryview(raw))

    (row,) = rows_of(monkeypatch, answer, QueuePart(2, 7, 8))
    pairs = dict(row.pop("properties"))
    assert pairs.pop("__CRC32#")
    assert pairs == {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "u", "color": "größer"}
    assert row.pop("store_ts").timestamp() == 1_700_000_000.007
    assert row.pop("born_ts").timestamp() == 1_700_000_000
    assert row == {
        "topic": "orders",
        "queue": 2,
        "queue_offset": 7,
        "next_offset": 8,
        "physical_offset": 7000,
        "size": len(stored(7, TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="u", color="größer")),
        "tag": "TagA",
        "keys": "k1 k2",
        "unique_id": "u",
        "sys_flag": 0,
        "reconsume_times": 4,
        "body": b"body 7",
        "gap": None,
        "gap_detail": None,
    }


def batch_queue_of(bases: list[int], count_max: int = 3) -> Answer:
    """A batch queue that has a batch from each base to the next; its last message is before the
    last base. An answer holds at most count_max batches."""

    def answer(offset: int, count: int) -> RawPull:
        first = bisect_right(bases, offset) - 1
        last = min(first + count_max, len(bases) - 1)
        pairs = itertools.pairwise(bases[first : last + 1])
        raw = b"".join(stored_batch(base, after - base) for base, after in pairs)
        return RawPull("FOUND", bases[last], bases[0], bases[-1], memoryview(raw))

    return answer


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=9), data=st.data())
def test_messages_of_batches_are_rows_of_their_own_from_any_offset(
    sizes: list[int], data: st.DataObject
) -> None:
    bases = [*itertools.accumulate(sizes, initial=6)]
    low = data.draw(st.integers(bases[0], bases[-1] - 1))
    part = QueuePart(2, low, data.draw(st.integers(low + 1, bases[-1])))
    with pytest.MonkeyPatch.context() as patch:
        rows = rows_of(patch, batch_queue_of(bases), part)
    assert [row["queue_offset"] for row in rows] == list(range(part.low, part.high))
    for row in rows:
        offset = row["queue_offset"]
        base = bases[bisect_right(bases, offset) - 1]
        assert row["next_offset"] == offset + 1
        assert (row["body"], row["keys"]) == (b"body %d" % offset, f"k{offset - base}")
        assert dict(row["properties"]) == {"KEYS": f"k{offset - base}"}
        assert (row["tag"], row["unique_id"], row["gap"]) == (None, None, None)
        assert (row["sys_flag"], row["reconsume_times"]) == (0, 4)
        assert (row["physical_offset"], row["store_ts"].timestamp()) == (
            1000 * base,
            1_700_000_000 + base / 1000,
        )


@given(
    there=st.sets(st.integers(0, 30)),
    least=st.integers(0, 12),
    low=st.integers(0, 20),
    size=st.integers(1, 14),
)
def test_each_planned_offset_is_a_message_or_in_a_gap(
    there: set[int], least: int, low: int, size: int
) -> None:
    offsets = {offset for offset in there if offset >= least}
    part = QueuePart(2, low, low + size)
    with pytest.MonkeyPatch.context() as patch:
        rows = rows_of(patch, queue_of(offsets, least, 40), part)
    covered: list[int] = []
    for row in rows:
        covered += range(row["queue_offset"], row["next_offset"])
        if row["gap"] is None:
            assert row["next_offset"] == row["queue_offset"] + 1
            assert row["body"] == f"body {row['queue_offset']}".encode()
        else:
            assert row["gap"] == (Gap.EXPIRED if row["queue_offset"] < least else Gap.HIDDEN)
            assert row["body"] is None
            assert "orders, queue 2, queue offsets" in row["gap_detail"]
    assert covered == list(range(part.low, part.high))
    messages = {row["queue_offset"] for row in rows if row["gap"] is None}
    assert messages == {offset for offset in offsets if part.low <= offset < part.high}


def test_without_the_column_gap_a_gap_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceGap, match="queue offsets 3 to 4"):
        rows_of(monkeypatch, queue_of({5}, 5, 9), QueuePart(2, 3, 6), columns=("body",))
    rows = rows_of(monkeypatch, queue_of({5}, 5, 9), QueuePart(2, 5, 6), columns=("body",))
    assert rows == [{"body": b"body 5"}]


def damaged() -> Iterator[tuple[str, bytes]]:
    whole = stored(5) + stored(6)
    yield "is not a message", whole[:-1]
    yield "is not a message", whole + b"\0"
    changed = bytearray(whole)
    changed[90] ^= 1
    yield "does not match its CRC", bytes(changed)
    yield "not in the queue's order", stored(6) + stored(5)
    yield "not in the queue's order", stored(5) + stored(5)
    yield "not in the queue's order", stored(4) + stored(5)
    yield "not in the queue's order", stored_batch(2, 3) + stored_batch(5, 2)
    yield "not in the queue's order", stored_batch(5, 3) + stored_batch(7, 2)
    yield "lacks messages", stored_batch(5, 2, stated=3)


@pytest.mark.parametrize(("message", "raw"), list(damaged()))
def test_an_answer_that_cannot_be_trusted_is_an_error_that_names_the_place(
    monkeypatch: pytest.MonkeyPatch, message: str, raw: bytes
) -> None:
    def answer(offset: int, count: int) -> RawPull:
        return RawPull("FOUND", 7, 0, 9, memoryview(raw))

    with pytest.raises(TopicUnreadable, match=f"orders, queue 2, queue offset 5: .*{message}"):
        rows_of(monkeypatch, answer, QueuePart(2, 5, 8))


def test_the_schema_is_that_of_the_table() -> None:
    assert TopicReader(TopicOptions(urls=("http://a",), topic="t")).schema == TOPIC_MESSAGES
