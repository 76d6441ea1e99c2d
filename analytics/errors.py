"""Errors that end a job of lag analytics: cause, number, limit, path, remedy.

Each code is stable and has a heading in docs/runbook.md. A source that does not answer is not an
error: it leaves a gap in the tables, and the job continues.
"""

from __future__ import annotations

from tidemark.errors import TidemarkError


class AnalyticsError(TidemarkError):
    """An error of tables, jobs or settings of analytics. The data of the cluster are unaffected."""


class TablesMissing(AnalyticsError):
    """The directory given to a job that reads has no tables."""

    code, title = "tables-missing", "There are no tables"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} holds no tables: {path}/_root.json is missing.",
            "Nothing was made. Run `tidemark-analytics collect --tables DIR` or `backfill` first, "
            "or name the directory they write to.",
            path=path,
        )


class TablesDiffer(AnalyticsError):
    """The tables were made with another number of buckets, or by another version."""

    code, title = "tables-differ", "The tables have other settings"

    def __init__(self, path: str, what: str, *, found: object, wanted: object) -> None:
        super().__init__(
            f"{what} of the tables in {path} is {found}, but this job asks for {wanted}. "
            "Nothing was written.",
            f"Leave the setting out, or give {found}; another value needs another directory.",
            path=path,
            found=found,
            wanted=wanted,
        )


class TablesDamaged(AnalyticsError):
    """The file with the settings of all tables cannot be read."""

    code, title = "tables-damaged", "The settings of the tables are damaged"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is unreadable: {reason}. The tables are untouched; nothing was read.",
            'Write it again, like {"format": 2, "buckets": 8}: the number of buckets is one more '
            "than the highest N among the directories bucket=N of table positions.",
            path=path,
            reason=reason,
        )


class TableUnreadable(AnalyticsError):
    """The Delta log of a table cannot be read, or was written with a feature that is not known."""

    code, title, retriable = "table-unreadable", "A table cannot be read", True

    def __init__(self, table: str, path: str, reason: str) -> None:
        super().__init__(
            f"table {table} in {path} cannot be read: {reason}. Nothing of it was read or written.",
            "If the storage is well, look at the newest file in _delta_log: a damaged one can be "
            "removed, and its batch is collected or evaluated again.",
            table=table,
            path=path,
            reason=reason,
        )


class TableBusy(AnalyticsError):
    """Others committed to the same files of a table each time that a commit was tried."""

    code, title, retriable = "table-busy", "A table changes too often", True

    def __init__(self, table: str, path: str, *, tries: int) -> None:
        super().__init__(
            f"table {table} in {path}: {tries} tries to commit met commits of others to the same "
            "files. Nothing of this batch is visible.",
            "Start the job again while no other job replaces the same hours.",
            table=table,
            path=path,
            tries=tries,
        )


class TableFileMissing(AnalyticsError):
    """A file that the table's log names does not exist."""

    code, title = "table-file-missing", "A file of a table is gone"

    def __init__(self, table: str, path: str) -> None:
        super().__init__(
            f"{path} belongs to table {table} and does not exist. The other files are sound.",
            "Restore it, or make its hour again: "
            "`tidemark-analytics backfill --hour HOUR`, then `evaluate --since … --before …`.",
            table=table,
            path=path,
        )


class PartsMissing(AnalyticsError):
    """The driver does not see a file that an executor wrote: they do not share the volume."""

    code, title, retriable = "parts-missing", "Parts of a batch cannot be seen", True

    def __init__(self, batch: str, path: str, *, missing: int, written: int) -> None:
        super().__init__(
            f"batch {batch}: executors wrote {written} files, {missing} of them are missing, like "
            f"{path}. Nothing of the batch was made visible; it will be written again.",
            "Put the tables on a volume that driver and executors all mount, read and write, or on "
            "an object store.",
            batch=batch,
            path=path,
            missing=missing,
            written=written,
        )


class HourOpen(AnalyticsError):
    """An hour is still being written and cannot be replaced."""

    code, title, retriable = "hour-open", "The hour is still open", True

    def __init__(self, hour: str, *, closed_until: str) -> None:
        super().__init__(
            f"hour {hour} is not over: tables are written up to {closed_until}. "
            "Nothing was replaced.",
            "Wait until the hour has passed, or choose an earlier one.",
            hour=hour,
            closed_until=closed_until,
        )


class HourUnread(AnalyticsError):
    """A source lacks data of an hour that was to be replaced."""

    code, title, retriable = "hour-unread", "An hour cannot be read again", True

    def __init__(self, hour: str, *, why: str) -> None:
        super().__init__(
            f"the tables have positions of hour {hour}, and the source {why}. "
            "Nothing was replaced.",
            "Make the source answer for the whole hour and start again, or leave the hour out of "
            "--hour: it stays as it is.",
            hour=hour,
            why=why,
        )


class FileUnusable(AnalyticsError):
    """A file or directory that a job was given cannot be read or written."""

    code, title, retriable = "analytics-file", "A file cannot be used", True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}. Earlier batches are in the tables.",
            "Check that it exists, that this user may write to it, and that the disk is not full.",
            path=path,
            reason=reason,
        )


class NotLocal(AnalyticsError):
    """A URI was given where a directory or file of this machine is wanted."""

    code, title, status = "analytics-not-local", "A URI cannot be used as a path", 400

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is a URI, but lag analytics needs paths on a file system. Nothing was read "
            "or written.",
            "Give a path on a volume that the driver and all executors mount, like /data/tables.",
            path=path,
        )


class BadOption(AnalyticsError):
    """An option's value is outside its bounds, or two do not go together."""

    code, title, status = "analytics-option", "An option cannot be used", 400


class SparkStart(AnalyticsError):
    """Spark did not start."""

    code, title = "spark-start", "Spark did not start"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark did not start: {reason}. No table was touched.",
            "Install a Java 17 runtime (`apt-get install openjdk-17-jre-headless`) or set "
            "JAVA_HOME; check that the machine has 1 GiB of memory to spare.",
            reason=reason,
        )
