"""One sync of everything that was touched: what it covers, and the blocking part of it.

``dispatcher`` makes a job between two steps and publishes what it made durable; ``run`` may go on
in other threads while dispatch does. Order: files, then the directories that name them, then, by
the dispatcher, the mark that speaks of both (docs/formats.md, section 6). Of many files each on its
own costs more than the dispatch between two syncs: then the whole file system is synced, where it
can be believed (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from services.reput.cleaning import NOTHING, Removed
from services.reput.queue_writer import Totals
from shared.files.disk import Disk, WholeSync
from tidemark.errors import FlushFailed, StoreError


class Failed(NamedTuple):
    """A file or directory whose sync failed, and how."""

    path: Path
    error: OSError


Outcome = Failed | StoreError | OSError | None
"""What became of one path. An error itself: it could not be opened, so nothing was synced."""
Each = Callable[[Callable[[Path], Outcome], Iterable[Path]], Iterable[Outcome]]
"""As ``map``: call with each path, in any order or at the same time."""


class Settled(NamedTuple):
    """What queues and index hold of everything below position, and of nothing above.

    Kept apart from the writers' own sums: these are ahead while a step is interrupted by a full
    disk, and a mark published with them would not be believed at the next start.
    """

    position: int
    totals: Totals
    index_entries: int
    removed: Removed = NOTHING
    """What removals had changed by then."""


@dataclass(frozen=True, slots=True)
class SyncJob:
    """One sync: what it covers, as of ``begin_sync``. ``run`` may be called in any thread."""

    disk: Disk
    files: frozenset[Path]
    directories: frozenset[Path]
    resume_number: int
    settled: Settled
    unit_timestamp_ms: int
    index_timestamp_ms: int
    is_publishable: bool
    whole: WholeSync | None = None
    """Of the file system that holds them all; None: it has to be one by one."""
    log_files: frozenset[Path] = frozenset()
    """Log files with records below the settled position that may not be on the disk yet."""

    def run(self, each: Each = map) -> None:
        """Make it durable: log files, files, then the directories that name them.

        each: as ``map``, or that of an executor: files synced at the same time share the commits
        of the file system's journal.
        Raises FlushFailed, with all that failed as its ``paths``: every file is tried, since the
        pages of each that fails count as clean from then on. A whole sync does not say which one
        failed: those are all files of the job. Raises why a file could not be opened, such as
        OutOfResources, only if no sync failed.
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
                    f"fdatasync of {path} failed: {outcome.error}. What consumers see of it may "
                    "not survive a power cut; what was acked at disk does.",
                    "Look at the kernel's log for the disk's errors. The broker meets the same "
                    "error at its next flush, and ends.",
                    path=path,
                    paths=[],  # to write over: only the appender writes the log
                )

    def _sync_whole(self, whole: WholeSync) -> tuple[frozenset[Path], frozenset[Path]]:
        """Sync the file system; return the files and directories that lie on another one."""
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
            # fdatasync needs no right to write: nothing here depends on the disk's mood.
            file = self.disk.open(path, writable=False)
        except FileNotFoundError:
            return None  # removed since: an index file that is made again
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
            return None  # removed since, with all that was in it
        except NotADirectoryError:
            return None  # a stranger's file is in the way: dispatch waits for it, and says so
        except StoreError as error:
            return error
        except OSError as error:
            return Failed(path, error)
        return None


def _flush_failed(what: str, paths: list[Path]) -> FlushFailed:
    return FlushFailed(
        f"{what}. Records are not in doubt; what was dispatched since the last sync is.",
        "Look at the kernel's log for the disk's errors. The next start dispatches it once more.",
        path=paths[0],
        paths=paths,
    )
