"""What a drill acts on: a group under load, and what is known of it.

A drill is a function of a ``Stage``. It marks the moment of its fault, does it, waits for what must
come of it, and notes what it saw; ``running`` heals everything afterwards and judges.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from drills.finding import Finder, Known
from drills.group import Group
from drills.lease_server import LeaseServer
from drills.ledger import Ledger
from drills.workload import Workload
from shared.cluster.time_rules import PROFILES, TimeRules

SETTLE_S: Final = 45.0
MS: Final = 1000


class DrillFailed(Exception):
    """Something did not come about as a drill says it must."""


class Needs(NamedTuple):
    """The group that a drill is about; drills with the same needs share one."""

    nodes: int = 3
    min_in_sync: int | None = None
    lease: str = "directory"
    """Or "kubernetes": a test's API server, on a host of its own."""
    cuts: bool = False
    """Hosts have to be cut apart: namespaces."""
    fresh: bool = False
    """Leaves a group behind that no other drill may use."""
    disk_size: int | None = None
    """Bytes of a small disk for every store; None: this machine's."""
    log_size_max: int = 0
    """Bytes of log that retention leaves; 0: no bound."""


class AnyNode(Protocol):
    """A node whose store can be read."""

    @property
    def store_dir(self) -> Path:
        """On this machine."""
        ...


class AnyGroup(Protocol):
    """Nodes, however they run: as processes, or as pods."""

    @property
    def names(self) -> Sequence[str]:
        """Of all nodes."""
        ...

    @property
    def nodes(self) -> Mapping[str, AnyNode]:
        """By name."""
        ...

    @property
    def table(self) -> Mapping[str, object]:
        """Settings of the cluster; of them the profile is looked at."""
        ...


G = TypeVar("G", bound=AnyGroup)


@dataclass(slots=True)
class GroupStage(Generic[G]):
    """One drill's view."""

    group: G
    finder: Finder
    load: Workload
    ledger: Ledger
    random: Random
    lease: LeaseServer | None
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""
    fault_at: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of what is judged; none: of the longest gap between two acks since the
    fault."""
    restored_by: float | None = None
    """Up to when that gap counts; None: the end of the drill."""

    @property
    def times(self) -> TimeRules:
        """Of the profile that the group runs with."""
        return PROFILES[str(self.group.table["profile"])]

    @property
    def lease_server(self) -> LeaseServer:
        """The API server of a drill that needs one."""
        assert self.lease is not None, 'this drill needs lease="kubernetes"'
        return self.lease

    @property
    def lease_s(self) -> float:
        """How long a lease lasts that nobody renews."""
        return self.times.lease_ms / MS

    @property
    def fenced_s(self) -> float:
        """After which a master that cannot renew has stopped."""
        return (self.times.lease_ms - self.times.margin_ms) / MS

    def mark(self) -> float:
        """The fault happens now."""
        self.fault_at = time.monotonic()
        return self.fault_at

    def expect_loss_from(self, offset: int) -> None:
        """An operator gave up everything that was acknowledged so far, from an offset on."""
        self.ledger.give_up(offset)
        self.load.rewind()

    def note(self, sentence: str) -> None:
        """Say something in the report."""
        self.notes.append(sentence)

    def held_back_s(self, began: float, ended: float, node: str) -> float:
        """For how long the machine let other processes run instead of a node's."""
        return self.finder.pace.held_back_s(began, ended, node)

    def check(self, holds: bool, sentence: str) -> None:
        """Raise DrillFailed unless what the sentence says holds."""
        if not holds:
            raise DrillFailed(sentence)

    # -- who is what ------------------------------------------------------------------------------

    async def master(self, timeout_s: float = SETTLE_S) -> str:
        """The master, once there is one that all its own answers agree on."""

        def known(known: Known) -> bool:
            return _serving(known) is not None

        await self.finder.until(known, "a master", timeout_s)
        found = _serving(self.finder.known)
        assert found is not None
        return found

    def slaves(self, master: str) -> list[str]:
        """Everybody else."""
        return [name for name in self.group.names if name != master]

    @property
    def epoch(self) -> int:
        """The highest epoch that anybody knows."""
        return max((look.epoch for look in self.finder.known.newest.values()), default=0)

    async def successor(self, old: str, timeout_s: float) -> str:
        """Wait until another node than old is master, and says so itself."""

        def known(known: Known) -> bool:
            found = _serving(known)
            return found is not None and found != old

        took = await self.finder.until(known, f"a master other than {old}", timeout_s)
        found = _serving(self.finder.known)
        assert found is not None
        self.note(f"{found} is master after {took:.1f} s")
        return found

    async def in_sync(self, *names: str, timeout_s: float = SETTLE_S) -> float:
        """Wait until the master says that the in-sync set is just the named nodes (default: all).

        Returns how long it took [s]."""
        wanted = frozenset(names or self.group.names)

        def known(known: Known) -> bool:
            found = _serving(known)
            return found is not None and known.newest[found].in_sync == wanted

        return await self.finder.until(known, f"in-sync set {sorted(wanted)}", timeout_s)

    async def target(self, timeout_s: float = SETTLE_S) -> float:
        """Wait until the master's status has a slave that it may be switched to: in sync, and no
        reason beside it. How long it took [s]."""

        def known(known: Known) -> bool:
            master = _serving(known)
            return master is not None and known.newest[master].may_switch(master)

        return await self.finder.until(known, "a slave that can take over", timeout_s)

    async def state(self, name: str, *states: str, timeout_s: float = SETTLE_S) -> float:
        """Wait until a node says that it is in one of the states; how long it took [s]."""

        def known(known: Known) -> bool:
            look = known.newest.get(name)
            return look is not None and look.role in states

        return await self.finder.until(known, f"{name} to be {' or '.join(states)}", timeout_s)

    # -- acks -------------------------------------------------------------------------------------

    async def acked_again(self, timeout_s: float) -> float:
        """Wait for a success of a request that was sent from now on; how long it took [s]."""
        began = time.monotonic()

        def known(_: Known) -> bool:
            return self.ledger.first_ack(began) is not None

        return await self.finder.until(known, "a send to be acknowledged", timeout_s)

    async def restored(self, timeout_s: float) -> float:
        """Like ``acked_again``; this time is judged."""
        began = time.monotonic()
        took = await self.acked_again(timeout_s)
        self.gaps.append((began, began + took))
        return took

    def gap_since(self, began: float) -> float:
        """The longest time without an ack from a moment until now [s]; it is judged."""
        begin, end = self.ledger.longest_gap_at(began, time.monotonic())
        self.gaps.append((begin, end))
        return end - begin

    async def pass_time(self, seconds: float) -> None:
        """Let load go on for a while: the fault itself lasts that long."""
        began = time.monotonic()
        await self.finder.until(
            lambda _: time.monotonic() - began >= seconds, "time to pass", seconds + 5
        )


def _serving(known: Known) -> str | None:
    """The node that says of itself that it is master, in the highest epoch that anybody knows."""
    best = known.best()
    if best is None or best.master is None:
        return None
    own = known.newest.get(best.master)
    if own is None or own.master != best.master or own.epoch != best.epoch:
        return None
    return best.master


Stage = GroupStage[Group]
"""Of a group of processes."""
DrillFunction = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault, and what must come of it."""

    number: str
    name: str
    title: str
    needs: Needs
    run: DrillFunction
    restored_within_s: float | None
    """For the profile ``local``; None: no service is owed in between."""
    short: bool
    """Runs in continuous integration as well."""
    long: bool = False
    """Takes longer than ten minutes: it runs by its name, not with all others."""


REGISTERED: Final[dict[str, Drill]] = {}


def drill(
    number: str,
    name: str,
    title: str,
    *,
    needs: Needs = Needs(),  # noqa: B008 (a value)
    restored_within_s: float | None = None,
    short: bool = False,
    long: bool = False,
) -> Callable[[DrillFunction], DrillFunction]:
    """Register a function as a drill."""

    def register(function: DrillFunction) -> DrillFunction:
        assert name not in REGISTERED, f"two drills are called {name}"
        REGISTERED[name] = Drill(
            number, name, title, needs, function, restored_within_s, short, long
        )
        return function

    return register
