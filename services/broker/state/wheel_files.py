"""The timing wheel files, from which a RocketMQ broker can continue to deliver timed messages.

They are written when delivery ends in order: ``timerlog/`` with a unit for each waiting message,
then ``config/timercheck``. There is no ``timerwheel`` then: RocketMQ builds it from the units.
While this broker delivers, the log is empty and ``timercheck`` names the oldest waiting message: a
RocketMQ broker that finds the store after a kill reads the queue from there, and delivers later
messages again even if they were delivered. It would lose messages with units of an older time: it
reads no slot that is more than seven days old.

Blocks. Step before: ``waiting`` knows what waits. Step after: RocketMQ; or ``json_cache`` at our
next start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, write_atomically
from shared.state.json_cache import TIMER_CHECK
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.formats import timer_check, timer_log
from tidemark.formats.delay import PRECISION_MS
from tidemark.formats.filenames import offset_name, parse_offset_name
from tidemark.formats.timer_check import TimerCheck
from tidemark.formats.timer_log import Waiting

log = logging.getLogger(__name__)

WHEEL: Final = "timerwheel"
LOG: Final = "timerlog"
NOTE_INTERVAL_S: Final = 10.0
WRITE_MAX_S: Final = 5.0
"""Time by which writing may prolong a stop: some seconds do for a million messages."""


class WheelFiles:
    """The wheel files of one store."""

    def __init__(self, disk: Disk, root: Path, config_dir: Path, clock: Clock) -> None:
        self._disk = disk
        self._check = config_dir / TIMER_CHECK
        self._root = root
        self._clock = clock
        self._noted: int | None = None
        """Queue offset in the check that ``note`` wrote; None: it wrote none yet."""
        self._note_at: float | None = None
        """When ``note`` may write again [monotonic s]; None: not written since the files were
        removed."""
        self._has_old_units = False
        """Whether units may be left that are older than a check which is written now."""
        self._log = root / LOG

    def withdraw(self) -> None:
        """Remove the files, except for one empty file of the log: our log has RocketMQ's state now.

        The empty file keeps the size that RocketMQ is configured with. If the disk accepts no
        changes, the files stay, and a warning is logged.
        """
        self._noted = self._note_at = None
        try:
            self._withdraw()
            self._has_old_units = False
        except (OSError, StoreError) as error:
            self._has_old_units = True
            log.warning(
                "the files of RocketMQ's timer could not be removed; a RocketMQ broker that opens "
                "the store would continue from an older time",
                extra={"event": "timer-wheel-not-removed", "detail": str(error)},
            )

    @property
    def was_noted(self) -> bool:
        """Whether ``note`` has written, or tried to."""
        return self._note_at is not None

    def note(self, queue_offset: int) -> None:
        """Write where in the queue a RocketMQ broker begins if this node is killed.

        All messages below queue_offset were delivered, durably, or cancelled. Writes
        at most every NOTE_INTERVAL_S: an older file only makes RocketMQ deliver more again.
        """
        now = self._clock.monotonic()
        if queue_offset == self._noted or (self._note_at is not None and now < self._note_at):
            return
        if self._has_old_units:
            self.withdraw()
        self._note_at = now + NOTE_INTERVAL_S
        if self._has_old_units:
            return  # RocketMQ would skip the messages of the old units because of a new check
        # If the disk accepts no changes, the older file stays.
        with suppress(OSError, StoreError):
            self._write_check(0, queue_offset, self._clock.wall_ms())
            self._noted = queue_offset

    def write(
        self,
        waiting: Iterable[Waiting],
        last: Waiting | None,
        queue_offset: int,
        *,
        now_ms: int,
        start_ms: int,
    ) -> None:
        """Replace all files. Durable on return, or without a ``timercheck``.

        waiting, now_ms, start_ms, last: see ``timer_log.written``; last None: nothing waits.
        queue_offset: the one after the last message considered. Raises OSError, StoreError.

        Without a ``timercheck`` RocketMQ reads the queue from its start, whatever part of the log
        exists: so the order of the units does not matter if writing is interrupted.
        """
        file_size = self._withdraw()
        end = 0
        if last is not None:
            pieces = timer_log.written(
                waiting, last, now_ms=now_ms, start_ms=start_ms, file_size=file_size
            )
            end = self._write_log(pieces, file_size)
        self._write_check(end, queue_offset, start_ms)

    def _write_check(self, end: int, queue_offset: int, now_ms: int) -> None:
        read_to_ms = now_ms - now_ms % PRECISION_MS
        check = TimerCheck(read_to_ms, end, queue_offset, queue_offset)
        self._disk.make_directory(self._check.parent)
        write_atomically(self._disk, self._check, timer_check.encode(check, now_ms))

    def _withdraw(self) -> int:
        """Remove all but one empty file of the log, if there was one; return the size of its
        files."""
        # The check first: without it the queue is read from its start, whatever else exists.
        if self._disk.stat(self._check) is not None:
            self._disk.unlink(self._check)
            self._disk.sync_directory(self._check.parent)
        # Later releases of RocketMQ keep snapshots next to the wheel.
        wheels = [
            entry.name
            for entry in self._disk.list_directory(self._root)
            if entry.name.partition(".")[0] == WHEEL and not entry.is_directory
        ]
        for name in wheels:
            self._disk.unlink(self._root / name)
        if wheels:
            # An old wheel would point to arbitrary places in the next log.
            self._disk.sync_directory(self._root)
        return self._empty_log()

    def _empty_log(self) -> int:
        names = [
            entry.name
            for entry in self._disk.list_directory(self._log)
            if not entry.is_directory and parse_offset_name(entry.name) is not None
        ]
        if not names:
            return timer_log.FILE_SIZE
        # The largest: a truncated file must not lead to files that RocketMQ does not load.
        stats = [self._disk.stat(self._log / name) for name in names]
        size = max(stat.size for stat in stats if stat is not None)
        if size < timer_log.FILE_SIZE_MIN:
            size = timer_log.FILE_SIZE
        # The new file first: a kill in between must not lose the size.
        temporary = self._root / f"{LOG}.tmp"
        if self._disk.stat(temporary) is not None:
            self._disk.unlink(temporary)
        file = self._disk.create(temporary, size, reserve=False)
        try:
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self._file(0))
        for name in names:
            if name != offset_name(0):
                self._disk.unlink(self._log / name)
        self._disk.sync_directory(self._log)
        return size

    def _write_log(self, pieces: Iterable[tuple[int, bytearray]], file_size: int) -> int:
        """Fill the empty log; return its end. Raises TimeoutError, because a stop must not wait
        long."""
        end = 0
        until = self._clock.monotonic() + WRITE_MAX_S
        for position, data in pieces:
            if self._clock.monotonic() > until:
                raise TimeoutError(f"the timer's log was not written within {WRITE_MAX_S} s")
            self._append(position - position % file_size, position, data, file_size)
            end = position + len(data)
        if end:
            self._disk.sync_directory(self._log)
        return end

    def _append(self, start: int, position: int, data: bytearray, file_size: int) -> None:
        """Write data to the file of that start, and sync it."""
        path = self._file(start)
        if self._disk.stat(path) is not None:
            file = self._disk.open(path, writable=True)
        else:
            self._disk.make_directory(self._log)
            file = self._disk.create(path, file_size, reserve=False)
        try:
            file.pwrite(data, position - start)
            file.sync()
        finally:
            file.close()

    def _file(self, start: int) -> Path:
        return self._log / offset_name(start)
