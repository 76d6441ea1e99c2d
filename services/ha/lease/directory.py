"""The lease in a directory of one machine, by compare-and-set, without a lock that could be held.

A process that is stopped between any two steps here blocks no other one, and whatever it does when
it runs again is either the next version or nothing. Every version is a symbolic link whose target
is the lease itself: ``symlink(2)`` makes name and content in one step, and fails if the name is
taken.

    <lease_dir>/<cluster>-<group>/uid             -> the object's id
    <lease_dir>/<cluster>-<group>/<number>.<uid>  -> {"previous": …, "token": …, "holder": …}

- The process that first makes link 8 makes the version after 7. Each names the one before it.
- Old versions are removed oldest first, never the newest VERSIONS_KEPT. So where version n is
  still there, no version after n was ever removed, and this decides three questions:

  a. Was my link the first of its number? 1. A writer reads 7 and is stopped. 2. Others write 8 to
     30, and 8 is removed. 3. The writer runs again and makes 8 a second time. It then checks that 7
     exists: if it is gone, the link may be such a late one, is removed, and the write is refused.
  b. Is what I read the newest? Version n is read, n + 1 does not exist, and n - 1 still does, as n
     names it: so n + 1 never existed. Otherwise read again. A listing is only a hint.
  c. What if an operator damages or removes link n - 1? An unreadable link still has its number: no
     writer makes such a link, so its target is the newest if no later number is listed. If the link
     is gone, n is the newest once READS_MAX reads found the same n. A late link is not, because a
     listing shows each name that exists from its beginning to its end.

- The object is made under another name and renamed, which fails if the object exists. Links carry
  the object's id, so that a late writer to a deleted object adds nothing to the next one.
- Holder, epoch and set are on disk before they are reported; a renewal alone is not synced:
  after a power cut no process is left that has seen a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from services.ha.core.events import LeaseOutcome
from services.ha.lease.interface import Outcome
from services.ha.lease.texts import (
    UnreadableLease,
    fields_of,
    holder_text,
    lease_of,
    texts_of,
)
from services.ha.lease.value import Lease, Stored

VERSIONS_KEPT: Final = 8
REMOVED_MAX: Final = 1000
"""Versions removed with one write; the next write removes further ones."""
LINK_SIZE: Final = 4000
LINK_SIZE_LEAST: Final = 1000
READS_MAX: Final = 50
"""Limit of reads of one call: other nodes may write meanwhile, and each write costs another
read."""
UID: Final = "uid"
REMEDIES: Final = {
    errno.ENOENT: "mount it, or make it, at the path in `cluster.lease_dir`",
    errno.ENOTDIR: "`cluster.lease_dir` must name a directory",
    errno.EACCES: "let the user of ha write there",
    errno.EPERM: "let the user of ha write there",
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room on its disk",
    errno.EROFS: "mount it so that it can be written",
    errno.EMFILE: "raise the limit of open files of ha (`ulimit -n`)",
}
"""Remedies by error number; the reason of an error ends with one."""
DAMAGED: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""Error numbers of a link that exists and cannot be read, because of the disk below it. EBADMSG: a
wrong checksum, as ext4 reports it."""
LINK_REMEDY: Final = (
    "A living master replaces it with its next renewal; without one, put its text back or remove it"
)
VERSION_NAME: Final = re.compile(r"([1-9][0-9]{0,17})\.([0-9a-f]{32})")


class _Version(NamedTuple):
    """One link, read."""

    stored: Stored
    previous: str
    """The version that it replaced; empty: none."""


class DirectoryObject:
    """The links of the object. Every call blocks, and raises OSError or UnreadableLease."""

    def __init__(self, lease_dir: Path, name: str) -> None:
        """name: name of the object, a file name."""
        self._lease_dir = lease_dir
        self._dir = lease_dir / name
        self._stuck: set[Path] = set()
        """Links that the disk does not remove."""
        self._synced: tuple[str, Lease] | None = None
        """Object id and lease, without `renewed`, that are known to be on disk."""

    def get(self) -> Outcome:
        """Return the newest version."""
        reads: list[Stored | None] = []
        while len(reads) < READS_MAX:
            uid = self._uid()
            if uid is None:
                return Outcome(LeaseOutcome.ABSENT)
            found, proved = self._newest(uid)
            reads.append(found)
            # All reads agree: the link before this one was removed or replaced by hand. A late link
            # (a) would not be the newest in that many listings.
            if found is not None and (proved or reads.count(found) == READS_MAX):
                self._sync(found)
                return Outcome(LeaseOutcome.FOUND, found)
        raise UnreadableLease(
            f"the lease in {self._dir} changed during each of {READS_MAX} reads: "
            "too many processes write it"
        )

    def put(self, lease: Lease, base: Stored) -> Outcome:
        """Make the version after base, if no other process did."""
        uid = self._uid()
        if uid is None:
            return Outcome(LeaseOutcome.ABSENT)
        if uid != base.uid:
            return Outcome(LeaseOutcome.CONFLICT)
        number = int(base.version.partition(".")[0]) + 1
        text, version = _encoded(lease, number, previous=base.version)
        path = self._path(number, uid)
        try:
            path.symlink_to(text)
        except FileExistsError:
            return Outcome(LeaseOutcome.CONFLICT)
        except FileNotFoundError:
            return Outcome(LeaseOutcome.ABSENT)
        if not self._follows(number, base.version, uid):
            # It may be the first of its number and old by now, or a late one: not the newest.
            path.unlink(missing_ok=True)
            return Outcome(LeaseOutcome.CONFLICT)
        stored = Stored(lease, version, uid)
        self._sync(stored)
        self._remove_old(uid, newest=number)
        return Outcome(LeaseOutcome.APPLIED, stored)

    def create(self, lease: Lease) -> Outcome:
        """Make the object, if there is none."""
        uid = secrets.token_hex(16)
        text, version = _encoded(lease, 1, previous="")
        making = self._lease_dir / f".{self._dir.name}.{uid}"
        making.mkdir()
        try:
            (making / UID).symlink_to(uid)
            (making / f"1.{uid}").symlink_to(text)
            _sync_directory(making)
            making.rename(self._dir)
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return Outcome(LeaseOutcome.CONFLICT)
            raise
        _sync_directory(self._lease_dir)
        stored = Stored(lease, version, uid)
        self._synced = _what_counts(stored)
        return Outcome(LeaseOutcome.APPLIED, stored)

    def in_words(self, error: OSError) -> str:
        """Return what prevented access to the directory, and the remedy."""
        what = os.strerror(error.errno).lower() if error.errno else "it failed"
        remedy = REMEDIES.get(error.errno or 0, "check its disk")
        return f"the lease directory {self._lease_dir}: {what}; {remedy}"

    def _newest(self, uid: str) -> tuple[Stored | None, bool]:
        """Return the newest version, None if there is none, and whether that is proved (b)."""
        number = max(self._numbers(uid), default=None)
        if number is None:
            return None, False
        found = self._read(number, uid)
        while (after := self._read(number + 1, uid)) is not None:
            found, number = after, number + 1
        if found is None:
            return None, False
        if number == 1:
            # No version is removed before the first.
            return found.stored, self._read(1, uid) == found
        return found.stored, self._follows(number, found.previous, uid)

    def _follows(self, number: int, previous: str, uid: str) -> bool:
        """Return whether the version before a number still exists, as `previous` names it.

        An unreadable link counts if no later number exists: no writer makes such a link, so it was
        damaged by hand, and its number proves that nothing after it was removed.
        """
        try:
            before = self._read(number - 1, uid)
        except UnreadableLease:
            if max(self._numbers(uid), default=0) > number:
                raise
            return True
        return before is not None and before.stored.version == previous

    def _remove_old(self, uid: str, *, newest: int) -> None:
        """Remove versions, oldest first, by number: a listing may miss one."""
        removable = (n for n in self._numbers(uid) if self._path(n, uid) not in self._stuck)
        oldest = min(removable, default=newest)
        while oldest > 1 and os.path.lexists(self._path(oldest - 1, uid)):
            oldest -= 1
        for number in range(oldest, min(newest - VERSIONS_KEPT + 1, oldest + REMOVED_MAX)):
            path = self._path(number, uid)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno not in DAMAGED:
                    raise
                # The version is written: no renewal may fail because of an old one.
                self._stuck.add(path)

    def _numbers(self, uid: str) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            names = map(VERSION_NAME.fullmatch, os.listdir(self._dir))  # noqa: PTH208 - names only
            return [int(name[1]) for name in names if name is not None and name[2] == uid]
        return []

    def _uid(self) -> str | None:
        """Return the object's id; None: there is no object. Raises UnreadableLease during a
        removal."""
        uid = _target(self._dir / UID)
        if uid is not None:
            return uid
        if os.path.lexists(self._dir):
            raise UnreadableLease(
                f"{self._dir} has no link {UID}: being removed, or damaged. If it stays so, remove "
                "the directory, then `tidemark cluster recreate-lease`"
            )
        # A directory that is not mounted must not count as a lease that was never made.
        self._lease_dir.stat()
        return None

    def _read(self, number: int, uid: str) -> _Version | None:
        path = self._path(number, uid)
        try:
            text = _target(path)
            return None if text is None else _decoded(text, number, uid)
        except (OSError, UnreadableLease) as error:
            if isinstance(error, OSError) and error.errno not in DAMAGED:
                raise
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
            raise UnreadableLease(f"{path}: {why}. {LINK_REMEDY}") from error

    def _path(self, number: int, uid: str) -> Path:
        return self._dir / f"{number}.{uid}"

    def _sync(self, stored: Stored) -> None:
        """Sync the directory before the version is reported, unless it only renews what is on
        disk."""
        counts = _what_counts(stored)
        if counts == self._synced:
            return
        _sync_directory(self._dir)
        if self._synced is None or self._synced[0] != stored.uid:
            # The process that made the object may have been stopped before it synced its name.
            _sync_directory(self._lease_dir)
        self._synced = counts


class DirectoryLease:
    """``LeaseStore`` over a directory: calls run in a thread, one at a time."""

    def __init__(self, lease_dir: Path, name: str) -> None:
        """lease_dir must exist. name: ``<cluster>-<group>``."""
        self._object = DirectoryObject(lease_dir, name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")

    async def get(self) -> Outcome:
        """Return the newest version."""
        return await self._call(self._object.get)

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Make the version after base, if no other process did."""
        return await self._call(lambda: self._object.put(lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Make the object, if there is none."""
        return await self._call(lambda: self._object.create(lease))

    async def announce(self, role: str) -> str:
        """Do nothing: no other system reads a directory."""
        return ""

    async def close(self) -> None:
        """End the thread after its present call."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, call: Callable[[], Outcome]) -> Outcome:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except UnreadableLease as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=str(error))
        except OSError as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=self._object.in_words(error))


def size_max(lease_dir: Path) -> int:
    """Return the bytes of a lease that fit a link, by making one. Blocks.

    The file system decides: 4095 bytes on most, 1023 on XFS.
    """
    probe = lease_dir / f".size.{secrets.token_hex(16)}"
    try:
        probe.symlink_to("x" * LINK_SIZE)
        probe.unlink()
    except OSError:
        return LINK_SIZE_LEAST
    return LINK_SIZE


def _encoded(lease: Lease, number: int, *, previous: str) -> tuple[str, str]:
    """Return a link's target, and its version: the token distinguishes two links of one number."""
    token = secrets.token_hex(8)
    fields = {"previous": previous, "token": token, "holder": holder_text(lease.holder)}
    return json.dumps(fields | texts_of(lease), separators=(",", ":")), f"{number}.{token}"


def _decoded(text: str, number: int, uid: str) -> _Version:
    """Decode a link. Raises UnreadableLease."""
    fields = fields_of(text)
    lease = lease_of(str(fields.get("holder", "")), fields)
    version = f"{number}.{fields.get('token', '')}"
    return _Version(Stored(lease, version, uid), str(fields.get("previous", "")))


def _target(path: Path) -> str | None:
    """Return the target of a link as it was written; None: it does not exist. Raises
    UnreadableLease."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a text; a Path would rewrite its slashes
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UnreadableLease(f"{path.name} is not a symbolic link") from error
        raise


def _what_counts(stored: Stored) -> tuple[str, Lease]:
    return stored.uid, stored.lease._replace(renewed=0)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
