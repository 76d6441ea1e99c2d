"""Reads of the model of a log, in the form of the broker's puller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from services.broker.read.long_polls import LongPolls, Wake, Watcher
from services.broker.read.pull import PullRequest
from shared.files.pull import PullResult, PullStatus
from tests.simulation.cluster.group_log import GroupLog
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset


class ModelPuller:
    """Replaces ``services.broker.read.pull.Puller``: everything confirmed can be read."""

    may_hold = True

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self.long_polls = LongPolls()

    def read(self, request: PullRequest) -> PullResult:
        """Answer with the messages that can be read now."""
        queue, offset = (request.topic, request.queue), request.offset
        end = self._log.shown.get(queue, 0)
        found: list[bytes] = []
        if end == 0:
            status, after = PullStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset > end:
            status, after = PullStatus.OFFSET_OVERFLOW_BADLY, end
        elif offset == end:
            status, after = PullStatus.OFFSET_OVERFLOW_ONE, end
        else:
            found = self._log.read(queue, offset, request.count_max)
            status, after = PullStatus.FOUND, offset + len(found)
        return PullResult(
            status,
            QueueOffset(after),
            QueueOffset(0),
            QueueOffset(end),
            [memoryview(each) for each in found],
            len(found),
            sum(map(len, found)),
            0,
            QueueOffset(offset),
            b"",
        )

    def bounds(self, topic: str, queue: int) -> tuple[QueueOffset, QueueOffset]:
        """Return the first and the end queue offset that can be pulled."""
        return QueueOffset(0), QueueOffset(self._log.shown.get((topic, queue), 0))

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the queue's next offset to be assigned."""
        return QueueOffset(self._log.next_of(queue))

    def items(self) -> Iterator[tuple[Queue, QueueOffset]]:
        """Return every queue that ever had a message, with its next offset."""
        return ((queue, QueueOffset(len(found))) for queue, found in self._log.queues.items())

    def watch(self, queue: Queue, offset: int, watcher: Watcher) -> None:
        """Wake the watcher when the queue has a message at or after an offset."""
        waits = self._log.next_of(queue) > offset
        end = PhysicalOffset(len(self._log.entries)) if waits else None
        self.long_polls.watch(queue, watcher, appended_to=end)

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Remove the watcher of the queue."""
        self.long_polls.unwatch(queue, watcher)

    def poll_after_ms(self, wait_s: float) -> int:
        """Not called, because every call may be held."""
        raise AssertionError(wait_s)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold a call; there is always room."""
        yield

    def ended(self, why: Wake) -> None:
        """Count nothing."""
