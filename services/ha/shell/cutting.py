"""Cuts the log at the divergence point; the next start finishes a cut after any crash.

What is removed was never confirmed: a cut never goes below this node's own confirm offset, and
consume queues and index never cover more (docs/replication.md, rejoining). So neither has to be
cut, and no reader sees the zeros. Steps, with the numbers of the hooks:

5. The point moves down to a record border, and the tail is kept in ``cut/``.
6. The intent is written: from here on the cut is finished in any case.
7. The ends on the page become the point: a later recovery would trust the old ends as durable.
8. Later files are removed; the rest of the point's own file is overwritten with zeros and synced.
9. The table that applies after the cut is written.
10. The intent is removed.

Step before: the slave's link found the point. Step after: the log is recovered at its new end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from services.ha.shell import hooks
from services.ha.shell.replica_files import CutIntent, ReplicaFiles
from shared.files import log_walk
from shared.files.log_walk import LogFiles
from shared.files.mapped_file_queue import zero_range
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import DiskFull, HaltedReplica
from tidemark.formats import native
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset

RECORDS_AT_ONCE = 65_536


class Cut(NamedTuple):
    """Result of a cut."""

    end: int
    """The new end of the log."""
    size: int
    """Bytes that were removed; 0 if only the table was cut."""
    kept: Path | None
    """Path of the kept tail; None if there was none, or no room for it."""


def cut(
    store: StoreDir,
    positions: Positions,
    files: ReplicaFiles,
    *,
    point: int,
    table: tuple[EpochStart, ...],
    confirm: int,
) -> Cut:
    """Cut the log at the last record border at or below point.

    The append lock is held, and the log is closed.

    table: the epoch table after the cut. confirm: nothing below it may be cut. Raises HaltedReplica
    without a change if the border lies below confirm; StoreError, OSError: the next start finishes
    the cut.
    """
    log = LogFiles(store.disk, store.commit_log_dir, store.config.commit_log_file_size)
    try:
        known = (*(entry.start for entry in table), confirm)
        border = border_at_or_below(log, point, known)
        if border < confirm:
            raise HaltedReplica(
                f"the log would be cut at {border}, below the confirm offset {confirm}: "
                "acknowledged messages would be lost. Nothing was changed.",
                "See which node has the right history; `tidemark cluster resync` on the other.",
                point=border,
                confirm=confirm,
            )
        last_byte = log_walk.last_nonzero(log, border)
        kept, size = None, 0
        if last_byte is not None:
            size = last_byte + 1 - border
            # Before the intent: after the zeros, a repeated step would keep those instead.
            kept = _keep(store, files, log, border, last_byte + 1)
    finally:
        log.close()
    hooks.before("cut-6")
    intent = CutIntent(border, table)
    files.write_intent(intent)
    finish(store, positions, files, intent)
    return Cut(border, size, kept)


def finish(store: StoreDir, positions: Positions, files: ReplicaFiles, intent: CutIntent) -> None:
    """Run steps 7 to 10, each of which may be done already.

    The append lock is held, and the log is closed.
    """
    hooks.before("cut-7")
    for slot in (Slot.FLUSHED, Slot.WRITTEN):
        positions.publish(slot, min(positions.get(slot), intent.point))
    positions.sync()
    hooks.before("cut-8")
    _zero(store, intent.point)
    hooks.before("cut-9")
    files.write_table(intent.table)
    hooks.before("cut-10")
    files.remove_intent()


def border_at_or_below(log: LogFiles, point: int, known: Iterable[int]) -> int:
    """Return the last record border at or below point, or the end of the log.

    known: record borders, for a short walk; a wrong one only costs a longer walk.
    """
    file_start = log.start_of(point)
    if file_start == point or file_start not in log.starts:
        return point
    near = max((each for each in known if file_start <= each <= point), default=file_start)
    found = _walk_to(log, near, point)
    return found if found == point or near == file_start else _walk_to(log, file_start, point)


def _walk_to(log: LogFiles, start: int, point: int) -> int:
    """Return the last border at or below point, walking from a border of the same file."""
    file_start = log.start_of(start)
    view = log.view(file_start)[: point - file_start]
    at = start
    while at < point:
        found = native.walk(
            view[at - file_start :],
            at=PhysicalOffset(at),
            # Only borders matter here; recovery has checked the records.
            checks=Checks(body_crc=False, record_crc=False),
            records_max=RECORDS_AT_ONCE,
            delay_levels_ms=(),
        )
        at += found.end
        if found.stop is not Stop.LIMIT:
            break
    return at


def _keep(store: StoreDir, files: ReplicaFiles, log: LogFiles, start: int, end: int) -> Path | None:
    table = files.table()
    with contextlib.suppress(
        DiskFull
    ):  # the tail was never confirmed; a full disk must not delay the cut
        return store.keep_cut(
            start,
            log_walk.chunks(log, start, end),
            epoch=table[-1].epoch if table else 0,
            reason="forked",
        )
    return None


def _zero(store: StoreDir, point: int) -> None:
    """Make the log end at point: remove later files, last one first, and write zeros after it.

    No file is shortened: other processes have it mapped, and would be killed when they read there.
    """
    disk = store.disk
    # Files that a killed process removed may be removed in the cache only. A power cut would bring
    # them back, after the end of a log that has grown since.
    disk.sync_directory(store.commit_log_dir)
    log = LogFiles(disk, store.commit_log_dir, store.config.commit_log_file_size)
    try:
        file_start = log.start_of(point)
        for start in sorted((*log.starts, *log.empty), reverse=True):
            if start > file_start or (start == file_start and start in log.empty):
                disk.unlink(log.path(start))
                # Each on its own: removals become durable in any order, and two could leave a gap.
                disk.sync_directory(store.commit_log_dir)
        if file_start in log.starts:
            file = log.open(file_start, writable=True)
            try:
                zero_range(file, point - file_start, min(file.size, file.data_end()))
                file.sync()
            finally:
                file.close()
    finally:
        log.close()
