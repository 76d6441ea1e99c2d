"""The spool: numbered files with the answers of scrapes, so that a batch can be read again.

A file has the answers of one broker set's targets in one round. It is written under another name,
flushed and renamed, so it exists whole or not at all. Its number is in its name; an offset of the
stream is the number of the last file. A lock on the directory allows one writer and any number of
readers. Step before: ``scraper`` got answers. Step after: ``reader`` parses them, on executors.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from analytics.errors import AnalyticsError
from analytics.schema import Gap
from analytics.sources.scrape.targets import Target

_NAME: Final = re.compile(r"([0-9]{12})-([0-9]{13,})\.scrape")
_CODEC: Final = "zstd"
LOCK_WAIT_S: Final = 20.0
"""The lock of a killed process is released after a moment."""
LOCK_TRY_S: Final = 0.1


class SpoolInUse(AnalyticsError):
    """Another process scrapes into this directory."""

    code, title = "spool-in-use", "Another process scrapes into this directory"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is locked by another process that scrapes into it. Nothing was written.",
            "Stop the other stream, or give this one a spool of its own.",
            path=path,
        )


class Scraped(NamedTuple):
    """Result of one scrape of one target."""

    target: Target
    at_us: int
    """Start of the scrape; microseconds since 1970, whole milliseconds."""
    since_us: int
    """Start of the gap, if this is one."""
    body: bytes
    is_openmetrics: bool
    reason: Gap | None = None
    """Why there is no body."""
    detail: str = ""


class Spooled(NamedTuple):
    """One file of the spool."""

    number: int
    at_ms: int
    path: Path


class Spool:
    """A directory of files that hold scrapes. Readers need no lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[Spooled]:
        """All files, by number."""
        found = []
        for path in self.directory.glob("*.scrape"):
            named = _NAME.fullmatch(path.name)
            if named is not None:
                found.append(Spooled(int(named[1]), int(named[2]), path))
        return sorted(found)

    def named(self, number: int, at_ms: int) -> Spooled:
        """Return the file with this number and time, whether it exists or not."""
        name = f"{number:012d}-{at_ms:013d}.scrape"
        return Spooled(number, at_ms, self.directory / name)


class SpoolWriter(Spool):
    """Writer of a spool; holds the directory's lock until it is closed."""

    def __init__(self, directory: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Raises SpoolInUse if another process holds the lock for longer than wait_s."""
        super().__init__(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    os.close(self._lock)
                    raise SpoolInUse(directory) from error
            time.sleep(LOCK_TRY_S)
        for path in directory.glob("*.part"):  # left by a killed writer; never announced
            path.unlink()
        there = self.files()
        self.last = there[-1].number if there else 0
        """Number of the newest file."""

    def skip_to(self, number: int) -> None:
        """Number later files higher than this; the offset was already handed out."""
        self.last = max(self.last, number)

    def write(self, scraped: Sequence[Scraped], at_ms: int) -> Spooled:
        """Write one file. It is durable when this returns."""
        made = self.named(self.last + 1, at_ms)
        temporary = made.path.with_suffix(".part")
        with temporary.open("wb") as file:
            for each in scraped:
                packed = pa.Codec(_CODEC).compress(each.body, asbytes=True) if each.body else b""
                file.write(_head(each, len(packed)) + b"\n" + packed + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(made.path)
        self.last = made.number
        return made

    def forget(self, up_to: int, before_ms: int) -> None:
        """Delete files up to a number and before a time.

        The newest file stays, because the next one continues its number.
        """
        for each in self.files():
            if each.number <= up_to and each.at_ms < before_ms and each.number < self.last:
                each.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


def read(path: Path) -> Iterator[Scraped]:
    """Yield the content of a file. Raises OSError if it is gone, ValueError if it is damaged."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        head: dict[str, Any] = json.loads(data[at:end])
        begin, size = end + 1, int(head["packed"])
        packed = data[begin : begin + size]
        if data[begin + size : begin + size + 1] != b"\n":
            raise ValueError(f"{path} ends in the middle of a scrape")
        body = pa.Codec(_CODEC).decompress(packed, head["size"], asbytes=True) if size else b""
        yield Scraped(
            Target(head["url"], tuple((name, value) for name, value in head["labels"])),
            head["at_us"],
            head["since_us"],
            body,
            head["openmetrics"],
            None if head["reason"] is None else Gap(head["reason"]),
            head["detail"],
        )
        at = begin + size + 1


def _head(each: Scraped, packed: int) -> bytes:
    return json.dumps(
        {
            "url": each.target.url,
            "labels": each.target.labels,
            "at_us": each.at_us,
            "since_us": each.since_us,
            "openmetrics": each.is_openmetrics,
            "reason": each.reason,
            "detail": each.detail,
            "size": len(each.body),
            "packed": packed,
        }
    ).encode()
