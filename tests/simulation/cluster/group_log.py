"""The log of one broker group, as a model: a list of entries that all its nodes agree on.

The master of an epoch appends. An entry is *confirmed* a moment later; what is acknowledged is
confirmed. A new epoch keeps everything confirmed and any part of the rest, as a slave may have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from tidemark.errors import Fenced
from tidemark.formats import properties, record
from tidemark.formats.hosts import Host
from tidemark.offsets import Queue

STORE_HOST: Final = Host(bytes((10, 0, 0, 1)), 8080)


class Sent(NamedTuple):
    """One message as a producer sent it."""

    body: bytes
    unique_id: str | None
    sharding_key: str | None


class Entry(NamedTuple):
    """One entry of the log: a message of a queue, or a state record."""

    queue: Queue | None
    data: bytes
    """The stored record, or the body of the state record."""
    unique_id: str | None = None
    queue_offset: int = 0
    body: bytes = b""


class GroupLog:
    """The confirmed log of a broker group, and what the present master has appended beyond it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.epoch = 0
        self.slowness = 1.0
        """Factor of the time until an entry is confirmed."""
        self.entries: list[Entry] = []
        self.confirmed = 0
        """Number of entries that every later master has."""
        self.queues: dict[Queue, list[int]] = {}
        """Positions of the messages of each queue."""
        self.shown: dict[Queue, int] = {}
        """Number of confirmed messages of each queue."""
        self._by_id: dict[str, int] = {}
        self._bodies: set[bytes] = set()
        """Bodies of all confirmed messages."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Positions that callers wait for, in order."""
        self.on_confirmed: Callable[[int], None] = lambda end: None

    def begin_epoch(self) -> int:
        """Begin the term of another master, and return its epoch.

        Entries that are not confirmed may be lost. Those that wait for them are refused.
        """
        kept = self._random.randint(self.confirmed, len(self.entries))
        for entry in reversed(self.entries[kept:]):
            if entry.queue is not None:
                self.queues[entry.queue].pop()
            if entry.unique_id is not None:
                self._by_id.pop(entry.unique_id, None)
        del self.entries[kept:]
        self.epoch += 1
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(fenced())
                done.exception()
        self.confirm(self.epoch, kept)
        return self.epoch

    def append_message(self, epoch: int, queue: Queue, sent: Sent, now_ms: int) -> Entry:
        """Append a message to a queue. Raises Fenced."""
        offset = self.next_of(queue)
        pairs: dict[str, str] = {}
        if sent.unique_id is not None:
            pairs[properties.UNIQ_KEY] = sent.unique_id
        if sent.sharding_key is not None:
            pairs[properties.SHARDING_KEY] = sent.sharding_key
        topic, number = queue
        message = record.Message(
            topic,
            number,
            sent.body,
            STORE_HOST,
            STORE_HOST,
            properties.encode(pairs),
            born_timestamp_ms=now_ms,
        )
        data = record.encode(
            message,
            queue_offset=offset,
            physical_offset=len(self.entries) << 10,
            store_timestamp_ms=now_ms,
            record_crc=False,
        )
        entry = Entry(queue, data, sent.unique_id, offset, sent.body)
        position = self._append(epoch, entry)
        self.queues.setdefault(queue, []).append(position)
        if sent.unique_id is not None:
            self._by_id[sent.unique_id] = position
        return entry

    def append_state(self, epoch: int, body: bytes) -> int:
        """Append a state record; return the end of the log. Raises Fenced."""
        return self._append(epoch, Entry(None, body)) + 1

    def _append(self, epoch: int, entry: Entry) -> int:
        if epoch != self.epoch:
            raise fenced()
        self.entries.append(entry)
        return len(self.entries) - 1

    def confirm(self, epoch: int, end: int) -> None:
        """Confirm everything below a position; no effect in a later epoch."""
        if epoch != self.epoch or end <= self.confirmed:
            return
        for entry in self.entries[self.confirmed : end]:
            if entry.queue is not None:
                self.shown[entry.queue] = self.shown.get(entry.queue, 0) + 1
                self._bodies.add(entry.body)
        self.confirmed = end
        while self._waiting and self._waiting[0][0] <= end:
            _, done = self._waiting.pop(0)
            if not done.done():
                done.set_result(None)
        self.on_confirmed(end)

    async def until_confirmed(self, epoch: int, end: int) -> None:
        """Wait until everything below a position is confirmed. Raises Fenced if the term ends."""
        if epoch != self.epoch:
            raise fenced()
        if end > self.confirmed:
            done = asyncio.get_running_loop().create_future()
            self._waiting.append((end, done))
            self._waiting.sort(key=lambda each: each[0])
            await done

    def has(self, body: bytes) -> bool:
        """Return whether a confirmed message has this body."""
        return body in self._bodies

    def find(self, unique_id: str) -> Entry | None:
        """Return the stored message with this id."""
        position = self._by_id.get(unique_id)
        return None if position is None else self.entries[position]

    def next_of(self, queue: Queue) -> int:
        """Return the queue offset that the next message of a queue gets."""
        return len(self.queues.get(queue, ()))

    def state_records(self) -> list[bytes]:
        """Return the bodies of all state records, in order."""
        return [entry.data for entry in self.entries if entry.queue is None]

    def read(self, queue: Queue, offset: int, count_max: int) -> list[bytes]:
        """Return confirmed records of a queue from an offset on."""
        end = min(self.shown.get(queue, 0), offset + count_max)
        positions = self.queues.get(queue, [])
        return [self.entries[position].data for position in positions[offset:end]]


def fenced() -> Fenced:
    """Return the error of a node whose term has ended."""
    return Fenced("the term of this master is over.", "Ask another node.")
