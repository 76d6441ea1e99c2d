"""Messages of the timer topic by due time: (due, queue offset, physical offset, size).

This is a SQLite file in ``timer/`` that only sorts. It is derived from the timer topic's queue and
may be deleted at any time (docs/decisions/0013-pending-times-in-sqlite.md). A transaction is always
open. ``commit`` ends it once the log records of its changes are on disk, so the file never has a
delivery that the log may lose. The file is never synced: the page cache survives a SIGKILL, and
after a reboot the file is created again.

Not thread-safe. Every method may raise sqlite3.Error; then call ``discard``.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shared.runtime.clock import BootId

VERSION: Final = 2
CACHE_KIB: Final = 8192
"""Size of SQLite's own cache; the page cache is used in addition."""
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
_SCHEMA: Final = """
CREATE TABLE pending (
    due_ms INTEGER NOT NULL,
    queue_offset INTEGER NOT NULL,
    physical_offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (due_ms, queue_offset)
) WITHOUT ROWID;
CREATE INDEX by_queue_offset ON pending (queue_offset);
CREATE TABLE cancelled (
    out_ms INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (out_ms, key)
) WITHOUT ROWID;
CREATE TABLE known (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class Pending(NamedTuple):
    """One message that waits in the timer topic."""

    due_ms: int
    queue_offset: int
    physical_offset: int
    size: int
    """Size of its record in bytes."""


class PendingTimes:
    """The open file."""

    def __init__(self, path: Path, boot_id: BootId) -> None:
        """Open the file; create it again if it is from another boot. Raises sqlite3.Error,
        OSError."""
        self._path = path
        self._boot_id = f"{boot_id.high:016x}{boot_id.low:016x}"
        path.parent.mkdir(exist_ok=True)
        self._file = self._connect()
        if not self._is_ours():
            self._make_anew()
        self.count: int = self._one("SELECT COUNT(*) FROM pending")
        """Number of waiting messages."""
        self.cancelled_count: int = self._one("SELECT COUNT(*) FROM cancelled")
        """Number of cancellations, which also apply to messages that are read later."""
        self.read_to = int(self._known("read_to") or 0)
        """Queue offset after the last message that was read from the timer's queue."""
        self.log_end = int(self._known("log_end") or 0)
        """Physical offset after the last record that was read."""
        self._file.execute("BEGIN")

    def _connect(self) -> sqlite3.Connection:
        # isolation_level None: this module begins and ends the transactions.
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)

    def _set_up(self) -> None:
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KIB}")

    def _is_ours(self) -> bool:
        try:
            self._set_up()
            if self._one("PRAGMA user_version") != VERSION:
                return False
            if not all((self._known(name) or "").isdecimal() for name in ("read_to", "log_end")):
                return False  # a truncated file lacks rows
            return self._known("boot_id") == self._boot_id
        except sqlite3.DatabaseError:
            return False  # no database at all, or a damaged one

    def _make_anew(self) -> None:
        self._file.close()
        remove(self._path)
        self._file = self._connect()
        self._set_up()
        self._file.executescript(_SCHEMA)
        self._file.execute(f"PRAGMA user_version = {VERSION}")
        known = [("boot_id", self._boot_id), ("read_to", "0"), ("log_end", "0")]
        self._file.executemany("INSERT INTO known VALUES (?, ?)", known)

    def _one(self, query: str) -> int:
        return int(self._file.execute(query).fetchone()[0])

    def _known(self, name: str) -> str | None:
        row = self._file.execute("SELECT value FROM known WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    # -- asking ----------------------------------------------------------------------------------

    def due(self, now_ms: int, count_max: int) -> list[Pending]:
        """Return the first count_max due messages, in the order of (due, queue offset)."""
        query = "SELECT * FROM pending WHERE due_ms <= ? ORDER BY due_ms, queue_offset LIMIT ?"
        return [Pending._make(row) for row in self._file.execute(query, (now_ms, count_max))]

    def after(self, due_ms: int, queue_offset: int, count_max: int) -> list[Pending]:
        """Return the first count_max messages after (due_ms, queue_offset), in that order."""
        query = (
            "SELECT * FROM pending WHERE (due_ms, queue_offset) > (?, ?) "
            "ORDER BY due_ms, queue_offset LIMIT ?"
        )
        rows = self._file.execute(query, (due_ms, queue_offset, count_max))
        return [Pending._make(row) for row in rows]

    def first(self) -> Pending | None:
        """Return the message that is due next; None if none waits."""
        found = self.after(-1, -1, 1)
        return found[0] if found else None

    def below(self, physical_offset: int, count_max: int) -> list[Pending]:
        """Return the oldest count_max whose records begin below physical_offset, in the queue's
        order."""
        # Queue order is log order, so the search ends at the first record above physical_offset.
        query = "SELECT * FROM pending ORDER BY queue_offset LIMIT ?"
        rows = [Pending._make(row) for row in self._file.execute(query, (count_max,))]
        return [row for row in rows if row.physical_offset < physical_offset]

    def lowest_queue_offset(self) -> int | None:
        """Return the lowest queue offset of a waiting message; None if none waits."""
        query = "SELECT MIN(queue_offset) FROM pending"
        lowest: int | None = self._file.execute(query).fetchone()[0]
        return lowest

    def is_cancelled(self, out_ms: int, keys: Collection[bytes]) -> bool:
        """Return whether there is a cancellation with one of the keys."""
        query = "SELECT 1 FROM cancelled WHERE out_ms = ? AND key = ?"
        return any(self._file.execute(query, (out_ms, key)).fetchone() for key in keys)

    def find(self, queue_offset: int) -> Pending | None:
        """Return the waiting message with that queue offset; None if it no longer waits."""
        query = "SELECT * FROM pending WHERE queue_offset = ?"
        row = self._file.execute(query, (queue_offset,)).fetchone()
        return None if row is None else Pending._make(row)

    # -- changing --------------------------------------------------------------------------------

    def take_in(self, rows: Sequence[Pending], *, read_to: int, log_end: int) -> None:
        """Add messages read from the queue up to queue offset read_to and physical offset
        log_end."""
        # Sorted as the table, because neighbouring rows share a page.
        self._file.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", sorted(rows))
        self.count += len(rows)
        self.read_to, self.log_end = read_to, log_end

    def add_cancelled(self, found: Sequence[tuple[int, bytes]]) -> None:
        """Store cancellations that were read: (``TIMER_OUT_MS``, key)."""
        query = "INSERT OR IGNORE INTO cancelled VALUES (?, ?)"
        self.cancelled_count += self._file.executemany(query, found).rowcount

    def forget_cancelled(self, out_ms: int) -> None:
        """Drop the cancellations of slots before out_ms."""
        query = "DELETE FROM cancelled WHERE out_ms < ?"
        self.cancelled_count -= self._file.execute(query, (out_ms,)).rowcount

    def remove(self, rows: Iterable[Pending]) -> None:
        """Remove messages."""
        keys = [row[:2] for row in rows]
        query = "DELETE FROM pending WHERE due_ms = ? AND queue_offset = ?"
        self.count -= self._file.executemany(query, keys).rowcount

    def remove_at(self, queue_offset: int) -> None:
        """Remove the message with that queue offset, if it waits."""
        row = self.find(queue_offset)
        if row is not None:
            self.remove([row])

    def put_back(self, rows: Iterable[Pending]) -> None:
        """Add removed messages again, because they could not be delivered."""
        values = list(rows)
        self._file.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", values)
        self.count += len(values)

    def remove_through(self, due_ms: int, queue_offset: int, read_to: int) -> None:
        """Remove the messages that a mark covers as delivered
        (``shared.state.values.TimerMark``)."""
        query = "DELETE FROM pending WHERE (due_ms, queue_offset) <= (?, ?) AND queue_offset < ?"
        self.count -= self._file.execute(query, (due_ms, queue_offset, read_to)).rowcount

    def commit(self) -> None:
        """Make all changes so far survive a SIGKILL; the log records that they depend on are
        flushed."""
        update = "UPDATE known SET value = ? WHERE name = ?"
        known = [(str(self.read_to), "read_to"), (str(self.log_end), "log_end")]
        self._file.executemany(update, known)
        self._file.execute("COMMIT")
        self._file.execute("BEGIN")

    def close(self) -> None:
        """Close the file; uncommitted changes are lost."""
        with contextlib.suppress(sqlite3.Error):
            self._file.rollback()
        with contextlib.suppress(sqlite3.Error):
            self._file.close()

    def discard(self) -> None:
        """Close and remove the file: it is damaged, or does not belong to this log. Raises
        OSError."""
        self.close()
        remove(self._path)


def remove(path: Path) -> None:
    """Remove the file and the other files that SQLite keeps beside it. Raises OSError."""
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
