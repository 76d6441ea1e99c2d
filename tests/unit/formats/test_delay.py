import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tidemark.formats import delay, properties, record
from tidemark.formats.delay import Delayed, Origin, Place
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message, Record

HOST = Host(b"\x7f\0\0\1", 10911)
NOW_MS = 1_800_000_000_000
OWN = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02TAGS\x01TagA\x02"


def stored(
    delayed: Delayed, *, queue_offset: int = 7, store_timestamp_ms: int = NOW_MS, crc: bool = True
) -> Record:
    """The record that an append makes of a message that waits."""
    message = Message(
        delayed.topic, delayed.queue_id, b"body", HOST, HOST, delayed.properties, flag=3
    )
    return record.decode(
        record.encode(
            message,
            queue_offset=queue_offset,
            physical_offset=4096,
            store_timestamp_ms=store_timestamp_ms,
            record_crc=crc,
        )
    )


def test_a_level_is_a_queue_of_the_schedule_topic() -> None:
    waiting = delay.by_level("orders", 5, OWN, 3, 18)
    assert waiting[:2] == ("SCHEDULE_TOPIC_XXXX", 2)
    assert properties.parse(waiting.properties) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "TAGS": "TagA",
        "DELAY": "3",
        "REAL_TOPIC": "orders",
        "REAL_QID": "5",
    }


def test_a_level_above_the_highest_is_the_highest() -> None:
    waiting = delay.by_level("orders", 0, b"DELAY\x0199\x02", 99, 18)
    assert waiting.queue_id == 17
    assert properties.parse(waiting.properties)["DELAY"] == "18"


def test_there_is_no_level_below_one() -> None:
    with pytest.raises(ValueError, match="delay level 0: levels start at 1"):
        delay.by_level("orders", 0, OWN, 0, 18)


def test_a_level_makes_a_request_for_a_time_void() -> None:
    asked = b"TIMER_DELAY_SEC\x015\x02TIMER_DELAY_MS\x016\x02TIMER_DELIVER_MS\x017\x02a\x01b\x02"
    waiting = delay.by_level("orders", 0, asked, 1, 18)
    assert set(properties.parse(waiting.properties)) == {"a", "DELAY", "REAL_TOPIC", "REAL_QID"}


def test_a_message_that_was_delivered_and_waits_again_loses_its_old_origin() -> None:
    # Sent back for a retry with all of its properties, it is another message that waits.
    back = OWN + b"REAL_TOPIC\x01old\x02REAL_QID\x019\x02TIDEMARK_DELAY_ORIGIN\x012@9\x02"
    for waiting in (
        delay.by_level("%RETRY%g", 0, back, 4, 18),
        delay.by_time("%RETRY%g", 0, back, NOW_MS + 1, NOW_MS),
    ):
        assert delay.origin_of(waiting.properties) is None
        assert delay.real_place(waiting.properties) == Place("%RETRY%g", 0)


@pytest.mark.parametrize(
    ("deliver_at_ms", "out_ms"),
    [
        (NOW_MS + 5_000, NOW_MS + 4_000),
        (NOW_MS + 5_001, NOW_MS + 5_000),
        (NOW_MS + 5_999, NOW_MS + 5_000),
    ],
)
def test_any_time_is_rounded_as_rocketmq_does_and_kept_exactly(
    deliver_at_ms: int, out_ms: int
) -> None:
    waiting = delay.by_time("orders", 5, OWN, deliver_at_ms, NOW_MS)
    assert waiting[:2] == ("rmq_sys_wheel_timer", 0)
    pairs = properties.parse(waiting.properties)
    assert pairs["TIMER_OUT_MS"] == str(out_ms)
    assert (pairs["REAL_TOPIC"], pairs["REAL_QID"]) == ("orders", "5")
    assert delay.timer_due_ms(waiting.properties) == deliver_at_ms


@pytest.mark.parametrize("deliver_at_ms", [0, NOW_MS - 1, NOW_MS])
def test_a_time_that_is_not_in_the_future_leaves_an_ordinary_message(deliver_at_ms: int) -> None:
    assert delay.by_time("orders", 5, OWN, deliver_at_ms, NOW_MS) == ("orders", 5, OWN)


@pytest.mark.parametrize(
    ("raw", "due_ms"),
    [
        (b"TIMER_OUT_MS\x017000\x02", 8000),
        (b"TIMER_OUT_MS\x017000\x02TIMER_DELIVER_MS\x017500\x02", 7500),
        (b"TIMER_OUT_MS\x017000\x02TIMER_DELIVER_MS\x018000\x02", 8000),
        (b"TIMER_OUT_MS\x017000\x02TIMER_DELIVER_MS\x017000\x02", 8000),
        (b"TIMER_OUT_MS\x017000\x02TIMER_DELIVER_MS\x019000\x02TIMER_DELAY_MS\x015\x02", 8000),
        (b"TIMER_OUT_MS\x017000\x02TIMER_DELIVER_MS\x01soon\x02", 8000),
        (b"TIMER_DELIVER_MS\x017500\x02", None),
        (b"TIMER_OUT_MS\x01-1\x02", None),
        (b"TIMER_OUT_MS\x0199999999999999999999\x02", None),
        (b"", None),
    ],
)
def test_rocketmqs_time_is_due_one_precision_later_unless_the_exact_one_is_known(
    raw: bytes, due_ms: int | None
) -> None:
    assert delay.timer_due_ms(raw) == due_ms


@pytest.mark.parametrize(
    ("tags_code", "due_ms"), [(900, 900), (1000, 1000), (1500, 1500), (1501, 1000), (-5, -5)]
)
def test_a_level_that_is_due_too_far_ahead_is_due_now(tags_code: int, due_ms: int) -> None:
    assert delay.level_due_ms(tags_code, now_ms=1000, delay_ms=500) == due_ms


def test_a_delivered_copy_of_a_level_keeps_everything_and_says_its_origin() -> None:
    waiting = stored(delay.by_level("orders", 5, OWN, 3, 18))
    copy = delay.delivered(waiting, NOW_MS + 10_000)
    assert copy is not None
    assert copy[:2] == ("orders", 5)
    assert properties.parse(copy.properties) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "TAGS": "TagA",
        "DELAY": "3",
        "REAL_TOPIC": "orders",
        "REAL_QID": "5",
        "TIDEMARK_DELAY_ORIGIN": "3@7",
    }
    assert delay.origin_of(copy.properties) == Origin(3, 7)


def test_a_delivered_copy_of_any_time_says_when_it_came_and_went() -> None:
    waiting = stored(delay.by_time("orders", 5, OWN, NOW_MS + 500, NOW_MS))
    copy = delay.delivered(waiting, NOW_MS + 501)
    assert copy is not None
    pairs = properties.parse(copy.properties)
    assert (pairs["TIMER_ENQUEUE_MS"], pairs["TIMER_DEQUEUE_MS"]) == (
        str(NOW_MS),
        str(NOW_MS + 501),
    )
    assert delay.origin_of(copy.properties) == Origin(0, 7)


def test_properties_filled_to_the_last_byte_make_room_for_the_origin() -> None:
    room = properties.PROPERTIES_SIZE_MAX - record.CRC_PROPERTY_SIZE
    waiting = delay.by_time("orders", 5, b"", NOW_MS + 500, NOW_MS)
    filler = b"a\x01" + b"x" * (room - len(waiting.properties) - 3) + b"\x02"
    full = stored(waiting._replace(properties=filler + waiting.properties))
    copy = delay.delivered(full, NOW_MS + 500)
    assert copy is not None
    assert len(copy.properties) <= room
    assert set(properties.parse(copy.properties)) == {"a", "TIDEMARK_DELAY_ORIGIN"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"REAL_TOPIC\x01orders\x02",
        b"REAL_QID\x010\x02",
        b"REAL_TOPIC\x01orders\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01orders\x02REAL_QID\x012147483648\x02",
        b"REAL_TOPIC\x01..\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01../up\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01" + b"t" * 256 + b"\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
    ],
)
def test_a_message_without_a_destination_is_neither_delivered_nor_carried(raw: bytes) -> None:
    waiting = stored(Delayed(delay.TIMER_TOPIC, 0, raw))
    assert delay.delivered(waiting, NOW_MS) is None
    assert delay.carried(waiting, NOW_MS) is None


def test_a_carried_level_waits_on_under_the_timer_topic_until_the_same_time() -> None:
    waiting = stored(delay.by_level("orders", 5, OWN, 3, 18))
    copy = delay.carried(waiting, NOW_MS + 10_000)
    assert copy is not None
    assert copy[:2] == (delay.TIMER_TOPIC, 0)
    assert delay.timer_due_ms(copy.properties) == NOW_MS + 10_000
    assert delay.origin_of(copy.properties) == Origin(3, 7)
    assert delay.real_place(copy.properties) == Place("orders", 5)
    pairs = properties.parse(copy.properties)
    assert "DELAY" not in pairs
    assert pairs["TIMER_ROLL_TIMES"] == "1"


def test_a_message_carried_twice_says_so_and_names_its_last_place() -> None:
    first = delay.carried(stored(delay.by_time("o", 0, OWN, NOW_MS + 9, NOW_MS)), NOW_MS + 9)
    assert first is not None
    second = delay.carried(stored(first, queue_offset=20), NOW_MS + 9)
    assert second is not None
    assert properties.parse(second.properties)["TIMER_ROLL_TIMES"] == "2"
    assert delay.origin_of(second.properties) == Origin(0, 20)


@pytest.mark.parametrize("value", ["", "3", "3@", "@7", "x@7", "3@-7", "3@7@1", "-1@7"])
def test_an_origin_that_cannot_be_read_is_none(value: str) -> None:
    assert delay.origin_of(b"TIDEMARK_DELAY_ORIGIN\x01%s\x02" % value.encode()) is None


def test_a_level_and_its_place_belong_together() -> None:
    assert delay.place_of(3) == Place("SCHEDULE_TOPIC_XXXX", 2)
    assert delay.place_of(delay.TIMER_LEVEL) == Place("rmq_sys_wheel_timer", 0)


@given(
    strategies.property_maps(),
    st.booleans(),
    st.integers(1, 30),
    st.integers(0, record.TOPIC_SIZE_MAX).map(lambda size: "t" * max(1, size)),
    st.integers(0, (1 << 31) - 1),
)
def test_a_carried_message_returns_to_its_place_with_all_its_fields(
    pairs: dict[str, str], ended: bool, level: int, topic: str, queue_id: int
) -> None:
    ours = {"DELAY", "REAL_TOPIC", "REAL_QID", "TIDEMARK_DELAY_ORIGIN", "__CRC32#"}
    raw = properties.encode(pairs)
    raw = raw if ended else raw.removesuffix(b"\x02")
    for waiting in (
        delay.by_level(topic, queue_id, raw, level, 18),
        delay.by_time(topic, queue_id, raw, NOW_MS + level, NOW_MS),
    ):
        copy = delay.delivered(stored(waiting), NOW_MS + level)
        assert copy is not None
        assert copy[:2] == (topic, queue_id)
        back = properties.parse(copy.properties)
        assert {name: back.get(name) for name in pairs if name not in ours} == {
            name: value for name, value in pairs.items() if name not in ours
        }


@given(st.binary(max_size=60))
def test_no_bytes_in_a_record_make_the_reading_fail(noise: bytes) -> None:
    for raw in (noise, b"REAL_TOPIC\x01" + noise, b"TIDEMARK_DELAY_ORIGIN\x01" + noise):
        delay.origin_of(raw)
        delay.real_place(raw)
        delay.timer_due_ms(raw)
