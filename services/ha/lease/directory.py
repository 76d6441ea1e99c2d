"""The lease in a directory of one machine, by compare-and-set, without a lock anybody could hold.

A process that is stopped between any two steps here holds up nobody, and whatever it does when it
goes on is either the next version or nothing. Every version is a symbolic link whose target is the
lease itself: ``symlink(2)`` makes name and content in one step, and fails if the name is taken.

    <lease_dir>/<cluster>-<group>/uid             -> the object's id
    <lease_dir>/<cluster>-<group>/<number>.<uid>  -> {"previous": …, "token": …, "holder": …}

- The next version of 7 is made by whoever first makes the link 8. Each names the one before it.
- Old versions are removed oldest first, never the newest VERSIONS_KEPT. So where version n is
  still there, no version after n was ever removed, and this decides two questions:

  a. Was my link the first of its number? 1. A writer reads 7 and is stopped. 2. Others write 8 to
     30, and 8 is removed. 3. The writer goes on and makes 8, again. It looks for 7 after that: if
     it is gone, the link may be such a late one, is taken back, and the write counts as refused.
  b. Is what I read the newest? Version n is read, n + 1 is not there, and n - 1 still is, as n
     names it: so n + 1 was never there. Otherwise look again. A listing is only a hint.
  c. What if somebody damages or removes link n - 1 by hand? A link that cannot be read still has
     its number: no writer makes such a link, so the one behind it is the newest if no later number
     is listed. If the link is gone, n is the newest once LOOKS_MAX looks found the same n: a late
     link is not, for a listing shows each name that is there from its beginning to its end.

- The object is made under another name and renamed: onto one that is there, this fails. Links bear
  the object's id, so that a late writer to a deleted object adds nothing to the next one.
- What is told of holder, epoch or set is on disk before; a renewal alone is not waited for. After a
  power cut no process is left that knows of a later one.
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
from services.ha.lease.texts import UnreadableLease, holder_text, lease_of, texts_of
from services.ha.lease.value import Lease, Stored

VERSIONS_KEPT: Final = 8
REMOVED_MAX: Final = 1000
"""Numbers given up with one write; what is left is the next one's."""
READS_MAX: Final = 50
"""Others may write while one reads; each time costs another look."""
UID: Final = "uid"
REMEDIES: Final = {
    errno.ENOENT: "mount it, or make it, where `cluster.lease_dir` says",
    errno.ENOTDIR: "`cluster.lease_dir` must name a directory",
    errno.EACCES: "let the user of ha write there",
    errno.EPERM: "let the user of ha write there",
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room on its disk",
    errno.EROFS: "mount it so that it can be written",
    errno.EMFILE: "raise the limit of open files of ha (`ulimit -n`)",
}
"""By error number; a reason ends with one."""
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
    """The object's links; every call blocks, and raises OSError or UnreadableLease."""

    def __init__(self, lease_dir: Path, name: str) -> None:
        """name: the object's, a file name."""
        self._lease_dir = lease_dir
        self._dir = lease_dir / name
        self._synced: tuple[str, Lease] | None = None
        """Object id and lease, but for `renewed`, known to be on disk."""

    def get(self) -> Outcome:
        """Find the newest version."""
        looks: list[Stored | None] = []
        while len(looks) < READS_MAX:
            uid = self._uid()
            if uid is None:
                return Outcome(LeaseOutcome.ABSENT)
            found, proved = self._newest(uid)
            looks.append(found)
            # Nothing changed in all looks: the link before it was removed, or put back, by hand. A
            # late link (a) is not the newest of so many listings, which show what stands still.
            if found is not None and (proved or looks.count(found) == READS_MAX):
                self._sync(found)
                return Outcome(LeaseOutcome.FOUND, found)
        raise UnreadableLease(
            f"the lease in {self._dir} changed at each of {READS_MAX} looks at it: "
            "too many write it"
        )

    def put(self, lease: Lease, base: Stored) -> Outcome:
        """Make the version after base, if nobody did."""
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
            # Maybe the first of its number and overtaken since, maybe a late one: not the newest.
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
        """What kept the directory from being read or written, and what to do about it."""
        what = os.strerror(error.errno).lower() if error.errno else "it failed"
        remedy = REMEDIES.get(error.errno or 0, "look at its disk")
        return f"the lease directory {self._lease_dir}: {what}; {remedy}"

    def _newest(self, uid: str) -> tuple[Stored | None, bool]:
        """The newest version, None if there is none; and whether that is proved (b)."""
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
        """Whether the version before a number is still there, as `previous` names it.

        A link that cannot be read counts if no later number is there: no writer makes such a link,
        so somebody damaged it, and the number itself proves that nothing behind it was removed.
        """
        try:
            before = self._read(number - 1, uid)
        except UnreadableLease:
            if max(self._numbers(uid), default=0) > number:
                raise
            return True
        return before is not None and before.stored.version == previous

    def _remove_old(self, uid: str, *, newest: int) -> None:
        """Remove versions oldest first, by number: a listing may miss one."""
        oldest = min(self._numbers(uid), default=newest)
        while oldest > 1 and os.path.lexists(self._path(oldest - 1, uid)):
            oldest -= 1
        for number in range(oldest, min(newest - VERSIONS_KEPT + 1, oldest + REMOVED_MAX)):
            self._path(number, uid).unlink(missing_ok=True)

    def _numbers(self, uid: str) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            names = map(VERSION_NAME.fullmatch, os.listdir(self._dir))  # noqa: PTH208 - names only
            return [int(name[1]) for name in names if name is not None and name[2] == uid]
        return []

    def _uid(self) -> str | None:
        """The object's id; None: there is no object. Raises UnreadableLease while it is removed."""
        uid = _target(self._dir / UID)
        if uid is not None:
            return uid
        if os.path.lexists(self._dir):
            raise UnreadableLease(
                f"{self._dir} has no link {UID}: being removed, or damaged. If it stays so, remove "
                "the directory, then `tidemark cluster recreate-lease`"
            )
        # A directory that is not mounted must not look like a lease that was never made.
        self._lease_dir.stat()
        return None

    def _read(self, number: int, uid: str) -> _Version | None:
        path = self._path(number, uid)
        try:
            text = _target(path)
            return None if text is None else _decoded(text, number, uid)
        except UnreadableLease as error:
            raise UnreadableLease(f"{path}: {error}. {LINK_REMEDY}") from error

    def _path(self, number: int, uid: str) -> Path:
        return self._dir / f"{number}.{uid}"

    def _sync(self, stored: Stored) -> None:
        """Have it on disk before it is told, unless it only renews what is there already."""
        counts = _what_counts(stored)
        if counts != self._synced:
            _sync_directory(self._dir)
            self._synced = counts


class DirectoryLease:
    """``LeaseStore`` over a directory: its calls in a thread, one at a time."""

    def __init__(self, lease_dir: Path, name: str) -> None:
        """lease_dir must exist; name: ``<cluster>-<group>``."""
        self._object = DirectoryObject(lease_dir, name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")

    async def get(self) -> Outcome:
        """Find the newest version."""
        return await self._call(self._object.get)

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Make the version after base, if nobody did."""
        return await self._call(lambda: self._object.put(lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Make the object, if there is none."""
        return await self._call(lambda: self._object.create(lease))

    async def announce(self, role: str) -> str:
        """Nobody else looks at a directory."""
        return ""

    async def close(self) -> None:
        """Let the thread end when its call does."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, call: Callable[[], Outcome]) -> Outcome:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except UnreadableLease as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=str(error))
        except OSError as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=self._object.in_words(error))


def _encoded(lease: Lease, number: int, *, previous: str) -> tuple[str, str]:
    """A link's target and the version that it is: the token tells apart two of one number."""
    token = secrets.token_hex(8)
    fields = {"previous": previous, "token": token, "holder": holder_text(lease.holder)}
    return json.dumps(fields | texts_of(lease), separators=(",", ":")), f"{number}.{token}"


def _decoded(text: str, number: int, uid: str) -> _Version:
    """Raises UnreadableLease."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLease("what it says is not JSON") from error
    if not isinstance(fields, dict):
        raise UnreadableLease("what it says is not a JSON object")
    lease = lease_of(str(fields.get("holder", "")), fields)
    version = f"{number}.{fields.get('token', '')}"
    return _Version(Stored(lease, version, uid), str(fields.get("previous", "")))


def _target(path: Path) -> str | None:
    """What a link says, as it was written; None: it is not there. Raises UnreadableLease."""
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
