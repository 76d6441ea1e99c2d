"""Mistakes that the simulation has to find, planted for the length of a ``with``.

Each removes one rule of durability from the code under test. They exist only here; they name what
they patch, so a rename breaks the test and not the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogAppender
from shared.files.queue_files import QueueFiles
from tests.simulation.machine import Machine
from tests.support.sim_disk import SimDisk, SimFile
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset


@contextmanager
def flush_published_early() -> Iterator[None]:
    """FLUSHED moves before the fdatasync, as if the order of two lines did not matter."""
    flush = CommitLogAppender.flush

    def early(self: CommitLogAppender) -> PhysicalOffset:
        self._positions.publish(Slot.FLUSHED, self.written)
        return flush(self)

    with patch.object(CommitLogAppender, "flush", early):
        yield


@contextmanager
def written_published_early() -> Iterator[None]:
    """WRITTEN moves before the pool was written into the file."""
    commit = CommitLogAppender.commit

    def early(self: CommitLogAppender) -> PhysicalOffset:
        if self.appended > self.written:
            self._positions.publish(Slot.WRITTEN, self.appended)
        return commit(self)

    with patch.object(CommitLogAppender, "commit", early):
        yield


@contextmanager
def memory_acked_early() -> Iterator[None]:
    """A sender at ``memory`` is answered when its records are in the pool."""
    with patch.object(Machine, "in_memory", property(lambda self: self.appender.appended)):
        yield


@contextmanager
def no_directory_sync() -> Iterator[None]:
    """The bytes of new commit log files are synced, but not their names."""
    sync_directory = SimDisk.sync_directory

    def forgetful(self: SimDisk, path: Path) -> None:
        if path.name != "commitlog":
            sync_directory(self, path)

    with patch.object(SimDisk, "sync_directory", forgetful):
        yield


@contextmanager
def mark_before_queue_sync() -> Iterator[None]:
    """DISPATCHED_DURABLE moves first, and the queues that it covers are synced after it."""

    def early(self: Dispatcher) -> None:
        job = self.begin_sync()
        if job is not None:
            self.finish_sync(job)
            job.run()

    with patch.object(Dispatcher, "sync", early):
        yield


@contextmanager
def no_zeroing_after_cut() -> Iterator[None]:
    """Bytes that recovery cuts off the log stay there, behind the new end."""
    pwrite = SimFile.pwrite

    def keeping(self: SimFile, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.path.parent.name == "commitlog" and not any(data):
            return
        pwrite(self, data, offset)

    with patch.object(SimFile, "pwrite", keeping):
        yield


@contextmanager
def units_counted_as_messages() -> Iterator[None]:
    """A batch queue goes on at the number of its next unit, as an ordinary queue does."""
    with patch.object(QueueFiles, "next_offset", lambda self, number: number):
        yield


FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "flush-published-early": flush_published_early,
    "written-published-early": written_published_early,
    "memory-acked-early": memory_acked_early,
    "no-directory-sync": no_directory_sync,
    "mark-before-queue-sync": mark_before_queue_sync,
    "no-zeroing-after-cut": no_zeroing_after_cut,
    "units-counted-as-messages": units_counted_as_messages,
}

SYMPTOMS: Final = {
    "flush-published-early": r"called flushed and is not on the disk|published flushed offset",
    "written-published-early": r"the offset written in this boot of the machine is \d+",
    "memory-acked-early": r"log ends at \d+, but no power cut took \d+ away",
    "no-directory-sync": r"the log's files end here; the published|the acked record at \d+ is gone"
    r"|everything below \d+ was acked|the commit log lacks the bytes from",
    "mark-before-queue-sync": r"dispatched_durable is \d+, but the unit of .* was not on",
    "no-zeroing-after-cut": r"the log ends at \d+; in the \w+ byte \d+ is not zero",
    "units-counted-as-messages": r"next queue offsets \{.*\} are not",
}
"""The first symptom of each: a fault found by another symptom would be found by chance."""
