"""Delayed messages: where they are stored meanwhile, and the properties of delivered copies. Pure.

A delay *level* is one queue of ``SCHEDULE_TOPIC_XXXX``. *Any time* is ``rmq_sys_wheel_timer``,
queue 0, with RocketMQ's ``TIMER_*`` properties. The original
topic and queue are stored in ``REAL_TOPIC`` and ``REAL_QID``. The delivered copy has the position
at which it waited, its *origin*, as ``TIDEMARK_DELAY_ORIGIN=level@queue_offset`` (level 0: any
time), so that readers of the log know which messages were delivered. Properties are handled as
bytes: those of others are kept unchanged.

Step before: ``messages`` has parsed the sender's delay, or a message was nacked. Step after: an
append; later the delay service delivers the due messages.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.properties import PROPERTIES_SIZE_MAX
from tidemark.formats.record import CRC_PROPERTY_SIZE, TOPIC_SIZE_MAX, Record

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_QUEUE: Final = 0
TIMER_LEVEL: Final = 0
"""Level number that denotes the timer topic."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"

DELAY_MS_MAX: Final = 40 * 24 * 3600 * 1000
"""Maximum delay of a message [ms]."""
PRECISION_MS: Final = 1000
"""RocketMQ's timerPrecisionMs; ``TIMER_OUT_MS`` is a multiple of it."""
PROPERTIES_ROOM: Final = 512
"""Bytes of properties that a delayed message must leave free for those added later: topic and
queue, times and origin, each name with its longest usual value."""

TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"

_I32_MAX: Final = (1 << 31) - 1
_DELAY: Final = properties.DELAY.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()
_ORIGIN: Final = properties.DELAY_ORIGIN.encode()
_DELIVER: Final = TIMER_DELIVER_MS.encode()
_OUT: Final = TIMER_OUT_MS.encode()
_ENQUEUE: Final = TIMER_ENQUEUE_MS.encode()
_DEQUEUE: Final = TIMER_DEQUEUE_MS.encode()
_ROLLS: Final = TIMER_ROLL_TIMES.encode()
_CANCELS: Final = TIMER_DEL_UNIQKEY.encode()
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode()
_CRC: Final = properties.CRC32.encode()
_REQUESTS: Final = frozenset({b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", _DELIVER})
"""The three properties in which RocketMQ's senders request a time."""
_PLACE: Final = frozenset({_REAL_TOPIC, _REAL_QID, _ORIGIN, _CRC})


class Delayed(NamedTuple):
    """The topic, queue and properties with which a message is appended."""

    topic: str
    queue_id: int
    properties: bytes


class Origin(NamedTuple):
    """The position at which a delivered message has waited."""

    level: int
    """1 to the number of levels; TIMER_LEVEL: the timer topic."""
    queue_offset: int


class Identity(NamedTuple):
    """Identifies a message in one slot of RocketMQ's timer."""

    topic: bytes
    """The original topic."""
    unique_id: bytes

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The two possible keys of a cancellation of this message."""
        return self.topic + b"+" + self.unique_id, self.unique_id


class Cancellation(NamedTuple):
    """Slot and key of a message that cancels another one of the timer's queue."""

    out_ms: int
    """The slot of both messages."""
    key: bytes
    """RocketMQ 5.3.3 writes ``topic+unique id``, earlier releases the unique id alone."""


class Place(NamedTuple):
    """A topic and one of its queues."""

    topic: str
    queue_id: int


def by_level(topic: str, queue_id: int, raw: bytes, level: int, level_count: int) -> Delayed:
    """Delay a message by a level (12.2).

    raw: its properties. level: ≥ 1; one above level_count counts as level_count. A request for a
    time becomes void, and its properties are removed.
    """
    if level < 1:
        raise ValueError(f"delay level {level}: levels start at 1")
    level = min(level, level_count)
    pairs = [(_DELAY, b"%d" % level), *_place_pairs(topic, queue_id)]
    changed = _changed(raw, _PLACE | _REQUESTS | {_DELAY}, pairs)
    return Delayed(SCHEDULE_TOPIC, level - 1, changed)


def by_time(topic: str, queue_id: int, raw: bytes, deliver_at_ms: int, now_ms: int) -> Delayed:
    """Delay a message until deliver_at_ms (12.8); a time that is not in the future has no effect.

    The exact time is stored in addition to RocketMQ's, which is rounded down by up to one
    precision.
    """
    if deliver_at_ms <= now_ms:
        return Delayed(topic, queue_id, raw)
    pairs = [*_time_pairs(deliver_at_ms), *_place_pairs(topic, queue_id)]
    changed = _changed(raw, _PLACE | _REQUESTS | {_OUT, _DELAY}, pairs)
    return Delayed(TIMER_TOPIC, TIMER_QUEUE, changed)


def delivered(stored: Record, now_ms: int, *, record_crc: bool = True) -> Delayed | None:
    """Build the delivered copy of a due record, with its original place and its origin (12.4).

    All other properties stay, including the delay, as in RocketMQ; they mean a delay only under the
    delay topics. record_crc: whether the store adds that property, which needs space. Returns None
    for a record that cannot be delivered: its topic or queue is missing or invalid, or it is the
    topic of half messages, which are invisible until they are committed.
    """
    raw = stored.properties
    place = real_place(raw)
    if place is None or place.topic == HALF_TOPIC:
        return None
    level = level_of(stored)
    origin = (_ORIGIN, b"%d@%d" % (level, stored.queue_offset))
    times: list[tuple[bytes, bytes]] = []
    if level == TIMER_LEVEL:
        times = [(_ENQUEUE, b"%d" % stored.store_timestamp_ms), (_DEQUEUE, b"%d" % now_ms)]
    changed = _changed(raw, {_ORIGIN, _CRC, _ENQUEUE, _DEQUEUE}, [*times, origin])
    size_max = PROPERTIES_SIZE_MAX - (CRC_PROPERTY_SIZE if record_crc else 0)
    if len(changed) > size_max:
        # RocketMQ may fill properties completely. Those about the wait are no longer needed.
        removed = _PLACE | _REQUESTS | {_DELAY, _OUT, _ENQUEUE, _DEQUEUE, _ROLLS}
        changed = _changed(raw, removed, [origin])
    return Delayed(place.topic, place.queue_id, changed)


def carried(stored: Record, due_ms: int) -> Delayed | None:
    """Build the copy of a waiting record whose file is about to be deleted; it keeps waiting.

    A record of a level continues under the timer topic, due at the same time. Returns None as in
    ``delivered``: a record without a place is not kept.
    """
    raw = stored.properties
    place = real_place(raw)
    if place is None or place.topic == HALF_TOPIC:
        return None
    rolls = _number(properties.find(raw, _ROLLS)) or 0
    pairs = [
        *_time_pairs(due_ms),
        *_place_pairs(*place),
        (_ROLLS, b"%d" % (rolls + 1)),
        (_ORIGIN, b"%d@%d" % (level_of(stored), stored.queue_offset)),
    ]
    # Without DELAY, because RocketMQ, which may open this store, would delay it again at delivery.
    removed = _PLACE | _REQUESTS | {_OUT, _ROLLS, _DELAY, _ENQUEUE, _DEQUEUE}
    changed = _changed(raw, removed, pairs)
    return Delayed(TIMER_TOPIC, TIMER_QUEUE, changed)


def level_of(stored: Record) -> int:
    """Level of a record under one of the two delay topics; TIMER_LEVEL for the timer topic."""
    return stored.queue_id + 1 if stored.topic == SCHEDULE_TOPIC else TIMER_LEVEL


def place_of(level: int) -> Place:
    """The topic and queue in which messages of a level wait."""
    if level == TIMER_LEVEL:
        return Place(TIMER_TOPIC, TIMER_QUEUE)
    return Place(SCHEDULE_TOPIC, level - 1)


def timer_due_ms(raw: bytes) -> int | None:
    """Return when a record under the timer topic is due [ms]; None if it has no time.

    RocketMQ delivers one precision after the rounded ``TIMER_OUT_MS``, so never early. The exact
    time is used if it rounds to the same value; a sender of RocketMQ may have requested another
    time by another property.
    """
    out_ms = _number(properties.find(raw, _OUT))
    if out_ms is None:
        return None
    exact_ms = _number(properties.find(raw, _DELIVER))
    if exact_ms is not None and out_ms < exact_ms <= out_ms + PRECISION_MS:
        return exact_ms
    return out_ms + PRECISION_MS


def cancellation_of(raw: bytes) -> Cancellation | None:
    """Return the cancellation in a message under the timer topic; None for other messages."""
    key, out_ms = properties.find(raw, _CANCELS), _number(properties.find(raw, _OUT))
    return None if key is None or out_ms is None else Cancellation(out_ms, key)


def identity_of(raw: bytes) -> Identity | None:
    """Identity of a message of the timer's queue, or of RocketMQ's copy of it; None if absent."""
    topic, unique_id = properties.find(raw, _REAL_TOPIC), properties.find(raw, _UNIQUE_ID)
    return None if topic is None or unique_id is None else Identity(topic, unique_id)


def slot_ms(due_ms: int) -> int:
    """``TIMER_OUT_MS`` of a message that is due at due_ms; the inverse of ``timer_due_ms``."""
    return (due_ms - 1) // PRECISION_MS * PRECISION_MS


def is_out_of_wheel(raw: bytes) -> bool:
    """Whether a timer, RocketMQ's or Tidemark's, took the message out of its wheel.

    For a record under the timer topic: RocketMQ stored it again in place of an earlier one.
    """
    return properties.find(raw, _DEQUEUE) is not None


def level_due_ms(tags_code: int, now_ms: int, delay_ms: int) -> int:
    """Return when a unit of a level's queue is due: its tags code (12.3).

    A time that is further ahead than the level's delay counts as now, because the clock was set
    back or the table of levels was changed.
    """
    return now_ms if tags_code > now_ms + delay_ms else tags_code


def origin_of(raw: bytes) -> Origin | None:
    """The position at which a delivered record has waited; None for any other record."""
    value = properties.find(raw, _ORIGIN)
    if value is None:
        return None
    level, at, queue_offset = value.partition(b"@")
    numbers = _number(level), _number(queue_offset)
    if not at or numbers[0] is None or numbers[1] is None:
        return None
    return Origin(numbers[0], numbers[1])


def real_place(raw: bytes) -> Place | None:
    """The topic and queue of a waiting message; None if they are missing or invalid.

    A topic that cannot name a directory is invalid, because its copy would stop dispatch for good.
    """
    topic_bytes = properties.find(raw, _REAL_TOPIC)
    queue_id = _number(properties.find(raw, _REAL_QID))
    if topic_bytes is None or queue_id is None or queue_id > _I32_MAX:
        return None
    topic = _directory_name(topic_bytes)
    return None if topic is None else Place(topic, queue_id)


@functools.lru_cache(maxsize=4096)
def _directory_name(raw: bytes) -> str | None:
    """Return the text of a stored topic; None if it cannot name a directory."""
    topic = properties.text(raw)
    if topic in (".", "..") or "/" in topic or "\0" in topic:
        return None
    return topic if len(topic.encode(errors="replace")) <= TOPIC_SIZE_MAX else None


def _place_pairs(topic: str, queue_id: int) -> list[tuple[bytes, bytes]]:
    return [(_REAL_TOPIC, topic.encode(errors="replace")), (_REAL_QID, b"%d" % queue_id)]


def _time_pairs(deliver_at_ms: int) -> list[tuple[bytes, bytes]]:
    # A multiple of the precision is also reduced by one precision: (n - 1) // p * p does both.
    return [(_DELIVER, b"%d" % deliver_at_ms), (_OUT, b"%d" % slot_ms(deliver_at_ms))]


def _changed(raw: bytes, removed: Collection[bytes], pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the properties without the removed ones, followed by the pairs."""
    kept = [
        segment + b"\x02"
        for segment in raw.split(b"\x02")
        if segment and segment.partition(b"\x01")[0] not in removed
    ]
    return b"".join([*kept, *[name + b"\x01" + value + b"\x02" for name, value in pairs]])


def _number(value: bytes | None) -> int | None:
    """Parse a non-negative number below 2^63; None for anything else."""
    if value is None or not value.isdigit() or len(value) > 19:
        return None
    number = int(value)
    return number if number < 1 << 63 else None
