"""One sync of all touched files: what it covers, and its blocking part.

``dispatched_mark`` creates a job between two steps and publishes what it made durable; ``run`` may
run in other threads concurrently with dispatch. The order is: files, then the directories that
contain their names, then the mark in the checkpoint, which ``dispatched_mark`` writes
(docs/formats.md, section 6). Syncing many files individually costs more than the dispatch between
two syncs; then the whole file system is synced, if its error reporting is reliable
(docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.queue_writer import Totals
from shared.files.disk import Disk, WholeSync
from tidemark.errors import FlushFailed, StoreError


class Failed(NamedTuple):
    """A file or directory whose sync failed, and the error."""

    path: Path
    error: OSError


Outcome = Failed | StoreError | OSError | None
"""Result for one path. A plain error means that it could not be opened, so nothing was synced."""
Each = Callable[[Callable[[Path], Outcome], Iterable[Path]], Iterable[Outcome]]
"""Same contract as ``map``: call with each path, in any order or concurrently."""


class Removed(NamedTuple):
    """Change of the totals by removals since the start of the process."""

    firsts: int
    """Increase of the sum of the first queue offsets of the queues' first files."""
    entries: int
    """Decrease of the number of entries in all index files."""


NOTHING: Final = Removed(0, 0)


class SyncPoint(NamedTuple):
    """Counts of queue units and index entries that cover exactly the log below position.

    The writers' own counts are ahead of it while a full disk interrupts a step. They are not
    recorded as durable: the next start would find that they do not match the position.
    """

    position: int
    totals: Totals
    index_entries: int


class SyncMark(NamedTuple):
    """Values for the checkpoint page that are valid once the job has run."""

    sync_point: SyncPoint
    resume_number: int
    """Number of the resume in which the job began; a mark of an earlier one is not published."""
    unit_timestamp_ms: int = 0
    """Store time of the record of the newest unit."""
    index_timestamp_ms: int = 0
    """End time of the newest full index file; 0 if there is none."""
    removed: Removed = NOTHING
    """Removals that the counts include."""


@dataclass(frozen=True, slots=True)
class SyncJob:
    """One sync and what it covers; made by ``DispatchedMark.begin``. ``run`` is for any thread."""

    disk: Disk
    files: frozenset[Path]
    directories: frozenset[Path]
    mark: SyncMark | None
    """None if queues are being rebuilt, so that nothing may be published."""
    whole: WholeSync | None = None
    """Syncs the file system that holds all files; None if they must be synced individually."""
    log_files: frozenset[Path] = frozenset()
    """Log files with records below the settled position that may not be flushed yet."""

    def run(self, each: Each = map) -> None:
        """Make everything durable: log files, files, then the directories that contain their names.

        each: ``map``, or that of an executor; concurrent syncs share commits of the file system's
        journal. Raises FlushFailed with all failed paths in ``paths``: every file is tried, because
        the kernel marks the pages of a failed file as clean. A whole sync does not report which
        file failed, so ``paths`` has all files of the job. If no sync failed, raises the error of a
        file that could not be opened, such as OutOfResources.
        """
        self._sync_log()
        files, directories = self.files, self.directories
        if self.whole is not None and len(files) >= self.whole.files_min:
            files, directories = self._sync_whole(self.whole)
        for sync, paths in ((self._sync_file, files), (self._sync_directory, directories)):
            outcomes = list(each(sync, sorted(paths)))
            failed = [one for one in outcomes if isinstance(one, Failed)]
            if failed:
                first, error = failed[0]
                more = f" ({len(failed) - 1} others failed as well)" if len(failed) > 1 else ""
                what = f"fdatasync of {first} failed: {error}{more}"
                raise _flush_failed(what, [path for path, _ in failed]) from error
            for unopened in outcomes:
                if isinstance(unopened, StoreError | OSError):
                    raise unopened

    def _sync_log(self) -> None:
        for path in sorted(self.log_files):
            outcome = self._sync_file(path)
            if isinstance(outcome, StoreError | OSError):
                raise outcome
            if outcome is not None:
                raise FlushFailed(
                    f"fdatasync of {path} failed: {outcome.error}. Messages in it that consumers "
                    "see may not survive a power cut; messages acked at disk do.",
                    "Look at the kernel's log for the disk's errors. The broker meets the same "
                    "error at its next flush, and ends.",
                    path=path,
                    paths=[],  # none to rewrite, because only the appender writes the log
                )

    def _sync_whole(self, whole: WholeSync) -> tuple[frozenset[Path], frozenset[Path]]:
        """Sync the file system; return the files and directories that are on a different one."""
        covers = whole.covers
        files = frozenset(path for path in self.files if not covers(path.parent))
        directories = frozenset(path for path in self.directories if not covers(path))
        try:
            whole.run()
        except OSError as error:
            doubtful = sorted(self.files)
            first, others = doubtful[0], len(doubtful) - 1
            what = f"syncfs of the file system that holds {first} and {others} others"
            raise _flush_failed(f"{what} failed: {error}", doubtful) from error
        return files, directories

    def _sync_file(self, path: Path) -> Outcome:
        try:
            # fdatasync does not require write access, so the file can be opened read-only.
            file = self.disk.open(path, writable=False)
        except FileNotFoundError:
            return None  # removed meanwhile: an index file that is rebuilt
        except (StoreError, OSError) as error:
            return error
        try:
            file.sync()
        except OSError as error:
            return Failed(path, error)
        finally:
            file.close()
        return None

    def _sync_directory(self, path: Path) -> Outcome:
        try:
            self.disk.sync_directory(path)
        except FileNotFoundError:
            return None  # removed meanwhile, with its content
        except NotADirectoryError:
            return None  # a foreign file is in the way: dispatch waits and reports it
        except StoreError as error:
            return error
        except OSError as error:
            return Failed(path, error)
        return None


def _flush_failed(what: str, paths: list[Path]) -> FlushFailed:
    return FlushFailed(
        f"{what}. The log is not affected; units and index entries since the last sync may be.",
        "Look at the kernel's log for the disk's errors. The next start dispatches it once more.",
        path=paths[0],
        paths=paths,
    )
