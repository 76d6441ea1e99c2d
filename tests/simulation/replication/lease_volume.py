"""The lease in a directory: the product's own store on a volume that all nodes mount.

``services.ha.lease.directory`` makes, reads and removes symbolic links. Between two accesses other
nodes go on, and the process may be killed or paused. The volume loses its power together with all
nodes. It then keeps of each directory the changes of names up to any point after its last sync;
the directories are independent of each other. A rename is a change of the directory above.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, Final
from unittest.mock import patch

from services.ha.lease import directory
from services.ha.lease.directory import DirectoryLease
from services.ha.lease.interface import Outcome
from services.ha.lease.value import Lease, Stored
from tests.simulation.replication.lease_object import LeaseObject, is_change
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.process import border, running, work
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

SYNC_US_MAX: Final = 50_000
UNREADABLE_US: Final = 1_500_000
"""A link is damaged for this time, which is longer than a lease."""
DEAF_US: Final = 10_000
DEAF_TURNS: Final = 2 * TIMES.request_timeout_ms * 1000 // DEAF_US
"""An access to a volume that does not answer waits in turns, at most for two timeouts."""
VERSIONS_KEPT: Final = 3
"""Few, so that the name of a late link is free again soon."""


class Directory:
    """Names of links or directories: as all processes see them, and as they are on the disk."""

    def __init__(self) -> None:
        self.names: dict[str, str | Directory] = {}
        self._durable: dict[str, str | Directory] = {}
        self._pending: list[tuple[str, str | Directory | None]] = []

    def set(self, name: str, node: str | Directory | None) -> None:
        """Give a name, or remove it (None)."""
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self._pending.append((name, node))

    def sync(self, count: int | None = None) -> None:
        """Make the first changes durable, or all."""
        synced = self._pending[:count]
        del self._pending[: len(synced)]
        for name, node in synced:
            if node is None:
                self._durable.pop(name, None)
            else:
                self._durable[name] = node

    def power_cut(self, draw: Callable[[int], int]) -> None:
        """Drop the last changes. draw: returns a random number of changes up to the given one."""
        self.sync(draw(len(self._pending)))
        self._pending.clear()
        self.names = dict(self._durable)
        for node in self.names.values():
            if isinstance(node, Directory):
                node.power_cut(draw)


class LeaseVolume(LeaseObject):
    """The volume, and which links were the newest versions."""

    def __init__(
        self, timeline: Timeline, applied: Callable[[Stored | None, Stored | None], None]
    ) -> None:
        super().__init__(timeline, applied)
        self._root = Directory()
        self.path: Path = type("VolumePath", (_Path,), {"volume": self})("/lease")
        self._past: dict[int, Stored] = {}
        """The versions of the present object, by number."""
        self._unsynced: list[Stored] = []
        """Versions whose content is not on the disk: no node may know of them."""
        self._texts: dict[int, str] = {}
        """Every link, by ``renewed``."""
        self.turns: dict[str, int] = {}
        """For how many timeouts the present access of a node is late."""
        self._unreadable = ""
        """The name of a damaged link."""

    # -- for the services ------------------------------------------------------------------

    def store_of(self, ha: Ha) -> DirectoryLease:
        """Return the store of one start of ha."""
        return _Store(ha, self)

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Replace the file system."""
        system = SimpleNamespace(
            readlink=lambda path: self.readlink(path),
            listdir=lambda path: self.list(path),
            path=SimpleNamespace(lexists=lambda path: self.exists(path)),
            open=lambda path, flags: path,
            fsync=self.sync,
            close=lambda path: None,
            strerror=os.strerror,
            **{name: getattr(os, name) for name in ("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC")},
        )
        with (
            patch.object(directory, "VERSIONS_KEPT", VERSIONS_KEPT),
            patch.object(directory, "os", system),
            patch.object(directory, "shutil", SimpleNamespace(rmtree=self.remove_tree)),
        ):
            yield

    def possible(self) -> list[Lease]:
        """Contents that a write under way may give to the object, or has given without a sync."""
        return super().possible() + [stored.lease for stored in self._unsynced]

    def check_answer(self, node: str, begun_us: int, wanted: Lease | None, is_: Outcome) -> None:
        """Check also that no node acts on a holder, epoch or set that is not on the disk."""
        if is_.stored in self._unsynced and _counts(is_.stored) != _counts(self.stored):
            raise Violation(f"{node} acts on {is_.stored}, which a power cut would remove")
        # A node that reads the lease as it was before two changes takes it for synced.
        while is_.stored in self._unsynced:
            self._becomes(self._unsynced.pop(0))
        super().check_answer(node, begun_us, wanted, is_)

    # -- the file system -------------------------------------------------------------------

    def readlink(self, path: Path) -> str:
        """Return the target of a link."""
        border()
        node = self._parent(path).names.get(path.name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Directory) or path.name == self._unreadable:
            raise _error(errno.EINVAL, path)
        return node

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""
        border()
        names = list(self._directory(path).names)
        self._random.shuffle(names)
        return names

    def exists(self, path: Path) -> bool:
        """Whether there is a name, whatever it leads to."""
        return path.name in self._parent(path).names

    def make_link(self, path: Path, text: str) -> None:
        """Make a link whose name is free. A late writer waits before that, or after it."""
        border()
        renewed = json.loads(text).get("renewed") if text.startswith("{") else None
        if renewed is not None and int(renewed) in self._late:
            work(TIMES.request_timeout_ms * 1000 + self._random.randint(0, 500_000))
        self._wait_in_vain()
        parent = self._parent(path)
        is_taken = path.name in parent.names
        if renewed is not None and (is_taken or not self._is_next(path, text)):
            self._flying.pop(int(renewed), None)
        if is_taken:
            raise _error(errno.EEXIST, path)
        parent.set(path.name, text)
        if self._is_next(path, text):
            self._link_made(path, text)
        border()

    def _wait_in_vain(self) -> None:
        """Wait as long as the running access is late, at most until the faults are over."""
        thread = running()
        assert thread is not None
        for _ in range(self.turns.pop(thread.process.machine.name, 0)):
            if self.weather.late:
                work(TIMES.request_timeout_ms * 1000)

    def make_directory(self, path: Path) -> None:
        """Make a directory."""
        self._parent(path).set(path.name, Directory())
        border()

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a link."""
        border()
        parent = self._parent(path)
        if path.name in parent.names:
            parent.set(path.name, None)
        elif not missing_ok:
            raise _error(errno.ENOENT, path)

    def rename(self, path: Path, new: Path) -> None:
        """Rename a directory, unless there is another one that is not empty."""
        border()
        parent, moved = self._parent(path), self._directory(path)
        present = parent.names.get(new.name)
        if isinstance(present, Directory) and present.names:
            raise _error(errno.ENOTEMPTY, new)
        parent.set(path.name, None)
        parent.set(new.name, moved)
        self._past.clear()
        for name, text in moved.names.items():
            if isinstance(text, str) and self._is_next(new / name, text):
                self._link_made(new / name, text)
        border()

    def remove_tree(self, path: Path, ignore_errors: bool = False) -> None:
        """Remove a directory."""
        self.unlink(path, missing_ok=ignore_errors)

    def sync(self, path: Path) -> None:
        """Make the changes of a directory durable."""
        thread = running()
        assert thread is not None
        machine = thread.process.machine
        # The disk of the volume is not that of the node, whose syncs may take seconds.
        work(min(machine.disk_delay_us(), SYNC_US_MAX))
        fails = self._random.random() < self.weather.sync_fails
        if machine.name in self.deaf or fails or self._fails():
            raise _error(errno.EIO, path)
        self._directory(path).sync()
        self._judge_synced()
        border()

    # -- the truth -------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Lose what is not on the disk."""
        self._root.power_cut(lambda count: self._random.choice((0, self._random.randint(0, count))))
        self._flying.clear()
        before, names = self.stored, self._names()
        while self._past and f"{max(self._past)}.{self._uid}" not in names:
            del self._past[max(self._past)]
        newest = self._past[max(self._past)] if self._past else None
        if before and _counts(before) != _counts(newest) and newest not in self._unsynced:
            raise Violation(f"a power cut takes the lease {before} back to {newest}")
        kept, self._unsynced = self._unsynced, []
        for stored in kept:
            if newest is not None and _number(stored) <= _number(newest):
                self._becomes(stored)
        if newest is not None and newest != self.stored:
            self.stored = newest
            self._versions[newest.uid, newest.version] = newest
        if newest is not None:
            self._replaced_us.pop((newest.uid, newest.version), None)

    def delete(self) -> None:
        """Remove the directory."""
        if self.stored is not None:
            self._root.set(self.name, None)
            self._root.sync()
            self._past.clear()
            self._unsynced.clear()
            self._becomes(None)

    def touch(self) -> None:
        """Damage the newest link or the one before it, for a while."""
        if self.stored is not None and not self._unreadable:
            number = max(1, _number(self.stored) - self._random.randint(0, 1))
            self._unreadable = f"{number}.{self.stored.uid}"
            self._timeline.after(UNREADABLE_US, self._repair)

    def replace(self, lease: Lease) -> None:
        """Write an earlier lease by hand, as the next version."""
        if self.stored is None:
            return
        number = max(self._past)
        fields = json.loads(self._texts[lease.renewed])
        fields |= {
            "previous": self._past[number].version,
            "token": f"{self._random.getrandbits(64):x}",
        }
        path, text = self.path / self.name / f"{number + 1}.{self._uid}", json.dumps(fields)
        self._parent(path).set(path.name, text)
        self._link_made(path, text)
        self._parent(path).sync()
        self._judge_synced()

    def _repair(self) -> None:
        self._unreadable = ""

    def _is_next(self, path: Path, text: str) -> bool:
        """Whether a link is the first of its number, and follows the newest version."""
        number, _, uid = path.name.partition(".")
        if path.parent.name != self.name or uid != self._uid:
            return False
        newest = max(self._past, default=0)
        previous = self._past[newest].version if newest else ""
        return int(number) == newest + 1 and json.loads(text)["previous"] == previous

    def _link_made(self, path: Path, text: str) -> None:
        """Note the newest version. Its content counts once it is on the disk; a renewal at once."""
        number, _, uid = path.name.partition(".")
        fields = json.loads(text)
        lease = self._wanted[int(fields["renewed"])]
        stored = Stored(lease, f"{number}.{fields['token']}", uid)
        self._past[int(number)] = stored
        self._texts[lease.renewed] = text
        if not self._unsynced and not is_change(self.stored, stored):
            self._becomes(stored)
        else:
            self._unsynced.append(stored)

    def _judge_synced(self) -> None:
        """Note which versions are on the disk now."""
        durable = self._root._durable.get(self.name)
        while self._unsynced and isinstance(durable, Directory):
            stored = self._unsynced[0]
            if f"{_number(stored)}.{stored.uid}" not in durable._durable:
                break
            self._becomes(self._unsynced.pop(0))

    @property
    def _uid(self) -> object:
        return self._names().get("uid")

    def _names(self) -> dict[str, str | Directory]:
        found = self._root.names.get(self.name)
        return found.names if isinstance(found, Directory) else {}

    def _directory(self, path: Path) -> Directory:
        if path == self.path:
            return self._root
        found = self._root.names.get(path.name)
        if not isinstance(found, Directory):
            raise _error(errno.ENOENT, path)
        return found

    def _parent(self, path: Path) -> Directory:
        return self._directory(path.parent)


class _Store(DirectoryLease):
    """Access of one start of ha, with delays and errors of the mount."""

    def __init__(self, ha: Ha, volume: LeaseVolume) -> None:
        super().__init__(volume.path, volume.name)
        self._ha, self._volume = ha, volume

    async def _call(self, call: Callable[[], Outcome]) -> Outcome:
        volume, weather, node = self._volume, self._volume.weather, self._ha.node
        random = volume._timeline.random
        delay_us, turns = volume._delay_us(), 0
        if random.random() < weather.late:
            turns = random.randint(1, 30)
        is_lost = random.random() < weather.lost

        def access() -> Outcome:
            work(delay_us)
            volume.turns[node] = turns
            if is_lost or node in volume.unreachable:
                raise _error(errno.EIO, volume.path)
            fate = volume._fate_of(node, is_write=call != self._object.get)
            if fate is not None and not fate.is_applied:
                raise _error(errno.EIO, volume.path)
            outcome = call()
            if fate is not None:
                raise _error(errno.EIO, volume.path)
            volume._wait_in_vain()
            for _ in range(DEAF_TURNS):
                if node in volume.deaf:
                    work(DEAF_US)
            return outcome

        return await super()._call(access)


class _Path(PosixPath):
    """A path on the volume; the functions of ``os`` come from ``LeaseVolume.simulated``."""

    volume: ClassVar[LeaseVolume]

    def symlink_to(self, target: str, target_is_directory: bool = False) -> None:  # type: ignore[override]
        """Make a link."""
        self.volume.make_link(self, target)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a link."""
        self.volume.unlink(self, missing_ok)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a directory."""
        self.volume.make_directory(self)

    def rename(self, target: Path) -> Path:  # type: ignore[override]
        """Rename a directory."""
        self.volume.rename(self, target)
        return target

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Do nothing: the volume is mounted."""
        return os.stat_result(range(10))


def _counts(stored: Stored | None) -> tuple[object, ...]:
    """Return what a power cut must not change."""
    if stored is None:
        return ()
    lease = stored.lease
    return lease.holder, lease.epoch, lease.in_sync, lease.in_sync_version


def _number(stored: Stored) -> int:
    return int(stored.version.partition(".")[0])


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
