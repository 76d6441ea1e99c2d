"""Mistakes that the simulation has to find, planted for the length of a ``with``.

Each takes one rule away from the code under test, or words it as it was worded once. They live here
and nowhere in the product; what they patch is named, so a rename breaks the test and not the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

from services.ha import campaign, in_sync, mastership, recovered_table, slave_protocol, truncation
from services.ha import own as owned
from services.ha.campaign import Campaign, Claim
from services.ha.confirm import ConfirmOffset
from services.ha.divergence import Extent
from services.ha.effects import Publish
from services.ha.events import Done
from services.ha.following import Following
from services.ha.in_sync import InSync
from services.ha.lease.session import LeaseSession, Settled
from services.ha.lease.value import Lease, Member, Stored
from services.ha.mastership import Mastership
from services.ha.own import Own
from services.ha.payloads import Hello
from services.ha.peers import Incoming
from services.ha.recreation import Recreation
from services.ha.slave_protocol import SlaveLink
from services.ha.truncation import CutPlan, InOrder, Outcome
from shared.cluster import grant
from shared.cluster.grant import Slots
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart

Planting = Iterator[None]


# -- acknowledging ---------------------------------------------------------------------------------


@contextmanager
def added_member_not_waited_for() -> Planting:
    """A member that is being added is waited for only once its addition is known."""
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
    """What a member acknowledged to this node in an earlier term goes on to count."""
    begin = Mastership.__init__

    def remembering(self: Mastership, own: Own, *arguments: Any, **named: Any) -> None:
        begin(self, own, *arguments, **named)
        machine = cast(Any, own.log).machine
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
    """What a slave says that it has when it connects counts as acknowledged."""
    hello = Mastership.hello

    def counting(self: Mastership, incoming: Incoming, said: Hello) -> None:
        hello(self, incoming, said)
        if incoming.link in self.links:
            self._durable[incoming.peer] = said.durable

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
    """A candidate follows its master, and acknowledges, until it has won."""
    leave, settle, write = Following.leave, Campaign._settled, Campaign._written

    def stay(self: Following, reason: str) -> None:
        if reason != "campaigning":
            leave(self, reason)

    def settled(self: Campaign, done: Done) -> None:
        self.__dict__["fixed_end"] = done.end
        settle(self, done)

    def written(self: Campaign, answer: Settled) -> None:
        self._own.end = self.__dict__["fixed_end"]
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
            self._own.out.put(Publish(((Slot.CONFIRM, self.confirm.value),)))

    with patch.object(Mastership, "_grant", granting):
        yield


# -- the set ---------------------------------------------------------------------------------------


@contextmanager
def shrunk_without_compare_and_set() -> Planting:
    """A silent member is not waited for any more; the lease is not changed."""
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
    """A member is dropped from the wait set when its removal is sent, not when it is known."""

    know = InSync.known

    def hasty(self: InSync, lease: Lease, unsettled: Lease | None) -> None:
        know(self, unsettled or lease, None)

    with patch.object(InSync, "known", hasty):
        yield


@contextmanager
def added_below_the_confirm_offset() -> Planting:
    """Whoever is linked is added, wherever its log ends."""
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
    """A term that is not open adds nobody."""
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


# -- the lease -------------------------------------------------------------------------------------


@contextmanager
def promotion_of_a_non_member() -> Planting:
    """Whoever finds the lease run out takes it, and itself into the set."""
    may, write = campaign.claim, campaign.taken

    def joined(lease: Lease, own: Own) -> Lease:
        members = {member for member in lease.in_sync if member.node != own.name}
        return lease._replace(in_sync=tuple(sorted({*members, own.member})))

    def claim(lease: Lease, own: Own, unchanged_ms: int) -> Claim | None:
        return may(joined(lease, own), own, unchanged_ms)

    def taken(lease: Lease, own: Own, epoch: int) -> Lease:
        return write(joined(lease, own), own, epoch)

    with patch.object(campaign, "claim", claim), patch.object(campaign, "taken", taken):
        yield


@contextmanager
def candidate_removed_as_the_old_holder() -> Planting:
    """The old holder leaves the set, also if it is the candidate itself."""
    write = campaign.taken

    def taken(lease: Lease, own: Own, epoch: int) -> Lease:
        won = write(lease, own, epoch)
        if lease.holder is None:
            return won
        remaining = tuple(member for member in won.in_sync if member != lease.holder.member)
        return won._replace(in_sync=remaining) if remaining else won

    with patch.object(campaign, "taken", taken):
        yield


@contextmanager
def promised_before_the_lease_is_won() -> Planting:
    """A candidate promises the epoch that it is about to ask for."""
    settled = Campaign._settled

    def eager(self: Campaign, done: Done) -> None:
        stored = self._own.session.stored
        if stored is not None:
            self._promises.promise(stored.lease.epoch + 1)
        settled(self, done)

    with patch.object(Campaign, "_settled", eager):
        yield


@contextmanager
def old_version_read_as_not_applied() -> Planting:
    """A read that shows the old version is taken to say that the write was not applied."""
    settle = LeaseSession._settle_by

    def hasty(self: LeaseSession, found: Stored, now_ms: int) -> Settled | None:
        write = self._write
        if write is not None and write.base is not None and found.version == write.base.version:
            return self._settle(applied=False)
        return settle(self, found, now_ms)

    with patch.object(LeaseSession, "_settle_by", hasty):
        yield


@contextmanager
def lease_made_again_from_memory() -> Planting:
    """A master that finds the object gone makes it again, and asks nobody."""
    begin = Recreation.__init__

    def alone(self: Recreation, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._missing.clear()

    with patch.object(Recreation, "__init__", alone):
        yield


# -- logs and tables -------------------------------------------------------------------------------


@contextmanager
def no_truncation_on_rejoin() -> Planting:
    """A former master goes on behind its own tail."""

    def plan(own: Extent, **named: Any) -> Outcome:
        return InOrder(own.end)

    with patch.object(slave_protocol, "plan", plan):
        yield


@contextmanager
def table_cut_only_with_bytes() -> Planting:
    """An entry without bytes stays in the table if the log itself need not be cut."""
    decide = truncation.plan

    def plan(own: Extent, **named: Any) -> Outcome:
        outcome = decide(own, **named)
        at_end = isinstance(outcome, CutPlan) and outcome.point == own.end
        return InOrder(own.end) if at_end else outcome

    with patch.object(slave_protocol, "plan", plan):
        yield


@contextmanager
def entry_without_bytes_is_damage() -> Planting:
    """After a crash, an entry that begins above the log's end contradicts the log."""
    judge = recovered_table.contradiction

    def keep(table: Sequence[EpochStart], end: int) -> tuple[EpochStart, ...]:
        return tuple(table)

    def contradiction(table: Sequence[EpochStart], **facts: Any) -> str | None:
        if table and table[-1].start > facts["end"]:
            return f"epoch {table[-1].epoch} begins above the log's end"
        return judge(table, **facts)

    with (
        patch.object(recovered_table, "without_bytes_dropped", keep),
        patch.object(recovered_table, "contradiction", contradiction),
    ):
        yield


@contextmanager
def no_entry_for_an_empty_term() -> Planting:
    """A term that starts where the last one did gets no entry of its own."""
    add = owned.with_entry

    def with_entry(table: tuple[EpochStart, ...], entry: EpochStart) -> tuple[EpochStart, ...]:
        return table if table and table[-1].start == entry.start else add(table, entry)

    with patch.object(mastership, "with_entry", with_entry):
        yield


# -- inside a node ---------------------------------------------------------------------------------


@contextmanager
def log_taken_before_byte_0_is_free() -> Planting:
    """ha cuts, follows and confirms a new epoch while the broker still has the append lock."""
    take = Machine.take_lock

    def steal(self: Machine, byte: int, process: Process) -> bool:
        return (byte == 0 and process.name == "ha") or take(self, byte, process)

    with patch.object(Machine, "take_lock", steal):
        yield


@contextmanager
def deadline_kept_over_a_reboot() -> Planting:
    """What the page says of a lease counts in the next boot, too: its deadline is not over."""
    judge, still, answer = grant.granted, grant.stands, grant.may_answer
    kept: set[int] = set()

    def granted(slots: Slots, *, nonce: int, boot: tuple[int, int], served: int) -> int | None:
        epoch = slots.get(Slot.EPOCH)
        if grant._boot(slots) != boot and not slots.get(Slot.FENCED) and epoch > served:
            kept.add(nonce)
            return epoch
        return judge(slots, nonce=nonce, boot=boot, served=served)

    def stands(slots: Slots, *, epoch: int, nonce: int) -> bool:
        if nonce in kept and not slots.get(Slot.FENCED):
            return slots.get(Slot.EPOCH) == epoch
        return still(slots, epoch=epoch, nonce=nonce)

    def may_answer(slots: Slots, *, epoch: int, nonce: int, now_boot_ms: int) -> bool:
        if nonce in kept and not slots.get(Slot.FENCED):
            return now_boot_ms < slots.get(Slot.LEASE_DEADLINE)
        return answer(slots, epoch=epoch, nonce=nonce, now_boot_ms=now_boot_ms)

    with ExitStack() as stack:
        for name, planted in (("granted", granted), ("stands", stands), ("may_answer", may_answer)):
            stack.enter_context(patch.object(grant, name, planted))
        yield


class Planted(NamedTuple):
    """One mistake."""

    plant: Callable[[], AbstractContextManager[None]]
    symptom: str
    """Regular expression of how it shows itself first: found for another reason is by chance."""
    seed: int
    """One that finds it; another is looked for when it does not any more."""


FAULTS: Final[dict[str, Planted]] = {
    "added-member-not-waited-for": Planted(added_member_not_waited_for, "", 0),
    "quorum-instead-of-set": Planted(quorum_instead_of_set, "", 0),
    "acks-of-an-old-epoch-counted": Planted(acks_of_an_old_epoch_counted, "", 0),
    "ends-of-hello-counted": Planted(ends_of_hello_counted, "", 0),
    "unsynced-bytes-acknowledged": Planted(unsynced_bytes_acknowledged, "", 0),
    "candidate-goes-on-acknowledging": Planted(candidate_goes_on_acknowledging, "", 0),
    "term-confirms-its-whole-log": Planted(term_confirms_its_whole_log, "", 0),
    "shrunk-without-compare-and-set": Planted(shrunk_without_compare_and_set, "", 0),
    "shrunk-before-it-is-confirmed": Planted(shrunk_before_it_is_confirmed, "", 0),
    "added-below-the-confirm-offset": Planted(added_below_the_confirm_offset, "", 0),
    "no-growth-before-the-epoch-is-open": Planted(no_growth_before_the_epoch_is_open, "", 0),
    "two-incarnations-of-a-node": Planted(two_incarnations_of_a_node, "", 0),
    "promotion-of-a-non-member": Planted(promotion_of_a_non_member, "", 0),
    "candidate-removed-as-the-old-holder": Planted(candidate_removed_as_the_old_holder, "", 0),
    "promised-before-the-lease-is-won": Planted(promised_before_the_lease_is_won, "", 0),
    "old-version-read-as-not-applied": Planted(old_version_read_as_not_applied, "", 0),
    "no-truncation-on-rejoin": Planted(no_truncation_on_rejoin, "", 0),
    "entry-without-bytes-is-damage": Planted(entry_without_bytes_is_damage, "", 0),
    "lease-made-again-from-memory": Planted(lease_made_again_from_memory, "", 0),
    "table-cut-only-with-bytes": Planted(table_cut_only_with_bytes, "", 0),
    "no-entry-for-an-empty-term": Planted(no_entry_for_an_empty_term, "", 0),
    "log-taken-before-byte-0-is-free": Planted(log_taken_before_byte_0_is_free, "", 0),
    "deadline-kept-over-a-reboot": Planted(deadline_kept_over_a_reboot, "", 0),
}
