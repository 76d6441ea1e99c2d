"""The interface of a drill: a group under load and its known state.

A drill is a function of a ``Stage``. It marks the time of its fault, injects it, waits for the
expected effects and notes what it observed. ``running`` removes the faults afterwards and judges.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from drills.etcd_cluster import EtcdCluster
from drills.finding import Finder, Known
from drills.group import Group
from drills.lease_server import LeaseServer
from drills.ledger import Ledger, Request
from drills.workload import Workload
from shared.cluster.time_rules import PROFILES, TimeRules

SETTLE_S: Final = 45.0
PAUSE_S: Final = 0.2
MS: Final = 1000
IN_FLIGHT_S: Final = 0.3
"""Time after a deadline within which an ack sent before it may be read, on a quiet machine."""


class DrillFailed(Exception):
    """An expected effect of a drill did not occur."""


DIRECTORY: Final = "directory"
KUBERNETES: Final = "kubernetes"
"""A test API server, which can be made to fail, on a host of its own."""
ETCD: Final = "etcd"
"""A real etcd of three members, one on each of the first three hosts of the group."""
FAULTY_ETCD: Final = "faulty-etcd"
"""The same, each member behind a proxy that can be made to fail."""
ON_ETCD: Final[Mapping[str, str]] = {DIRECTORY: ETCD, KUBERNETES: FAULTY_ETCD}
"""What takes the place of another lease with ``--lease etcd``."""


class Needs(NamedTuple):
    """The group that a drill needs; drills with the same needs share one."""

    nodes: int = 3
    min_in_sync: int | None = None
    lease: str = DIRECTORY
    """Where the lease is, for example KUBERNETES."""
    profile: str = "local"
    """Of the times of the group."""
    cuts: bool = False
    """Whether hosts must be cut off from each other, which requires namespaces."""
    fresh: bool = False
    """Whether the group cannot be used by another drill afterwards."""
    disk_size: int | None = None
    """Size of a small disk for every store [bytes]; None for the machine's own disk."""
    log_size_max: int = 0
    """Retention limit of the log [bytes]; 0 for none."""


TWO: Final = Needs(nodes=2)
THREE: Final = Needs(nodes=3)
THREE_FRESH: Final = Needs(nodes=3, fresh=True)
THREE_APART: Final = Needs(nodes=3, cuts=True)
MACHINES: Final = Needs(nodes=3, cuts=True, lease=ETCD, profile="default")
WITH_API: Final = Needs(nodes=3, cuts=True, lease=KUBERNETES)


class AnyNode(Protocol):
    """A node whose store can be read."""

    @property
    def store_dir(self) -> Path: ...


class AnyGroup(Protocol):
    """Nodes that run as processes or as pods."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def nodes(self) -> Mapping[str, AnyNode]: ...

    @property
    def table(self) -> Mapping[str, object]:
        """The [cluster] settings; only the profile is used."""
        ...


G = TypeVar("G", bound=AnyGroup)


@dataclass(slots=True)
class Observed:
    """What a drill recorded about its fault."""

    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""
    fault_at: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of the judged gaps; if empty, the longest gap between acks since the fault."""
    restored_by: float | None = None
    """End of the period that is searched for the longest gap; None: the end of the drill."""


@dataclass(slots=True)
class GroupStage(Generic[G]):
    """The group, load and results of one drill."""

    group: G
    finder: Finder
    load: Workload
    ledger: Ledger
    random: Random
    lease: LeaseServer | None = None
    """None if the lease store does not fail."""
    etcd: EtcdCluster | None = None
    """None unless the lease is in etcd; a member has the name of the node on its host."""
    observed: Observed = field(default_factory=Observed)

    @property
    def times(self) -> TimeRules:
        return PROFILES[str(self.group.table["profile"])]

    @property
    def lease_server(self) -> LeaseServer:
        assert self.lease is not None, "this drill needs a lease store that can fail"
        return self.lease

    @property
    def etcd_members(self) -> EtcdCluster:
        assert self.etcd is not None, "this drill needs members of etcd"
        return self.etcd

    @property
    def lease_s(self) -> float:
        """Duration of a lease without renewal [s]."""
        return self.times.lease_ms / MS

    @property
    def fenced_s(self) -> float:
        """Time after which a master that cannot renew its lease stops serving [s]."""
        return (self.times.lease_ms - self.times.margin_ms) / MS

    def mark(self) -> float:
        """Record that the fault happens now; return the time."""
        self.observed.fault_at = time.monotonic()
        return self.observed.fault_at

    def judge_until_now(self) -> None:
        """End the period that is searched for the longest gap."""
        self.observed.restored_by = time.monotonic()

    def expect_loss_from(self, offset: int) -> None:
        """Record that an operator gave up all acked messages from an offset on."""
        self.ledger.give_up(offset)
        self.load.rewind()

    def note(self, sentence: str) -> None:
        self.observed.notes.append(sentence)

    def check(self, holds: bool, sentence: str) -> None:
        """Raise DrillFailed with the sentence unless the condition holds."""
        if not holds:
            raise DrillFailed(sentence)

    def check_epoch(self, expected: int) -> None:
        """Raise DrillFailed if there was a change of epoch."""
        self.check(self.epoch == expected, f"the epoch went from {expected} to {self.epoch}")

    async def check_master(self, expected: str) -> None:
        """Raise DrillFailed if another node is master."""
        self.check(await self.master() == expected, f"{expected} is not the master any more")

    async def eventually(
        self, holds: Callable[[], Awaitable[object]], sentence: Callable[[], str], timeout_s: float
    ) -> None:
        """Wait until the condition holds. Raises DrillFailed with the sentence.

        A slow machine extends the timeout, as in all waits of a drill.
        """
        deadline = time.monotonic() + timeout_s * self.finder.pace.now
        while not await holds():
            self.check(time.monotonic() < deadline, sentence())
            await asyncio.sleep(PAUSE_S)

    async def ordered(
        self: GroupStage[Group], name: str, command: str, timeout_s: float, **arguments: object
    ) -> dict[str, Any]:
        """Repeat a command at a node until it succeeds; return the answer. Raises DrillFailed."""
        status = 0
        answer: dict[str, Any] = {}

        async def done() -> bool:
            nonlocal status, answer
            status, answer = await self.group.command(name, command, **arguments)
            return status == 200

        await self.eventually(done, lambda: f"{command} was answered {status} {answer}", timeout_s)
        return answer

    def kill_machines(self: GroupStage[Group], *names: str) -> None:
        """Kill the nodes with all that runs beside them, as a loss of power does."""
        for name in names:
            self.group.kill(name)
        if self.etcd is not None:
            self.etcd.kill(*names)

    def start_machine(self: GroupStage[Group], name: str) -> None:
        """Start a node, and what runs beside it."""
        if self.etcd is not None:
            self.etcd.start(name)
        self.group.start(name)

    # -- roles ------------------------------------------------------------------------------------

    async def master(self) -> str:
        """Wait for a master that also reports itself as master in the highest epoch."""
        return (await self._serving_other_than(None, "a master", SETTLE_S))[0]

    async def successor(self, old: str, timeout_s: float) -> str:
        """Wait until a node other than old reports itself as master; return its name."""
        found, took = await self._serving_other_than(old, f"a master other than {old}", timeout_s)
        self.note(f"{found} is master after {took:.1f} s")
        return found

    async def _serving_other_than(
        self, old: str | None, what: str, timeout_s: float
    ) -> tuple[str, float]:
        took = await self.finder.until(
            lambda known: _serving(known) not in (None, old), what, timeout_s
        )
        found = _serving(self.finder.known)
        assert found is not None
        return found, took

    async def roles(self, acked: int) -> tuple[str, ...]:
        """Wait until that many more messages are acked; return the master, then the slaves."""
        await self.load.acked(acked)
        master = await self.master()
        return (master, *self.slaves(master))

    def slaves(self, master: str) -> list[str]:
        return [name for name in self.group.names if name != master]

    @property
    def epoch(self) -> int:
        """The highest epoch that any node reports."""
        return max((status.epoch for status in self.finder.known.newest.values()), default=0)

    async def in_sync(self, *names: str, timeout_s: float = SETTLE_S) -> float:
        """Wait until the master's in-sync set is exactly the named nodes (default: all); return the
        duration [s]."""
        wanted = frozenset(names or self.group.names)

        def known(known: Known) -> bool:
            found = _serving(known)
            return found is not None and known.newest[found].in_sync == wanted

        return await self.finder.until(known, f"in-sync set {sorted(wanted)}", timeout_s)

    async def target(self) -> None:
        """Wait until the master reports an in-sync slave without a reason against a switchover."""

        def known(known: Known) -> bool:
            master = _serving(known)
            return master is not None and known.newest[master].may_switch(master)

        await self.finder.until(known, "a slave that can take over", SETTLE_S)

    async def state(self, name: str, *states: str, timeout_s: float = SETTLE_S) -> None:
        """Wait until a node reports one of the states."""

        def known(known: Known) -> bool:
            status = known.newest.get(name)
            return status is not None and status.role in states

        await self.finder.until(known, f"{name} to be {' or '.join(states)}", timeout_s)

    # -- acks -------------------------------------------------------------------------------------

    async def pause_load(self) -> None:
        """Send no new requests until ``load.resume``, and wait until none is pending."""
        self.load.pause()
        await self.load.quiet()

    async def acked_again(self, timeout_s: float) -> float:
        """Wait for the ack of a request sent from now on; return the duration [s]."""
        began = time.monotonic()
        return await self.finder.until(
            lambda _: self.ledger.first_ack(began) is not None,
            "a send to be acknowledged",
            timeout_s,
        )

    async def restored(self, timeout_s: float) -> float:
        """Do the same as ``acked_again`` and add the duration to the judged gaps."""
        began = time.monotonic()
        took = await self.acked_again(timeout_s)
        self.observed.gaps.append((began, began + took))
        return took

    def check_none_late(self, acks: Iterable[Request], deadline: float, how: str) -> None:
        """Raise DrillFailed if one of the acks is later than the deadline [time.monotonic].

        An ack sent before the deadline may be read IN_FLIGHT_S after it, and later by the time for
        which the machine did not run the node or this process. Nothing excuses the ack of a request
        that was sent later.
        """
        held_back_s = self.finder.pace.held_back_s
        latest = deadline + IN_FLIGHT_S
        late = [
            ack
            for ack in acks
            if ack.sent_at > latest
            or (
                ack.ended_at > latest
                and ack.ended_at - latest > held_back_s(deadline, ack.ended_at, ack.node)
            )
        ]
        self.check(not late, f"{len(late)} sends were acknowledged {how}")

    def gap_since(self, began: float) -> float:
        """Add the longest time without an ack since began to the judged gaps; return it [s]."""
        begin, end = self.ledger.longest_gap_at(began, time.monotonic())
        self.observed.gaps.append((begin, end))
        return end - begin

    async def pass_time(self, seconds: float) -> None:
        """Let the load continue for the duration of a fault."""
        began = time.monotonic()
        await self.finder.until(
            lambda _: time.monotonic() - began >= seconds, "time to pass", seconds + 5
        )


def _serving(known: Known) -> str | None:
    """Return the master of the highest known epoch if it reports itself as such, else None."""
    best = known.best()
    if best is None or best.master is None:
        return None
    own = known.newest.get(best.master)
    if own is None or own.master != best.master or own.epoch != best.epoch:
        return None
    return best.master


Stage = GroupStage[Group]
"""Stage of a group of processes."""


@dataclass(frozen=True, slots=True)
class Drill(Generic[G]):
    number: str
    name: str
    title: str
    run: Callable[[GroupStage[G]], Awaitable[None]]
    restored_within_s: float | None = None
    """Time limit of the group's profile [s]; None if service may be interrupted."""
    short: bool = False
    """Whether the drill is part of continuous integration."""
    long: bool = False
    """Whether the drill takes longer than ten minutes; then ``--all`` does not include it."""
    needs: Needs = THREE

    def on_etcd(self) -> Drill[G]:
        """Return this drill with its lease in an etcd of three members."""
        lease = ON_ETCD.get(self.needs.lease, self.needs.lease)
        return dataclasses.replace(self, needs=self.needs._replace(lease=lease))


REGISTERED: Final[dict[str, Drill[Group]]] = {}
DrillFunction = Callable[[Stage], Awaitable[None]]


def drill(
    number: str,
    title: str,
    needs: Needs,
    restored_within_s: float | None = None,
    *,
    name: str = "",
    short: bool = False,
    long: bool = False,
) -> Callable[[DrillFunction], DrillFunction]:
    """Register a function as a drill. name: default: that of the function."""

    def register(function: DrillFunction) -> DrillFunction:
        named = name or function.__name__.replace("_", "-")
        assert named not in REGISTERED, f"two drills are called {named}"
        REGISTERED[named] = Drill(
            number, named, title, function, restored_within_s, short, long, needs
        )
        return function

    return register
