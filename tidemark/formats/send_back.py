"""A message that a group could not handle: sent back, dead, sent again. Pure.

Sent back (store layout 13.2), a message waits under the schedule topic for its group's retry topic,
one level longer each time; after the group's last retry it is a *dead letter*. Where it first came
from stands in ``RETRY_TOPIC`` and ``ORIGIN_MESSAGE_ID``, how often it came back in the record's
RECONSUMETIMES. *Redriven*, a dead letter starts anew, and its copy carries the place of the letter
as ``TIDEMARK_REDRIVE_ORIGIN=group@queue_offset``: the copy itself is what says that the letter was
redriven, so there is no moment at which one is in the log without the other.

Properties are bytes throughout: what is not ours stays as it came.
Before: a member sent a message back. After: ``delay`` lets it wait, then an append.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.delay import TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES
from tidemark.formats.record import TOPIC_SIZE_MAX, Record

RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
DEAD_QUEUE: Final = 0
FIRST_LEVEL: Final = 3
"""Delay level of the first retry; each further one waits a level longer."""
DEAD_AT_ONCE: Final = -1
"""The delay level that asks for no more retries."""
REDRIVE_ORIGIN: Final = "TIDEMARK_REDRIVE_ORIGIN"
NACK_ID: Final = "TIDEMARK_NACK_ID"
"""In what a nack stores: the id that its caller gave the call, who may repeat it."""
NACK_ID_SIZE_MAX: Final = 64

PROPERTIES_ROOM: Final = 1024
"""Bytes of properties that every message that is sent leaves free: what delays, retries, a dead
letter and a redrive add on its way, with the longest names of topics and groups."""
RECORD_ROOM: Final = PROPERTIES_ROOM + TOPIC_SIZE_MAX + 1
"""Bytes by which the record of a message may grow on that way: its topic may be a longer one."""
DROPPED_PROPERTIES: Final = "TIDEMARK_DROPPED_PROPERTIES"
"""Names of the properties that a dead letter had no room for, with commas between them."""
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
"""What redrive and trace find a dead letter by: dropped last."""
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
"""What a message has gathered on its way to the dead-letter topic, and starts anew without."""


class Verdict(NamedTuple):
    """What becomes of a message that is sent back."""

    dead: bool
    delay_level: int
    """How long it waits; 0 for a dead letter, which nobody delays."""


class RedriveOrigin(NamedTuple):
    """The dead letter that a message was redriven from."""

    group: str
    queue_offset: int
    """In the group's dead-letter topic, which has one queue."""


def retry_topic(group: str) -> str:
    """The topic from which a group's members receive what was sent back."""
    return RETRY_PREFIX + group


def dead_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return DEAD_PREFIX + group


def judge(reconsume_times: int, delay_level: int, *, retry_max: int, level_count: int) -> Verdict:
    """Say what becomes of a message that has come back reconsume_times times before.

    delay_level: as asked for; 0 leaves it to the rule, below 0 is dead at once. A level above
    level_count counts as that one.
    """
    if delay_level < 0 or reconsume_times >= retry_max:
        return Verdict(dead=True, delay_level=0)
    return Verdict(dead=False, delay_level=min(delay_level or _rule(reconsume_times), level_count))


def _rule(reconsume_times: int) -> int:
    return FIRST_LEVEL + reconsume_times


def sent_back(stored: Record, *, dead: bool, nack_id: str | None = None) -> bytes:
    """Properties of the record that a message sent back becomes (13.2, steps 2, 4 and 5).

    Of a message that is not dead, ``delay.by_level`` makes the delayed one of them. Where the
    message waited before goes: a record whose origin was delivered long ago would say so again.
    nack_id: of the call that sends it back; that of an earlier one goes.
    """
    raw = stored.properties
    pairs = [(_WAIT, b"false")]
    if properties.find(raw, _RETRY_TOPIC) is None:
        pairs.append((_RETRY_TOPIC, stored.topic.encode(errors="replace")))
    if properties.find(raw, _ORIGIN_ID) is None:
        pairs.append((_ORIGIN_ID, stored.message_id.encode()))
    removed = {_WAIT, _DELAY_ORIGIN, _CRC, _NACK_ID}
    if nack_id is not None:
        pairs.append((_NACK_ID, nack_id.encode()))
    if dead:
        removed.add(_DELAY)
        pairs.append((_DELAY, b"0"))
    return properties.changed(raw, removed, pairs)


def shortened(raw: bytes, size_max: int) -> tuple[bytes, list[str]]:
    """Properties of a dead letter in at most size_max bytes, and the names of those dropped.

    The largest are dropped first, those that say where the letter is from last. What is dropped is
    named in ``TIDEMARK_DROPPED_PROPERTIES``, as far as there is room for that.
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

    to_group: the copy goes to the group's retry topic, where members look for its own topic in
    ``RETRY_TOPIC``; else to that topic itself, a message like any other. A letter without unique id
    gets its own message id as one: copies are looked up by unique id.
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
    """The dead letter that a record descends from; None if from none.

    The copy's own retries, and the letter it may become again, go on carrying it.
    """
    value = properties.find(raw, _REDRIVE_ORIGIN)
    if value is None:
        return None
    group, at, queue_offset = value.rpartition(b"@")
    if not at or not queue_offset.isdigit() or len(queue_offset) > 19:
        return None
    return RedriveOrigin(properties.text(group), int(queue_offset))


def nack_id(raw: bytes) -> str | None:
    """The id of the nack that stored a record, or whose copy it is; None if it had none."""
    value = properties.find(raw, _NACK_ID)
    return None if value is None else properties.text(value)


def original_topic(stored: Record) -> str:
    """The topic that a message was first sent to; that of the record if it never came back."""
    value = properties.find(stored.properties, _RETRY_TOPIC)
    return stored.topic if value is None else properties.text(value)


def original_message_id(stored: Record) -> str | None:
    """Message id of the first delivery in a chain of retries; None outside of one."""
    value = properties.find(stored.properties, _ORIGIN_ID)
    return None if value is None else properties.text(value)
