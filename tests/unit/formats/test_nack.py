"""Nacks, dead letters, redrive: the level, the properties, and the mark of a redriven message."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.for_each import for_each
from tidemark.formats import delay, nack, properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.nack import RedriveOrigin, Verdict
from tidemark.formats.record import Message, Record
from tidemark.offsets import QueueOffset

HOST = Host(b"\x7f\0\0\1", 10911)
LEVELS = 18
OWN = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02TAGS\x01TagA\x02"


def stored(
    topic: str = "orders",
    raw: bytes = OWN,
    *,
    queue: int = 0,
    queue_offset: int = 7,
    at: int = 4096,
    times: int = 0,
) -> Record:
    """The record that an append makes."""
    message = Message(topic, queue, b"body", HOST, HOST, raw, reconsume_times=times)
    return record.decode(
        record.encode(
            message,
            queue_offset=queue_offset,
            physical_offset=at,
            store_timestamp_ms=5,
            record_crc=True,
        )
    )


# The table of store.md 13.2: RECONSUMETIMES before, and the level that it waits at.
@for_each("times", range(20))
def test_each_retry_waits_one_level_longer_and_the_seventeenth_time_is_the_end(times: int) -> None:
    verdict = nack.judge(times, 0, retry_max=16, level_count=LEVELS)
    if times < 16:
        assert verdict == Verdict(dead=False, delay_level=min(3 + times, LEVELS))
    else:
        assert verdict == Verdict(dead=True, delay_level=0)


@for_each(
    ("times", "asked", "retry_max", "levels"),
    list(
        itertools.product(
            (0, 1, 15, 16, 17, 400), (-1, 0, 1, 7, 18, 30), (0, 1, 16, 400), (1, 3, 18)
        )
    ),
)
def test_every_verdict(times: int, asked: int, retry_max: int, levels: int) -> None:
    verdict = nack.judge(times, asked, retry_max=retry_max, level_count=levels)
    assert verdict.dead == (asked < 0 or times >= retry_max)
    if verdict.dead:
        assert verdict.delay_level == 0
    else:
        assert verdict.delay_level == min(asked if asked else 3 + times, levels)


def test_the_first_time_back_notes_where_the_message_came_from() -> None:
    message = stored()
    assert properties.parse(nack.nacked(message, dead=False)) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "TAGS": "TagA",
        "WAIT": "false",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": message.message_id,
    }


def test_later_times_keep_what_the_first_one_noted() -> None:
    first = nack.nacked(stored(), dead=False)
    waited = delay.by_level("%RETRY%billing", 0, first, 3, LEVELS)
    scheduled = stored(waited.topic, waited.properties, queue=waited.queue_id, at=9000, times=1)
    released = delay.delivered(scheduled, 10)
    assert released is not None
    retried = stored("%RETRY%billing", released.properties, at=12_000, times=1)
    again = properties.parse(nack.nacked(retried, dead=True))
    assert again["RETRY_TOPIC"] == "orders"
    assert again["ORIGIN_MESSAGE_ID"] == stored().message_id
    assert again["DELAY"] == "0"
    assert again["REAL_TOPIC"] == "%RETRY%billing", "RocketMQ copies it, too"
    assert "TIDEMARK_DELAY_ORIGIN" not in again
    assert "__CRC32#" not in again


def letter(raw: bytes = OWN, *, at: int = 12_000) -> Record:
    """The dead letter number 7 of the group billing."""
    died = nack.nacked(stored(raw=raw), dead=True)
    return stored("%DLQ%billing", died, at=at, times=17)


def test_a_nacked_message_without_unique_id_gets_one_that_names_its_place() -> None:
    nameless = stored(raw=b"a\x01b\x02", queue_offset=1 << 40)
    raw = nack.nacked(nameless, dead=False)
    made = properties.parse(raw)["UNIQ_KEY"]
    assert made == nack.nacked_unique_id(nameless) == f"{nameless.message_id}-{1 << 40}"
    assert nack.nacked_place(made) == (nameless.message_id, 1 << 40)
    again = nack.nacked(stored("%RETRY%billing", raw, at=8192), dead=True)
    assert properties.parse(again)["UNIQ_KEY"] == made, "it stays the same in all retries"


@pytest.mark.parametrize("made_up", ["ID", "ID-7", "", "-", "{}", "{}-", "{}-x", "{}-²", "{}-{}"])
def test_other_unique_ids_name_no_place(made_up: str) -> None:
    message_id = stored().message_id
    assert nack.nacked_place(made_up.format(message_id, "1" * 20)) is None


def test_a_redriven_message_is_like_new_and_names_its_letter() -> None:
    copy = nack.redriven(letter(), "billing", to_group=False)
    assert properties.parse(copy) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "TAGS": "TagA",
        "TIDEMARK_REDRIVE_ORIGIN": "billing@7",
    }
    assert nack.redrive_origin(copy) == RedriveOrigin("billing", 7)


def test_redriven_to_the_group_it_still_names_its_topic_and_first_id() -> None:
    copy = nack.redriven(letter(), "billing", to_group=True)
    assert properties.parse(copy) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "TAGS": "TagA",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": stored().message_id,
        "TIDEMARK_REDRIVE_ORIGIN": "billing@7",
    }


@pytest.mark.parametrize("to_group", [False, True])
def test_a_letter_without_unique_id_can_be_looked_up_by_its_own_message_id(to_group: bool) -> None:
    nameless = letter()
    raw = properties.changed(nameless.properties, {b"UNIQ_KEY"}, ())
    nameless = nameless._replace(properties=raw)
    copy = nack.redriven(nameless, "billing", to_group=to_group)
    found = properties.parse(copy)
    assert found["UNIQ_KEY"] == nameless.message_id == nack.copy_unique_id(nameless)
    assert nack.copy_unique_id(letter()) == "ID"


def test_a_letter_that_rocketmq_wrote_elsewhere_gets_its_origin_when_redriven_to_the_group() -> (
    None
):
    foreign = stored("%DLQ%billing", OWN)
    copy = properties.parse(nack.redriven(foreign, "billing", to_group=True))
    assert copy["ORIGIN_MESSAGE_ID"] == foreign.message_id
    assert nack.original_message_id(foreign) is None
    assert nack.original_topic(foreign) == "%DLQ%billing"


def test_a_message_redriven_twice_names_the_last_letter_only() -> None:
    copy = stored(raw=nack.redriven(letter(), "billing", to_group=False))
    back = nack.nacked(copy, dead=True)
    assert nack.redrive_origin(back) == RedriveOrigin("billing", 7)
    second = stored("%DLQ%billing", back, queue_offset=9, times=17)
    again = nack.redriven(second, "billing", to_group=True)
    assert properties.parse(again)["TIDEMARK_REDRIVE_ORIGIN"] == "billing@9"
    assert again.count(b"TIDEMARK_REDRIVE_ORIGIN") == 1


@pytest.mark.parametrize(
    "value", [b"", b"7", b"billing", b"billing@", b"billing@x", b"billing@" + b"9" * 20]
)
def test_an_invalid_origin_is_none(value: bytes) -> None:
    assert nack.redrive_origin(b"TIDEMARK_REDRIVE_ORIGIN\x01" + value + b"\x02") is None


@given(st.dictionaries(st.text("abcKEYS_1", min_size=1), st.text("xyz 7", min_size=1), max_size=5))
def test_a_senders_own_properties_survive_every_way_back(own: dict[str, str]) -> None:
    message = stored(raw=properties.encode(own))
    back = nack.nacked(message, dead=True)
    died = stored("%DLQ%billing", back, times=17)
    for to_group in (False, True):
        copy = properties.parse(nack.redriven(died, "billing", to_group=to_group))
        assert own.items() <= copy.items()


def test_properties_change_without_touching_the_others() -> None:
    raw = b"a\x011\x02\xff\x01\xfe\x02b\x012\x02ab\x013"
    changed = properties.changed(raw, {b"a", b"c"}, [(b"b2", b"4")])
    assert changed == b"\xff\x01\xfe\x02b\x012\x02ab\x013\x02b2\x014\x02"


def delivered(waiting: delay.Delayed, topic: str) -> Record:
    """The copy that the delay service appends for a waiting message."""
    copy = delay.delivered(stored(waiting.topic, waiting.properties, queue_offset=1 << 62), 1 << 50)
    assert copy is not None
    assert copy.topic == topic
    return stored(topic, copy.properties, queue_offset=(1 << 63) - 1)


# Every accepted message can be nacked: with the longest names and numbers, through a delay,
# retries, the dead letters, a redrive, and the same again.
def test_no_way_of_a_message_adds_more_properties_than_a_sender_leaves_free() -> None:
    topic, group = "t" * 127, "g" * 127
    own = properties.encode({"UNIQ_KEY": "u" * 128, "KEYS": "k", "a": "b"})
    largest = len(own)
    retry_topic = nack.retry_topic(group)

    def waits(raw: bytes) -> bytes:
        nonlocal largest
        largest = max(largest, len(raw))
        return raw

    wait = delay.by_time(topic, (1 << 31) - 1, own, 1 << 52, 0)
    waits(wait.properties)
    carried = delay.carried(stored(delay.TIMER_TOPIC, wait.properties), 1 << 52)
    assert carried is not None
    current = delivered(carried._replace(properties=waits(carried.properties)), topic)
    for _ in range(2):
        for _ in range(3):
            raw = nack.nacked(current, dead=False, nack_id="n" * 64)
            wait = delay.by_level(retry_topic, (1 << 31) - 1, raw, 18, 18)
            waits(wait.properties)
            carried = delay.carried(stored(wait.topic, wait.properties, queue=17), 1 << 52)
            assert carried is not None
            waits(carried.properties)
            current = delivered(carried, retry_topic)
            waits(current.properties)
        raw = nack.nacked(current, dead=True, nack_id="n" * 64)
        letter = stored(nack.dead_topic(group), raw)
        waits(letter.properties)
        letter = letter._replace(queue_offset=QueueOffset((1 << 63) - 1))
        current = stored(retry_topic, waits(nack.redriven(letter, group, to_group=True)))
    assert len(own) + 512 < largest <= len(own) + nack.PROPERTIES_ROOM


@given(
    st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "a", "b"]),
        st.integers(1, 1200).map(lambda size: "x" * size),
    ),
    st.integers(0, 3000),
)
def test_shortened_properties_fit_and_lose_no_more_than_they_name(
    pairs: dict[str, str], size_max: int
) -> None:
    raw = properties.encode(pairs)
    short, dropped = nack.shortened(raw, size_max)
    assert len(short) <= size_max
    assert bool(dropped) == (len(raw) > size_max) or not pairs
    found = properties.parse(short)
    named = found.pop("TIDEMARK_DROPPED_PROPERTIES", None)
    assert found == {name: value for name, value in pairs.items() if name not in dropped}
    if size_max >= 300 and dropped:
        assert named == ",".join(dropped)
