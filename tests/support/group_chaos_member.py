"""One member of a group, as a process: it handles a message by recording it in a file.

    python -m tests.support.group_chaos_member URL TOPIC GROUP FILE --number N [--ordered] …

A message is handled once its entry is in the file; only then is it committed, by asking for the
next. SIGTERM lets it finish the messages in hand and leave; SIGKILL may hit it anywhere. The entry
has the queue and queue offset of the message, or with --numbered the stream and the number in its
body: in a cluster, messages of one key are in several queues over time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final

import tidemark
from tests.support.group_chaos_check import COUNT_MAX, Entry, What
from tidemark.client.messages import Message
from tidemark.client.subscription import Subscription

BATCH_MAX = 256
RETRY_S: Final = 120.0
"""A member may start while all that it could ask is killed."""
NUMBER: Final = struct.Struct(">HI")
"""Begin of the body of a numbered message: its stream, its number in the stream."""


class Book:
    """The file that all members write to."""

    def __init__(self, path: str, member: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._member = member

    def moved(self, what: What, queues: Iterable[tuple[str, int]], generation: int) -> None:
        """Queues were taken or given up."""
        at_ns = time.monotonic_ns()
        self._write(
            Entry(what, queue, self._member, 0, generation, 0, at_ns) for _, queue in queues
        )

    def handled(self, places: Sequence[tuple[int, int]], generation: int) -> None:
        """Messages were handled. places: (queue, queue offset) of each, in the order of handling.

        Adjacent ones of a queue are one entry.
        """
        at_ns = time.monotonic_ns()
        entries: list[Entry] = []
        for queue, offset in places:
            last = entries[-1] if entries else None
            if (
                last is not None
                and last.queue == queue
                and last.queue_offset + last.messages == offset
                and last.messages < COUNT_MAX
            ):
                entries[-1] = last._replace(messages=last.messages + 1)
            else:
                entries.append(
                    Entry(What.HANDLED, queue, self._member, 1, generation, offset, at_ns)
                )
        self._write(entries)

    def _write(self, entries: Iterable[Entry]) -> None:
        os.write(self._file, b"".join(entry.packed() for entry in entries))


def _place(message: Message) -> tuple[int, int]:
    source = message.source
    return int(source.queue), source.queue_offset


def _number(message: Message) -> tuple[int, int]:
    stream, number = NUMBER.unpack_from(message.body)
    return stream, number


async def take_part(given: argparse.Namespace) -> None:
    """Be a member until SIGTERM."""
    book = Book(given.file, given.number)
    place = _number if given.numbered else _place
    messages: Subscription

    async def assigned(queues: Sequence[tuple[str, int]]) -> None:
        book.moved(What.ASSIGNED, _of_topic(queues, given.topic), messages.generation)

    async def revoked(queues: Sequence[tuple[str, int]]) -> None:
        book.moved(What.REVOKED, _of_topic(queues, given.topic), messages.generation)

    async with tidemark.connect(given.url, retry_for_s=RETRY_S) as mq:
        messages = mq.subscribe(
            given.topic,
            group=given.group,
            member=f"member-{given.number}",
            session_ms=given.session_ms,
            commit_interval_ms=given.commit_interval_ms,
            on_assigned=None if given.numbered else assigned,
            on_revoked=None if given.numbered else revoked,
        )
        async with messages:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
            if given.ordered:
                async for message in messages:
                    book.handled([place(message)], messages.generation)
                    await asyncio.sleep(given.work_ms / 1000)
            else:
                async for batch in messages.batches(max=BATCH_MAX):
                    book.handled([place(message) for message in batch], messages.generation)
                    await asyncio.sleep(given.work_ms / 1000)


def _of_topic(queues: Iterable[tuple[str, int]], topic: str) -> list[tuple[str, int]]:
    """Leave out the queues of the group's retry topic, which have the same numbers."""
    return [place for place in queues if place[0] == topic]


def main() -> None:
    """Read the command line and take part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("file")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--numbered", action="store_true")
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--session-ms", type=int, default=5000)
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--commit-interval-ms", type=int, default=100)
    asyncio.run(take_part(parser.parse_args()))


if __name__ == "__main__":
    main()
