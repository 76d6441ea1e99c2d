"""Trials of a whole group in which a disk has no room, or a file of ha is not what it was.

A node without room leaves the lease to others and goes on by itself when it has some again. A node
with an unreadable file halts for a reason that is always the same, and serves no client.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from services.ha.core.promises import RETRY_MS
from services.ha.lease.value import Lease
from tests.simulation.replication.machine import (
    CONFIRM,
    DAMAGE,
    IDENTITY,
    INTENT,
    PROMISE,
    TABLE,
    TWIN,
    Machine,
)
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats import epochs
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

ILL_MS: Final = 3_000
"""Broker or reput has met that there is no room, and said so, by then."""
SEEN_MS: Final = 300
"""ha has seen it, and said so to the other nodes."""
HANDED_MS: Final = 10_000 + 3 * TIMES.lease_ms
"""Trouble of a master moves the lease by then, also if it did so a moment ago."""
HALTED_MS: Final = 3_000
"""A start has recovered the log, and said what it found, by then."""
CROWDED: Final = "crowded"
"""Filled to where sends are refused."""
QUEUES: Final = "queues"
"""No room for a further queue file."""
OFTEN: Final = 10
"""Producers choose a topic that has no queue yet more often than all others."""
SPOILED: Final = 8
"""Files in a row."""
DAMAGED_FILE: Final = "damaged-file"
CONTRADICTION: Final = "halted-replica"
UNCONFIRMED: Final = "corrupt-record", "log-files-missing"
"""The log ends below what was confirmed."""
HOW: Final = ("a byte", "short", "another format", "no facts", "value", "value")


class WithoutRoom(Trying):
    """Of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._topics = 0
        """Made for a queue that has no room."""
        self.trials: tuple[Callable[[], None], ...] = (
            self._have_no_room_for_a_promise,
            self._crowd_a_disk,
            self._spoil_files,
        )

    # -- trials ----------------------------------------------------------------------------

    def _have_no_room_for_a_promise(self) -> None:
        """A slave that cannot promise an epoch does so when it has room, without another cause; a
        winner that cannot leaves the lease to the others."""
        group, history, master = self._group, self._history, self._master()
        slave, epoch = self._any_but(master), history.epoch
        slave.is_full = True
        master.processes["ha"].end()
        self._until(lambda: history.epoch > epoch, AGAIN_MS)
        if self._may_lose_one:  # nothing changes any more for which the slave would write
            self._until(lambda: not self._is_member(slave), QUIET_MS)
        self._wait(self._random.randint(0, RETRY_MS))
        slave.is_full = False
        self._must_be_whole_again(f"{slave.name} had no room for the promise of an epoch")
        winner = self._any_but(self._master())

        def fill(_: Lease, now: Lease) -> None:
            if now.holder is not None and now.holder.node == winner.name:
                winner.is_full = True

        group.on_lease.append(fill)
        group.order("switchover", {"to": winner.name})
        self._until(lambda: winner.is_full, QUIET_MS)
        group.on_lease.remove(fill)
        if winner.is_full and self._may_lose_one:
            self._must_move_from(winner, AGAIN_MS, "its disk has no room for the promise")
        winner.is_full = False
        self._must_be_whole_again(f"{winner.name} had won the lease with a full disk")

    def _crowd_a_disk(self) -> None:
        """A master that refuses sends for want of room, or whose reput has none, hands over; such a
        node is no target, and comes behind sound ones."""
        history = self._history
        for what in self._random.sample((CROWDED, QUEUES), 2):
            master = self._master()
            self._crowd(master, what)
            if not self._until(partial(self._is_ill, master), ILL_MS):
                raise Violation(f"{master.name} is {what}, and none of its services says so")
            self._must_move_from(master, HANDED_MS, f"it is {what}")
            epoch = history.epoch
            self._must_refuse_as_target(master, what)
            if history.epoch != epoch:
                raise Violation(f"{master.name} is {what}, and epoch {epoch} of another is over")
            self._uncrowd(master)
            self._must_be_whole_again(f"{master.name} was {what}")
        if self._group.plan.nodes > 2:
            self._kill_beside_a_crowded_one()

    def _kill_beside_a_crowded_one(self) -> None:
        """Of two slaves with the same log the first in order is crowded: the other one wins."""
        history, master = self._history, self._master()
        history.producers_rest = True
        ill, sound = history.others(master)
        self._crowd(ill, CROWDED)
        if not self._until(lambda: self._is_ill(ill), ILL_MS):
            raise Violation(f"{ill.name}, a slave, is crowded and does not say so")
        self._wait(QUIET_MS)
        holders: set[str] = set()

        def note(before: Lease, now: Lease) -> None:
            if now.holder is not None and now.epoch != before.epoch:
                holders.add(now.holder.node)

        self._lose(master, SERVICES)
        self._group.on_lease.append(note)
        self._until(lambda: bool(holders), AGAIN_MS)
        self._group.on_lease.remove(note)
        history.producers_rest = False
        if holders != {sound.name}:
            raise Violation(
                f"{master.name} was killed, {ill.name} is crowded, {sound.name} is not, and the "
                f"lease went to {sorted(holders)}"
            )
        self._uncrowd(ill)
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was killed, and {ill.name} crowded")

    def _spoil_files(self) -> None:
        """A slave whose file of ha is unreadable, or contradicts its log, halts and says which; put
        right and started again, it is a member."""
        group, history, master = self._group, self._history, self._master()
        slave = self._any_but(master)
        for path, how in self._random.sample(self._ways(slave), SPOILED):
            self._lose(slave, ["ha"])
            kept = {each: slave.disk.peek(each) for each in (path, TWIN)}
            group.tell("world", f"{path} of {slave.name} is spoiled: {how}")
            history.damaged.add(slave.name)
            codes = self._spoil(slave, path, how)
            self._bring_back()
            if codes:
                self._must_halt(slave, path, how, codes)
            else:
                self._must_be_whole_again(f"{path} of {slave.name} has a twin")
            self._lose(slave, ["ha"])
            for each, data in kept.items():
                slave.put_file(each, data)
            history.damaged.clear()
            self._bring_back()
            self._must_be_whole_again(f"{path} of {slave.name} was put right")

    # -- what they do ----------------------------------------------------------------------

    def _crowd(self, machine: Machine, what: str) -> None:
        self._group.tell("world", f"{machine.name} is {what}")
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

    def _is_ill(self, machine: Machine) -> bool:
        return any(machine.slot(slot) for slot in (Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE))

    def _is_member(self, machine: Machine) -> bool:
        return machine.name in [member.node for member in self._history.published]

    def _must_refuse_as_target(self, machine: Machine, what: str) -> None:
        self._wait(SEEN_MS)
        service = self._group.ha_of(self._master().name)
        token = self._group.order("switchover", {"to": machine.name})
        assert service is not None, "it has taken over"
        assert token is not None, "it has taken over"
        self._until(lambda: token in service.replies, AGAIN_MS)
        reply = service.replies.get(token)
        if reply is None or reply.ok:
            raise Violation(f"{machine.name} is {what}, and is to be the master: {reply}")

    def _ways(self, machine: Machine) -> list[tuple[Path, str]]:
        """Files, and what may be wrong with each: a byte, a format or a value that cannot be."""
        ways: list[tuple[Path, str]] = []
        for path in (PROMISE, CONFIRM, IDENTITY, DAMAGE, INTENT):
            ways += [(path, how) for how in HOW]
        ways += [(TABLE, how) for how in ("one", "both", "start", "border")]
        if machine.table[-1].start > 0:
            ways.append((TABLE, "epoch"))
        ways.append((CONFIRM, "beyond the log"))
        return ways

    def _spoil(self, machine: Machine, path: Path, how: str) -> tuple[str, ...]:
        """Spoil a file; its node halts for one of these codes, or not at all if there is none."""
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
        """The table has a twin; both may be unreadable, or say what cannot be."""
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
        for path in (self._random.choice((TABLE, TWIN)),) if how == "one" else (TABLE, TWIN):
            machine.put_file(path, data)
        if how == "one":
            return ()
        return (DAMAGED_FILE if how == "both" else CONTRADICTION,)

    # -- what must be so -------------------------------------------------------------------

    def _must_halt(self, machine: Machine, path: Path, how: str, codes: tuple[str, ...]) -> None:
        def is_halted() -> bool:
            return self._world.state_of(machine.name).startswith("halted")

        if not self._until(is_halted, HALTED_MS) or not self._said(machine).keys() & codes:
            raise Violation(
                f"{path.name} of {machine.name} was spoiled ({how}), it should halt for {codes}; "
                f"it is {self._world.state_of(machine.name)} with {self._said(machine)}"
            )
        if not self._until(lambda: not self._world.shown(machine.name), QUIET_MS):
            raise Violation(f"{machine.name} is halted, and its consumers are served")


_SOUND: Final[dict[Path, dict[str, Any]]] = {
    CONFIRM: {"format": 1, "confirm": 0},
    DAMAGE: {"format": 1, "at": 0, "detail": "a record"},
    INTENT: {"format": 1, "what": "cut", "point": 0, "table": []},
}
"""Of files that are not always there."""
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
"""Values that are none, with a checksum that fits."""


def _check(line: bytes) -> bytes:
    return b"crc32 %08x\n" % zlib.crc32(line)


def _file(facts: dict[str, Any]) -> bytes:
    line = json.dumps(facts).encode()
    return line + b"\n" + _check(line)
