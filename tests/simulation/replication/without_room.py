"""Trials in which a disk has no room, or a file of ha is damaged.

A node without room leaves the lease to others and continues by itself when it has room. A node with
an unreadable file halts for a fixed reason and serves no client.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from services.ha.core.following import FAULT_PAUSE_MS
from services.ha.core.promises import RETRY_MS
from services.ha.lease.value import Lease
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.store_view import (
    CONFIRM,
    DAMAGE,
    IDENTITY,
    INTENT,
    PROMISE,
    TABLE,
    TABLE_BACKUP,
)
from tests.simulation.replication.trying import AGAIN_MS, CHECK_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats import epochs
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

TROUBLE_MS: Final = 3_000
"""Time within which broker or reput has noticed and published that there is no room."""
SEEN_MS: Final = 300
"""Time within which ha has read that and reported it to the other nodes."""
HANDED_MS: Final = 10_000 + 3 * TIMES.lease_ms
"""Trouble of a master moves the lease within this time, also shortly after a previous move."""
HALTED_MS: Final = 3_000
"""Time within which a start has recovered the log and reported what it found."""
CROWDED: Final = "crowded"
"""So full that sends are refused."""
QUEUES: Final = "queues"
"""No room for another queue file."""
OFTEN: Final = 10
"""Producers choose a topic without a queue more often than all others."""
SPOILED: Final = 8
"""Number of files that are damaged in turn."""
DAMAGED_FILE: Final = "damaged-file"
DISK_FULL: Final = "disk-full"
CONTRADICTION: Final = "halted-replica"
UNCONFIRMED: Final = "corrupt-record", "log-files-missing"
"""The log ends below the confirm offset."""
HOW: Final = ("a byte", "short", "another format", "no facts", "value", "value")


class WithoutRoom(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._topics = 0
        """Number of topics that were created for a queue without room."""
        self.trials: tuple[Callable[[], None], ...] = (
            self._have_no_room_for_a_promise,
            self._have_no_room_for_a_table,
            self._crowd_a_disk,
            self._spoil_files,
        )

    # -- trials ----------------------------------------------------------------------------

    def _have_no_room_for_a_promise(self) -> None:
        """A slave that cannot write a promise does so when it has room, without another cause. A
        winner that cannot leaves the lease to the others."""
        group, history, master = self._group, self._history, self._master()
        slave, epoch = self._any_but(master), history.epoch
        slave.is_full = True
        master.processes["ha"].end()
        self._until(lambda: history.epoch > epoch, AGAIN_MS)
        if self._may_lose_one:  # No further change makes the slave write its promise.
            self._until(lambda: not self._is_member(slave), QUIET_MS)
        self._wait(self._random.randint(0, RETRY_MS))
        slave.is_full = False
        self._must_be_whole_again(f"{slave.name} had no room for the promise of an epoch")
        winner = self._any_but(self._master())

        def fill(_: Lease, now: Lease) -> None:
            if now.holder is not None and now.holder.node == winner.name:
                winner.is_full = True

        with self._on_lease_change(fill):
            group.command("switchover", {"to": winner.name})
            self._until(lambda: winner.is_full, QUIET_MS)
        if winner.is_full and self._may_lose_one:
            self._must_move_from(winner, AGAIN_MS, "its disk has no room for the promise")
        winner.is_full = False
        self._must_be_whole_again(f"{winner.name} had won the lease with a full disk")

    def _have_no_room_for_a_table(self) -> None:
        """A slave has promised an epoch and cannot write its table. It reports that, and has room
        when the next epoch begins: it follows that at once."""
        slave = self._any_but(self._master())
        slave.no_room_for = TABLE.with_name(TABLE.name + ".tmp")
        self._master().processes["ha"].end()
        if not self._until(lambda: DISK_FULL in self._alarms_of(slave), AGAIN_MS):
            raise Violation(f"{slave.name} has no room for its table, but raises no alarm")
        slave.calm()
        epoch, following = self._history.epoch, self._replica(self._ha(slave)).following
        self._master().processes["ha"].end()

        def follows_anew() -> bool:
            master, holder = following.master, self._history.holder
            if self._history.epoch > epoch and holder is not None and holder.node == slave.name:
                return True  # Or it has the new epoch itself.
            return master is not None and master.epoch > epoch and following.linked

        if not self._until(follows_anew, FAULT_PAUSE_MS - CHECK_MS):
            raise Violation(f"{slave.name} has room, and does not follow the master of a new epoch")
        self._must_be_whole_again(f"{slave.name} had no room for the table of an epoch")

    def _crowd_a_disk(self) -> None:
        """A master that refuses sends for lack of room, or whose reput has none, hands over. Such a
        node is refused as a target, and healthy nodes come first."""
        history = self._history
        for what in self._random.sample((CROWDED, QUEUES), 2):
            master = self._master()
            self._crowd(master, what)
            if not self._until(partial(self._has_trouble, master), TROUBLE_MS):
                raise Violation(f"{master.name} is {what}, but none of its services reports it")
            self._must_move_from(master, HANDED_MS, f"it is {what}")
            epoch = history.epoch
            self._must_refuse_as_target(master, what)
            if history.epoch != epoch:
                raise Violation(
                    f"{master.name} is {what}, but epoch {epoch} of another node has ended"
                )
            self._uncrowd(master)
            self._must_be_whole_again(f"{master.name} was {what}")
        if self._group.plan.nodes > 2:
            self._kill_beside_a_crowded_one()

    def _kill_beside_a_crowded_one(self) -> None:
        """Of two slaves with equal logs the first in order is crowded, so the other one wins."""
        history, master = self._history, self._master()
        history.producers_paused = True
        ill, sound = history.others(master)
        self._crowd(ill, CROWDED)
        if not self._until(lambda: self._has_trouble(ill), TROUBLE_MS):
            raise Violation(f"{ill.name}, a slave, is crowded but does not report it")
        self._wait(QUIET_MS)
        holders: set[str] = set()

        def note(before: Lease, now: Lease) -> None:
            if now.holder is not None and now.epoch != before.epoch:
                holders.add(now.holder.node)

        self._lose(master, SERVICES)
        with self._on_lease_change(note):
            self._until(lambda: bool(holders), AGAIN_MS)
        history.producers_paused = False
        if holders != {sound.name}:
            raise Violation(
                f"{master.name} was killed, {ill.name} is crowded, {sound.name} is not, and the "
                f"lease went to {sorted(holders)}"
            )
        self._uncrowd(ill)
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was killed, and {ill.name} crowded")

    def _spoil_files(self) -> None:
        """A slave with an unreadable file of ha, or one that contradicts its log, halts and reports
        the file. After a repair and a restart it is a member again."""
        group, history, master = self._group, self._history, self._master()
        slave = self._any_but(master)
        for path, how in self._random.sample(self._ways(slave), SPOILED):
            self._lose(slave, ["ha"])
            kept = {each: slave.disk.peek(each) for each in (path, TABLE_BACKUP)}
            group.trace("world", f"{path} of {slave.name} is spoiled: {how}")
            history.damaged.add(slave.name)
            codes = self._spoil(slave, path, how)
            self._bring_back()
            if codes:
                self._must_halt(slave, path, how, codes)
            else:
                self._must_be_whole_again(f"{path} of {slave.name} has a backup")
            self._lose(slave, ["ha"])
            for each, data in kept.items():
                slave.put_file(each, data)
            history.damaged.clear()
            self._bring_back()
            self._must_be_whole_again(f"{path} of {slave.name} was repaired")

    # -- actions ---------------------------------------------------------------------------

    def _crowd(self, machine: Machine, what: str) -> None:
        self._group.trace("world", f"{machine.name} is {what}")
        if what == CROWDED:
            machine.is_crowded = True
            return
        machine.queues_are_full = True
        self._topics += 1
        self._history.late_topics += [f"more{self._topics}"] * OFTEN

    def _uncrowd(self, machine: Machine) -> None:
        machine.is_crowded = machine.queues_are_full = False
        topics = self._history.late_topics
        topics[:] = [topic for topic in topics if topic != f"more{self._topics}"]
        machine.roomy_us = self._timeline.now_us

    def _has_trouble(self, machine: Machine) -> bool:
        return any(machine.slot(slot) for slot in (Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE))

    def _must_refuse_as_target(self, machine: Machine, what: str) -> None:
        self._wait(SEEN_MS)
        reply = self._reply_to("switchover", {"to": machine.name})
        if reply is None or reply.ok:
            raise Violation(f"{machine.name} is {what}, but is accepted as target: {reply}")

    def _ways(self, machine: Machine) -> list[tuple[Path, str]]:
        """Files with the ways to damage each: a byte, a format, or an invalid value."""
        ways: list[tuple[Path, str]] = []
        for path in (PROMISE, CONFIRM, IDENTITY, DAMAGE, INTENT):
            ways += [(path, how) for how in HOW]
        ways += [(TABLE, how) for how in ("one", "both", "start")]
        if machine.table[-1].start >= machine.begins_at:  # Below it there is no record to compare.
            ways.append((TABLE, "border"))
        if machine.table[-1].start > 0:
            ways.append((TABLE, "epoch"))
        ways.append((CONFIRM, "beyond the log"))
        return ways

    def _spoil(self, machine: Machine, path: Path, how: str) -> tuple[str, ...]:
        """Damage a file; returns the codes with which its node halts, or none if it goes on."""
        if path == TABLE:
            return self._spoil_table(machine, how)
        data = machine.disk.peek(path) or _file(_SOUND[path])
        facts: dict[str, Any] = json.loads(data.partition(b"\n")[0])
        match how:
            case "a byte":
                at = self._random.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case "short":
                data = data[: self._random.randrange(len(data))]
            case "another format":
                data = _file(facts | {"format": 2})
            case "no facts":
                line = self._random.choice((b"{", b"[1]", b"7"))
                data = line + b"\n" + _check(line)
            case "beyond the log":
                data = _file(facts | {"confirm": 1 << 40})
            case _:
                name, wrong = self._random.choice(_WRONG[path])
                data = _file(facts | {name: wrong})
        machine.put_file(path, data)
        return UNCONFIRMED if how == "beyond the log" else (DAMAGED_FILE,)

    def _spoil_table(self, machine: Machine, how: str) -> tuple[str, ...]:
        """The table has a backup. Both may be unreadable or have impossible entries."""
        *before, last = machine.table
        match how:
            case "epoch":
                entries = [EpochStart(last.epoch, PhysicalOffset(last.start - 1)), last]
            case "start":
                earlier = Epoch(last.epoch - 1) if last.epoch > 1 else last.epoch
                entries = [EpochStart(earlier, last.start), last]
            case "border":
                entries = [*before, EpochStart(last.epoch, PhysicalOffset(last.start + 1))]
            case _:
                entries = [*before, last]
        data = epochs.encode(entries)
        if how in ("both", "one"):
            data = data[:-2] + b"x" + data[-1:]
        for path in (
            (self._random.choice((TABLE, TABLE_BACKUP)),) if how == "one" else (TABLE, TABLE_BACKUP)
        ):
            machine.put_file(path, data)
        if how == "one":
            return ()
        return (DAMAGED_FILE if how == "both" else CONTRADICTION,)

    # -- checks ----------------------------------------------------------------------------

    def _must_halt(self, machine: Machine, path: Path, how: str, codes: tuple[str, ...]) -> None:
        def is_halted() -> bool:
            return self._world.state_of(machine.name).startswith("halted")

        if not self._until(is_halted, HALTED_MS) or not self._alarms_of(machine).keys() & codes:
            raise Violation(
                f"{path.name} of {machine.name} was damaged ({how}), it should halt for {codes}; "
                f"its state is {self._world.state_of(machine.name)} with {self._alarms_of(machine)}"
            )
        if not self._until(lambda: not self._world.shown(machine.name), QUIET_MS):
            raise Violation(f"{machine.name} is halted and serves reads")


_SOUND: Final[dict[Path, dict[str, Any]]] = {
    CONFIRM: {"format": 1, "confirm": 0},
    DAMAGE: {"format": 1, "at": 0, "detail": "a record"},
    INTENT: {"format": 1, "what": "cut", "point": 0, "table": []},
}
"""Content of files that do not always exist."""
_NO_COUNTS: Final[tuple[Any, ...]] = (-1, True, 1.5, "7", [])
_NO_INCARNATIONS: Final[tuple[Any, ...]] = (7, [], "a" * 31, "a" * 33, "g" * 32, "A" * 32)
_NO_TABLES: Final[tuple[Any, ...]] = ({}, 7, [7], [[1]], [[1, -1]], [[1, "2"]], [[True, 1]])
_WRONG: Final[dict[Path, list[tuple[str, Any]]]] = {
    PROMISE: [
        (name, value) for name in ("promised", "seen_epoch", "seen_version") for value in _NO_COUNTS
    ],
    CONFIRM: [("confirm", value) for value in _NO_COUNTS],
    IDENTITY: [
        *[("incarnation", value) for value in _NO_INCARNATIONS],
        *[(name, 7) for name in ("cluster", "group", "node")],
    ],
    DAMAGE: [*[("at", value) for value in _NO_COUNTS], ("detail", 7), ("detail", [])],
    INTENT: [
        *[("point", value) for value in _NO_COUNTS],
        *[("table", value) for value in _NO_TABLES],
        *[("what", value) for value in (7, "else")],
    ],
}
"""Invalid values, stored with a correct checksum."""


def _check(line: bytes) -> bytes:
    return b"crc32 %08x\n" % zlib.crc32(line)


def _file(facts: dict[str, Any]) -> bytes:
    line = json.dumps(facts).encode()
    return line + b"\n" + _check(line)
