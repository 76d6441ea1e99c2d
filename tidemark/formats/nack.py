"""Properties of nacked messages, dead letters and redriven messages. Pure.

A nacked message waits under the schedule topic for its group's retry topic, one
level longer each time; after the group's last retry it becomes a *dead letter*. Its original topic
is stored in ``RETRY_TOPIC`` and ``ORIGIN_MESSAGE_ID``, the number of retries in the record's
RECONSUMETIMES. A *redriven* dead letter starts anew, and its copy has the letter's position as
``TIDEMARK_REDRIVE_ORIGIN=group@queue_offset``. The copy itself records that the letter was
redriven, so there is no moment at which the log contains one without the other.

Properties are handled as bytes: those of others are kept unchanged.
Step before: a member nacked a message. Step after: ``delay`` lets it wait, then an append.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.formats import ids, properties
from tidemark.formats.delay import TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES
from tidemark.formats.record import TOPIC_SIZE_MAX, Record

RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
DEAD_QUEUE: Final = 0
FIRST_LEVEL: Final = 3
"""Delay level of the first retry; each further retry waits one level longer."""
DEAD_AT_ONCE: Final = -1
"""The delay level that requests no more retries."""
REDRIVE_ORIGIN: Final = "TIDEMARK_REDRIVE_ORIGIN"
NACK_ID: Final = "TIDEMARK_NACK_ID"
"""In the record that a nack stores: the caller's id of the nack, which may be repeated."""
NACK_ID_SIZE_MAX: Final = 64

PROPERTIES_ROOM: Final = 1024
"""Bytes of properties that every sent message must leave free for those added by delays, retries, a
dead letter and a redrive, with the longest names of topics and groups."""
RECORD_ROOM: Final = PROPERTIES_ROOM + TOPIC_SIZE_MAX + 1
"""Bytes by which a message's record may grow in these steps, including a longer topic."""
DROPPED_PROPERTIES: Final = "TIDEMARK_DROPPED_PROPERTIES"
"""Names of the properties that did not fit into a dead letter, separated by commas."""
_NAMES_SIZE_MAX: Final = 255

_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_ORIGIN_ID: Final = properties.ORIGIN_MESSAGE_ID.encode()
_WAIT: Final = properties.WAIT.encode()
_DELAY: Final = properties.DELAY.encode()
_DELAY_ORIGIN: Final = properties.DELAY_ORIGIN.encode()
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode()
_CRC: Final = properties.CRC32.encode()
_REDRIVE_ORIGIN: Final = REDRIVE_ORIGIN.encode()
_NACK_ID: Final = NACK_ID.encode()
_DROPPED: Final = DROPPED_PROPERTIES.encode()
_KEPT: Final = frozenset(
    {_RETRY_TOPIC, _ORIGIN_ID, _UNIQUE_ID, _NACK_ID, _WAIT, _DELAY, _REDRIVE_ORIGIN}
)
"""Properties by which redrive and trace find a dead letter: dropped last."""
_SPENT: Final = frozenset(
    name.encode()
    for name in (
        properties.WAIT,
        properties.DELAY,
        properties.REAL_TOPIC,
        properties.REAL_QID,
        properties.DELAY_ORIGIN,
        properties.RECONSUME_TIME,
        properties.MAX_RECONSUME_TIMES,
        properties.CRC32,
        REDRIVE_ORIGIN,
        NACK_ID,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_ROLL_TIMES,
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "CONSUME_START_TIME",
        "MIN_OFFSET",
        "MAX_OFFSET",
    )
)
"""Properties added on the way to the dead-letter topic, which a redriven copy does not have."""


class Verdict(NamedTuple):
    """What happens to a nacked message."""

    dead: bool
    delay_level: int
    """Delay level; 0 for a dead letter, which is not delayed."""


class RedriveOrigin(NamedTuple):
    """The dead letter from which a message was redriven."""

    group: str
    queue_offset: int
    """Queue offset in the group's dead-letter topic, which has one queue."""


def retry_topic(group: str) -> str:
    """The topic from which a group's members receive nacked messages."""
    return RETRY_PREFIX + group


def dead_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return DEAD_PREFIX + group


def judge(reconsume_times: int, delay_level: int, *, retry_max: int, level_count: int) -> Verdict:
    """Decide about a nacked message that was nacked reconsume_times times before.

    delay_level: the requested level; 0 uses the rule, a level below 0 makes the message a dead
    letter at once. A level above level_count counts as level_count.
    """
    if delay_level < 0 or reconsume_times >= retry_max:
        return Verdict(dead=True, delay_level=0)
    return Verdict(dead=False, delay_level=min(delay_level or _rule(reconsume_times), level_count))


def _rule(reconsume_times: int) -> int:
    return FIRST_LEVEL + reconsume_times


def nacked(stored: Record, *, dead: bool, nack_id: str | None = None) -> bytes:
    """Properties of the record that a nacked message becomes.

    For a message that is not dead, pass them to ``delay.by_level``. The earlier delay origin is
    removed, because the record would otherwise mark that origin as delivered again. A message
    without a unique id gets one, by which its copies are found. nack_id: id of this nack; that of
    an earlier nack is removed.
    """
    raw = stored.properties
    pairs = [(_WAIT, b"false")]
    if properties.find(raw, _RETRY_TOPIC) is None:
        pairs.append((_RETRY_TOPIC, stored.topic.encode(errors="replace")))
    if properties.find(raw, _ORIGIN_ID) is None:
        pairs.append((_ORIGIN_ID, stored.message_id.encode()))
    if properties.find(raw, _UNIQUE_ID) is None:
        pairs.append((_UNIQUE_ID, nacked_unique_id(stored).encode()))
    removed = {_WAIT, _DELAY_ORIGIN, _CRC, _NACK_ID}
    if nack_id is not None:
        pairs.append((_NACK_ID, nack_id.encode()))
    if dead:
        removed.add(_DELAY)
        pairs.append((_DELAY, b"0"))
    return properties.changed(raw, removed, pairs)


def nacked_unique_id(stored: Record) -> str:
    """The unique id of the copies of a nacked message.

    A message without one is named by message id and queue offset: all messages of an inner batch
    have the message id of their record.
    """
    return stored.unique_id or f"{stored.message_id}-{stored.queue_offset}"


def nacked_place(unique_id: str) -> tuple[str, int] | None:
    """Message id and queue offset in a unique id that ``nacked_unique_id`` has made; else None."""
    message_id, _, queue_offset = unique_id.rpartition("-")
    if not queue_offset.isdecimal() or not queue_offset.isascii() or len(queue_offset) > 19:
        return None
    try:
        ids.parse_offset_id(message_id)
    except ValueError:
        return None
    return message_id, int(queue_offset)


def shortened(raw: bytes, size_max: int) -> tuple[bytes, list[str]]:
    """Reduce the properties of a dead letter to size_max bytes; also returns the dropped names.

    The largest are dropped first, those with the letter's origin last. The dropped names are stored
    in ``TIDEMARK_DROPPED_PROPERTIES`` as far as they fit.
    """
    if len(raw) <= size_max:
        return raw, []
    segments = [segment + b"\x02" for segment in raw.split(b"\x02") if segment]
    names = [segment[:-1].partition(b"\x01")[0] for segment in segments]
    room = size_max - (len(_DROPPED) + _NAMES_SIZE_MAX + 2)
    size, dropped = sum(map(len, segments)), set[int]()
    for at in sorted(range(len(segments)), key=lambda at: (names[at] in _KEPT, -len(segments[at]))):
        if size <= room:
            break
        dropped.add(at)
        size -= len(segments[at])
    kept = b"".join(each for at, each in enumerate(segments) if at not in dropped)
    named = b",".join(names[at] for at in sorted(dropped))[:_NAMES_SIZE_MAX]
    note = _DROPPED + b"\x01" + named + b"\x02"
    if len(kept) + len(note) <= size_max:
        kept += note
    return kept, [properties.text(names[at]) for at in sorted(dropped)]


def redriven(letter: Record, group: str, *, to_group: bool) -> bytes:
    """Properties of a dead letter's copy that starts anew.

    to_group: the copy goes to the group's retry topic, where members find its topic in
    ``RETRY_TOPIC``; otherwise to that topic itself like any other message. A letter without unique
    id gets its own message id as one, because copies are searched by unique id.
    """
    raw = letter.properties
    origin = f"{group}@{letter.queue_offset}"
    pairs = [(_REDRIVE_ORIGIN, origin.encode())]
    removed = set(_SPENT)
    if not to_group:
        removed |= {_RETRY_TOPIC, _ORIGIN_ID}
    elif properties.find(raw, _ORIGIN_ID) is None:
        pairs.append((_ORIGIN_ID, letter.message_id.encode()))
    if properties.find(raw, _UNIQUE_ID) is None:
        pairs.append((_UNIQUE_ID, letter.message_id.encode()))
    return properties.changed(raw, removed, pairs)


def copy_unique_id(letter: Record) -> str:
    """The unique id of every copy of a dead letter."""
    return letter.unique_id or letter.message_id


def redrive_origin(raw: bytes) -> RedriveOrigin | None:
    """The dead letter from which a record was redriven; None if there is none.

    Retries of the copy, and a dead letter that it becomes, keep the property.
    """
    value = properties.find(raw, _REDRIVE_ORIGIN)
    if value is None:
        return None
    group, at, queue_offset = value.rpartition(b"@")
    if not at or not queue_offset.isdigit() or len(queue_offset) > 19:
        return None
    return RedriveOrigin(properties.text(group), int(queue_offset))


def nack_id(raw: bytes) -> str | None:
    """The id of the nack that stored a record or its original; None if there is none."""
    value = properties.find(raw, _NACK_ID)
    return None if value is None else properties.text(value)


def original_topic(stored: Record) -> str:
    """The topic to which a message was first sent; its own topic if it was never nacked."""
    value = properties.find(stored.properties, _RETRY_TOPIC)
    return stored.topic if value is None else properties.text(value)


def original_message_id(stored: Record) -> str | None:
    """Message id of the first delivery in a chain of retries; None if there is no chain."""
    value = properties.find(stored.properties, _ORIGIN_ID)
    return None if value is None else properties.text(value)
