"""Files with the replica's own knowledge: ``ha/`` and the epoch table (docs/replication.md).

They are not derived from the log, and no other node has them: a replica without them is lost. Every
file is replaced in one step (temporary, sync, rename, sync of the directory), so that a crash
leaves the old one or the new one. Each is one line of JSON for people and one with its CRC-32; a
damaged file is reported and never guessed. The epoch table is RocketMQ's text, with a copy ``.bak``
of the same content, which is read if the table itself is unreadable.

Step before: ``replica_store`` reads them. Step after: ``replica_disk`` writes what the replica
decides.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from shared.files.disk import read_whole, replace, write_atomically
from shared.files.store_dir import StoreDir
from tidemark.errors import DamagedFile
from tidemark.formats import epochs
from tidemark.formats.epochs import EpochStart, EpochsUnreadable
from tidemark.offsets import Epoch, PhysicalOffset

FORMAT: Final = 1
"""Format of every file here; a later one is refused."""
FILE_SIZE_MAX: Final = 1 << 20
INCARNATION_DIGITS: Final = 32


class Identity(NamedTuple):
    """Identity of this volume."""

    incarnation: str
    """32 random hex digits, generated when the volume was first used."""
    cluster: str
    group: str
    node: str


class Promise(NamedTuple):
    """Promised epoch and seen lease; neither ever goes back."""

    promised: int
    """The largest promised epoch."""
    seen_epoch: int
    seen_version: int
    """The largest (epoch, version of the in-sync set) seen in the lease."""


class Damage(NamedTuple):
    """A damaged record in this node's log below the confirm offset."""

    at: int
    detail: str


class CutIntent(NamedTuple):
    """A cut under way: it is finished before any other change of the log."""

    point: int
    """New end of the log."""
    table: tuple[EpochStart, ...]
    """The table after the cut."""


class ResyncIntent(NamedTuple):
    """A resync under way: the data in the store is no longer valid."""

    incarnation: str
    """The new incarnation."""
    first_offset: int
    """First offset of the log afterwards, the start of a file."""


class ReplicaFiles:
    """The files of one replica. Readers raise DamagedFile, writers DiskFull, ReadOnlyDisk, OSError.

    One thread at a time per file.
    """

    def __init__(self, store: StoreDir) -> None:
        self._disk = store.disk
        self._directory = store.ha_dir
        self.identity_path = store.identity_path
        self.promise_path = store.ha_dir / "promise"
        self.confirm_path = store.ha_dir / "confirm"
        self.intent_path = store.ha_dir / "intent"
        self.damage_path = store.ha_dir / "damage"
        self.table_path = store.epochs_path
        self.table_twin_path = store.epochs_path.with_name(store.epochs_path.name + ".bak")

    def make_durable(self) -> None:
        """Sync the names that a killed process wrote. Called at each start, before the first read.

        Otherwise: 1. An intent is renamed into place. 2. The process is killed before the sync. 3.
        The next start reads it and empties the store. 4. The power fails and takes the intent; the
        store is half removed.
        """
        self._disk.make_directory(self._directory)
        self._disk.sync_directory(self._directory)
        self._disk.sync_directory(self.table_path.parent)

    # -- identity -------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """Return the identity of this volume; None if it was never used by a group."""
        facts = self._read(self.identity_path)
        if facts is None:
            return None
        path = self.identity_path
        incarnation = _text(path, facts, "incarnation")
        if not is_incarnation(incarnation):
            _damaged(path, f"incarnation {incarnation[:40]!r} is not 32 hex digits")
        return Identity(
            incarnation,
            _text(path, facts, "cluster"),
            _text(path, facts, "group"),
            _text(path, facts, "node"),
        )

    def write_identity(self, identity: Identity) -> None:
        """Write the identity durably."""
        self._write(self.identity_path, identity._asdict())

    # -- promise and confirm --------------------------------------------------------------------

    def promise(self) -> Promise | None:
        """Return the promise; None if there is none."""
        facts = self._read(self.promise_path)
        if facts is None:
            return None
        return Promise._make(_number(self.promise_path, facts, name) for name in Promise._fields)

    def write_promise(self, promise: Promise) -> None:
        """Write the promise durably."""
        self._write(self.promise_path, promise._asdict())

    def confirm(self) -> int:
        """Return the offset below which nothing may be cut; 0 if nothing is known to be
        confirmed."""
        facts = self._read(self.confirm_path)
        return 0 if facts is None else _number(self.confirm_path, facts, "confirm")

    def write_confirm(self, confirm: int) -> None:
        """Write durably that everything below is confirmed."""
        self._write(self.confirm_path, {"confirm": confirm})

    # -- damage ---------------------------------------------------------------------------------

    def damage(self) -> Damage | None:
        """Return the known damage of the log; None: there is none, or the log was emptied since."""
        path, facts = self.damage_path, self._read(self.damage_path)
        if facts is None:
            return None
        return Damage(_number(path, facts, "at"), _text(path, facts, "detail"))

    def write_damage(self, damage: Damage) -> None:
        """Write the damage durably, for the next start."""
        self._write(self.damage_path, damage._asdict())

    def remove_damage(self) -> None:
        """Remove the damage: the log is intact there, or is another one. Does nothing if there is
        none."""
        self._remove(self.damage_path)

    # -- intent ---------------------------------------------------------------------------------

    def intent(self) -> CutIntent | ResyncIntent | None:
        """Return what was begun and not finished; None if nothing was."""
        path, facts = self.intent_path, self._read(self.intent_path)
        if facts is None:
            return None
        match facts.get("what"):
            case "cut":
                return CutIntent(_number(path, facts, "point"), _table(path, facts.get("table")))
            case "resync":
                incarnation = _text(path, facts, "incarnation")
                if not is_incarnation(incarnation):
                    _damaged(path, f"incarnation {incarnation[:40]!r} is not 32 hex digits")
                return ResyncIntent(incarnation, _number(path, facts, "first_offset"))
        _damaged(path, f"what is {facts.get('what')!r}")

    def write_intent(self, intent: CutIntent | ResyncIntent) -> None:
        """Write durably that something begins that has to be finished."""
        what = "cut" if isinstance(intent, CutIntent) else "resync"
        self._write(self.intent_path, {"what": what, **intent._asdict()})

    def remove_intent(self) -> None:
        """Remove the intent durably. Does nothing if there is none."""
        self._remove(self.intent_path)

    # -- epoch table ----------------------------------------------------------------------------

    def table(self) -> tuple[EpochStart, ...]:
        """Return the epochs with their starts, oldest first; empty if there is no table."""
        faults = []
        for path in (self.table_path, self.table_twin_path):
            data = read_whole(self._disk, path)
            if data is None:
                continue
            try:
                return tuple(epochs.decode(data))
            except EpochsUnreadable as error:
                faults.append(f"{path.name}: {error}")
        if faults:
            _damaged(self.table_path, "; ".join(faults))
        return ()

    def write_table(self, entries: Sequence[EpochStart]) -> None:
        """Replace the table and its copy, durably.

        The copy has the content of the new table, not of the previous one: after a cut, an older
        table has epochs whose bytes are gone, and would assign later bytes to those epochs.
        """
        data = epochs.encode(entries)
        replace(self._disk, self.table_path, data)
        replace(self._disk, self.table_twin_path, data)
        self._disk.sync_directory(self.table_path.parent)

    # -- one file -------------------------------------------------------------------------------

    def _read(self, path: Path) -> dict[str, Any] | None:
        data = read_whole(self._disk, path)
        if data is None:
            return None
        line, _, rest = data.partition(b"\n")
        if len(data) > FILE_SIZE_MAX or rest != _check_line(line):
            _damaged(path, "its checksum does not fit")
        try:
            facts = json.loads(line)
        except ValueError as error:
            _damaged(path, f"it is not JSON: {error}")
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            _damaged(path, f"its format is not {FORMAT}")
        return facts

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
        self._disk.sync_directory(self._directory)

    def _write(self, path: Path, facts: Mapping[str, object]) -> None:
        self._disk.make_directory(self._directory)
        line = json.dumps({"format": FORMAT, **facts}).encode()
        write_atomically(self._disk, path, line + b"\n" + _check_line(line))


def is_incarnation(text: str) -> bool:
    """Return whether text can be an incarnation: 32 hex digits, lower case."""
    return len(text) == INCARNATION_DIGITS and not set(text) - set("0123456789abcdef")


def _check_line(line: bytes) -> bytes:
    return b"crc32 %08x\n" % zlib.crc32(line)


def _number(path: Path, facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if type(value) is not int or value < 0:
        _damaged(path, f"{name} is {value!r}")
    return value


def _text(path: Path, facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str):
        _damaged(path, f"{name} is {value!r}")
    return value


def _table(path: Path, value: object) -> tuple[EpochStart, ...]:
    try:
        assert isinstance(value, list)
        pairs = [(epoch, start) for epoch, start in value]
    except (AssertionError, TypeError, ValueError):
        _damaged(path, "its table is not a list of pairs")
    if not all(type(each) is int and each >= 0 for pair in pairs for each in pair):
        _damaged(path, "its table has an entry that is not a pair of numbers")
    return tuple(EpochStart(Epoch(epoch), PhysicalOffset(start)) for epoch, start in pairs)


def _damaged(path: Path, reason: str) -> NoReturn:
    raise DamagedFile(
        f"{path} is damaged: {reason}. Nothing was changed; this replica serves nothing and is "
        "never elected.",
        "When another member has all data, `tidemark cluster resync` empties this replica and "
        "copies it anew.",
        path=path,
    )
