"""Planted mistakes about acknowledgements and about membership of the in-sync set."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

from services.ha.core import in_sync
from services.ha.core.campaign import Campaign
from services.ha.core.confirm import ConfirmOffset
from services.ha.core.effects import Publish
from services.ha.core.events import Done
from services.ha.core.following import Following
from services.ha.core.in_sync import InSync
from services.ha.core.mastership import Mastership
from services.ha.core.peers import Incoming
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.slave_protocol import SlaveLink
from services.ha.core.states import Trigger
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import Hello
from tidemark.formats.checkpoint import Slot

Planting = Iterator[None]


# -- acknowledging ---------------------------------------------------------------------------------


@contextmanager
def added_member_not_waited_for() -> Planting:
    """The master waits for a member that is being added only once its addition is known."""
    settle = InSync._settle

    def forgetful(self: InSync) -> None:
        settle(self)
        self.wait_set = frozenset(self._published) - {self._own}

    with patch.object(InSync, "_settle", forgetful):
        yield


@contextmanager
def quorum_instead_of_set() -> Planting:
    """More than half of the set is enough."""

    def advance(
        self: ConfirmOffset,
        own: int | None,
        durable: Mapping[Member, int],
        wait_set: Collection[Member],
    ) -> bool:
        if own is None:
            return False
        ends = sorted([own, *(durable.get(member, 0) for member in wait_set)], reverse=True)
        confirmed = ends[len(ends) // 2]
        moved, self.value = confirmed > self.value, max(self.value, confirmed)
        return moved

    with patch.object(ConfirmOffset, "advance", advance):
        yield


@contextmanager
def acks_of_an_old_epoch_counted() -> Planting:
    """Acknowledgements from an earlier term of this node still count."""
    begin = Mastership.__init__

    def remembering(self: Mastership, own: ReplicaContext, *arguments: Any, **named: Any) -> None:
        begin(self, own, *arguments, **named)
        machine = cast(Any, own.log).directory.disk.machine
        self._durable = machine.__dict__.setdefault("acknowledged", {})

    def forget(self: Mastership, link: Any) -> None:
        del self.links[link.link]
        self.in_sync.unlinked(link.peer)

    with (
        patch.object(Mastership, "__init__", remembering),
        patch.object(Mastership, "_forget", forget),
    ):
        yield


@contextmanager
def ends_of_hello_counted() -> Planting:
    """The end in a slave's HELLO counts as acknowledged."""
    hello = Mastership.hello

    def counting(self: Mastership, incoming: Incoming, payload: Hello) -> None:
        hello(self, incoming, payload)
        if incoming.link in self.links:
            self._durable[incoming.peer] = payload.durable

    with patch.object(Mastership, "hello", counting):
        yield


@contextmanager
def unsynced_bytes_acknowledged() -> Planting:
    """A slave acknowledges what it has appended."""
    copied = SlaveLink.copied

    def early(self: SlaveLink, end: int, durable: int) -> Any:
        return copied(self, end, end)

    with patch.object(SlaveLink, "copied", early):
        yield


@contextmanager
def candidate_goes_on_acknowledging() -> Planting:
    """A candidate follows its master and acknowledges until it has won."""
    leave, settle, write = Following.leave, Campaign._settled, Campaign._written

    def stay(self: Following, reason: str) -> None:
        if reason == "campaigning":
            self._context.move(Trigger.LINK_LOST, reason)
        else:
            leave(self, reason)

    def settled(self: Campaign, done: Done) -> None:
        self.__dict__["fixed_end"] = done.end
        settle(self, done)

    def written(self: Campaign, answer: WriteOutcome) -> None:
        self._context.end = self.__dict__["fixed_end"]
        write(self, answer)

    with (
        patch.object(Following, "leave", stay),
        patch.object(Campaign, "_settled", settled),
        patch.object(Campaign, "_written", written),
    ):
        yield


@contextmanager
def term_confirms_its_whole_log() -> Planting:
    """The confirm offset of a new term starts at the end of its log."""
    give = Mastership._grant

    def granting(self: Mastership) -> None:
        before = self.granted
        give(self)
        if before is None and self.granted is not None:
            self.confirm.value = max(self.confirm.value, self.start)
            self._context.out.put(Publish(((Slot.CONFIRM, self.confirm.value),)))

    with patch.object(Mastership, "_grant", granting):
        yield


# -- the set ---------------------------------------------------------------------------------------


@contextmanager
def shrunk_without_compare_and_set() -> Planting:
    """The master stops waiting for a silent member without a change of the lease."""
    wanted = InSync.wanted

    def drop(self: InSync, now_ms: int) -> tuple[Member, ...] | None:
        change = wanted(self, now_ms)
        if change is not None and len(change) < len(self.published):
            self.wait_set = frozenset(change) - {self._own}
            return None
        return change

    with patch.object(InSync, "wanted", drop):
        yield


@contextmanager
def shrunk_before_it_is_confirmed() -> Planting:
    """A member leaves the wait set when its removal is sent, not when it is known."""

    know = InSync.known

    def hasty(self: InSync, lease: Lease, unsettled: Lease | None) -> None:
        know(self, unsettled or lease, None)

    with patch.object(InSync, "known", hasty):
        yield


@contextmanager
def added_below_the_confirm_offset() -> Planting:
    """Every linked slave is added, wherever its log ends."""
    acknowledged = InSync.acknowledged

    def hasty(self: InSync, member: Member, durable: int, **facts: Any) -> None:
        acknowledged(self, member, durable, **facts)
        if member not in self.published:
            self.adding[member] = in_sync.Addition(0, facts["now_ms"])
            self._settle()

    with patch.object(InSync, "acknowledged", hasty):
        yield


@contextmanager
def no_growth_before_the_epoch_is_open() -> Planting:
    """A term that is not open adds no member."""
    write, grow = Mastership._write_lease, InSync._with_next

    def writing(self: Mastership) -> None:
        self.in_sync.__dict__["is_open"] = self.opened
        write(self)

    def growing(self: InSync, now_ms: int) -> tuple[Member, ...] | None:
        return grow(self, now_ms) if self.__dict__["is_open"] else None

    with (
        patch.object(Mastership, "_write_lease", writing),
        patch.object(InSync, "_with_next", growing),
    ):
        yield


@contextmanager
def two_incarnations_of_a_node() -> Planting:
    """A new incarnation is added beside the old one."""

    def both(members: Collection[Member], new: Member) -> tuple[Member, ...]:
        return tuple(sorted({*members, new}))

    with patch.object(in_sync, "with_member", both):
        yield
