"""The messages in stored records: checks records, and takes inner batches apart.

A record of a batch queue is an inner batch (docs/formats.md, 2.12). Answers show each of its
messages under its own queue offset. The step before is ``pull`` or ``query``, which find records;
after it ``message_map`` builds the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shared.files.pull import PullResult
from tidemark.errors import CorruptRecord, UnknownMessage
from tidemark.formats import batch, hashing, inner_batch, native, record
from tidemark.formats.batch import BadBatch
from tidemark.formats.record import Record
from tidemark.formats.select import Wanted
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset


class Pulled(NamedTuple):
    """One message of a pull, or the damage at which its messages end."""

    queue_offset: QueueOffset
    """Queue offset of the message; of damage, the first one that could not be read."""
    found: Record | CorruptRecord
    tags_code: int


def pulled_messages(
    result: PullResult,
    checks_at: Callable[[int], record.Checks],
    wanted: Wanted | None = None,
) -> Iterator[Pulled]:
    """Yield the messages of a pull from its offset on, up to the first damage, which is yielded.

    checks_at: returns the checks that the record at a physical offset has to pass. wanted: the
    pull's tags. The pull has compared the records of an ordinary queue with them. Those of a batch
    queue may hold messages of different tags, which are compared here. Raises DamagedFile.
    """
    for first, unit, data in result.records():
        at = PhysicalOffset(unit.physical_offset)
        begin = max(first, result.looked_from)
        outcome = record.validate(data, 0, at=at, checks=checks_at(at))
        if outcome.kind is not record.Kind.VALID:
            yield Pulled(begin, CorruptRecord(at, outcome.reason), unit.tags_code)
            return
        stored = record.decode(data)
        if result.unit_size == UNIT_SIZE:
            yield Pulled(first, stored, unit.tags_code)
            continue
        try:
            messages = messages_from(stored, begin)
        except CorruptRecord as error:
            yield Pulled(begin, error, unit.tags_code)
            return
        for message in messages:
            if message.queue_offset >= result.next_offset:
                return  # the batch was divided
            if _is_wanted(message, wanted):
                yield Pulled(message.queue_offset, message, hashing.tags_code(message.tags))


def messages_of(stored: Record) -> list[Record]:
    """Return the messages of a record whose CRC is right; of an inner batch, all of them.

    Raises CorruptRecord if the body of a batch does not hold the messages that it should.
    """
    return list(messages_from(stored, stored.queue_offset))


def messages_from(stored: Record, queue_offset: int) -> Iterator[Record]:
    """Return the messages of a record from a queue offset on, made as they are taken.

    A batch may have tens of thousands of them, of which a caller often needs one. Raises as
    ``messages_of``, before the first is taken.
    """
    count = inner_batch.message_count(stored.sys_flag, stored.properties, stored.queue_offset)
    if not count:
        return iter([stored] if queue_offset <= stored.queue_offset else [])
    try:
        starts = memoryview(native.entry_starts(stored.body)).cast("I")
    except BadBatch as error:
        raise _damaged(stored, str(error)) from None
    if len(starts) != count:
        raise _damaged(stored, f"it has {count} messages, its body has {len(starts)}")
    return (
        inner_batch.message(stored, index, batch.entry_at(stored.body, starts[index]))
        for index in range(max(0, queue_offset - stored.queue_offset), count)
    )


def _damaged(stored: Record, reason: str) -> CorruptRecord:
    return CorruptRecord(stored.physical_offset, f"inner batch: {reason}")


def message_at(stored: Record, queue_offset: int | None) -> Record:
    """Return the message of a record at a queue offset; None: its first message.

    Raises UnknownMessage, CorruptRecord.
    """
    first = stored.queue_offset
    begin = first if queue_offset is None else queue_offset
    found = next(messages_from(stored, begin), None) if begin >= first else None
    if found is not None:
        return found
    last = first + message_count(stored) - 1
    raise UnknownMessage(
        f"the record with the id {stored.message_id} has no message at queue offset "
        f"{queue_offset}: it holds {first} to {last} of queue {stored.queue_id} of topic "
        f"{stored.topic!r}.",
        topic=stored.topic,
        queue=stored.queue_id,
        queue_offset=queue_offset,
        min_offset=int(first),
        max_offset=int(last) + 1,
    )


def message_count(stored: Record) -> int:
    """Return the number of messages of a record."""
    return inner_batch.message_count(stored.sys_flag, stored.properties, stored.queue_offset) or 1


def named_messages(stored: Record, word: str, *, unique_id_only: bool) -> list[Record]:
    """Return the messages of a record that the index has found by a word.

    word: a unique id or, unless unique_id_only, a key. Of a batch these are the messages that have
    it themselves. If none has, it is the unique id or a key of the batch, and all are returned.
    Raises CorruptRecord.
    """
    messages = messages_of(stored)
    named = [each for each in messages if has_word(each, word, unique_id_only=unique_id_only)]
    return named or messages


def has_word(message: Record, word: str, *, unique_id_only: bool) -> bool:
    """Return whether a word is the message's unique id or, unless unique_id_only, a key of it."""
    return message.unique_id == word or (not unique_id_only and word in message.keys)


def _is_wanted(message: Record, wanted: Wanted | None) -> bool:
    if wanted is None:
        return True
    tags = message.tags
    if wanted.tags is not None:
        return tags in wanted.tags
    return hashing.tags_code(tags) in wanted.hashes
