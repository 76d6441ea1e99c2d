"""Planted mistakes about the lease, about logs and epoch tables, and about the append lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from services.broker.replication import grouped_store
from services.ha.core import campaign, mastership, replica_context, slave_protocol, truncation
from services.ha.core.campaign import Campaign, Claim
from services.ha.core.divergence import Extent
from services.ha.core.events import Done
from services.ha.core.recreation import Recreation
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.truncation import CutPlan, InOrder, Outcome
from services.ha.lease.session import LeaseSession, WriteOutcome
from services.ha.lease.value import Lease, Stored
from shared.cluster import grant
from shared.cluster.grant import Slots
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart

Planting = Iterator[None]


# -- the lease -------------------------------------------------------------------------------------


@contextmanager
def promotion_of_a_non_member() -> Planting:
    """Any node that finds the lease expired takes it and adds itself to the set."""
    may, write = campaign.claim, campaign.taken

    def joined(lease: Lease, own: ReplicaContext) -> Lease:
        members = {member for member in lease.in_sync if member.node != own.name}
        return lease._replace(in_sync=tuple(sorted({*members, own.member})))

    def claim(lease: Lease, own: ReplicaContext, unchanged_ms: int) -> Claim | None:
        return may(joined(lease, own), own, unchanged_ms)

    def taken(lease: Lease, own: ReplicaContext, epoch: int) -> Lease:
        return write(joined(lease, own), own, epoch)

    with patch.object(campaign, "claim", claim), patch.object(campaign, "taken", taken):
        yield


@contextmanager
def candidate_removed_as_the_old_holder() -> Planting:
    """The old holder leaves the set, also if it is the candidate itself."""
    write = campaign.taken

    def taken(lease: Lease, own: ReplicaContext, epoch: int) -> Lease:
        won = write(lease, own, epoch)
        if lease.holder is None:
            return won
        remaining = tuple(member for member in won.in_sync if member != lease.holder.member)
        return won._replace(in_sync=remaining) if remaining else won

    with patch.object(campaign, "taken", taken):
        yield


@contextmanager
def promised_before_the_lease_is_won() -> Planting:
    """A candidate promises the epoch that it is about to request."""
    settled = Campaign._settled

    def eager(self: Campaign, done: Done) -> None:
        stored = self._context.session.stored
        if stored is not None:
            self._promises.promise(stored.lease.epoch + 1)
        settled(self, done)

    with patch.object(Campaign, "_settled", eager):
        yield


@contextmanager
def old_version_read_as_not_applied() -> Planting:
    """A read of the old version counts as proof that the write was not applied."""
    settle = LeaseSession._settle_by

    def hasty(self: LeaseSession, found: Stored, now_ms: int) -> WriteOutcome | None:
        write = self._write
        if write is not None and write.base is not None and found.version == write.base.version:
            return self._settle(applied=False)
        return settle(self, found, now_ms)

    with patch.object(LeaseSession, "_settle_by", hasty):
        yield


@contextmanager
def lease_made_again_from_memory() -> Planting:
    """A master that finds the object missing creates it again without promises."""
    begin = Recreation.__init__

    def alone(self: Recreation, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._missing.clear()

    with patch.object(Recreation, "__init__", alone):
        yield


# -- logs and tables -------------------------------------------------------------------------------


@contextmanager
def no_truncation_on_rejoin() -> Planting:
    """A former master keeps its own tail and appends after it."""

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
def no_entry_for_an_empty_term() -> Planting:
    """A term that starts where the previous one did gets no entry of its own."""
    add = replica_context.with_entry

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
    """Grant and deadline in the page stay valid in the next boot."""
    judge, still, answer = grant.granted, grant.is_valid, grant.may_answer
    kept: set[int] = set()

    def granted(slots: Slots, *, nonce: int, boot: tuple[int, int], served: int) -> int | None:
        epoch = slots.get(Slot.EPOCH)
        if grant._boot(slots) != boot and not slots.get(Slot.FENCED) and epoch > served:
            kept.add(nonce)
            return epoch
        return judge(slots, nonce=nonce, boot=boot, served=served)

    def is_valid(slots: Slots, *, epoch: int, nonce: int) -> bool:
        if nonce in kept and not slots.get(Slot.FENCED):
            return slots.get(Slot.EPOCH) == epoch
        return still(slots, epoch=epoch, nonce=nonce)

    def may_answer(slots: Slots, *, epoch: int, nonce: int, now_boot_ms: int) -> bool:
        if nonce in kept and not slots.get(Slot.FENCED):
            return now_boot_ms < slots.get(Slot.LEASE_DEADLINE)
        return answer(slots, epoch=epoch, nonce=nonce, now_boot_ms=now_boot_ms)

    with ExitStack() as stack:
        stack.enter_context(patch.object(grouped_store, "granted", granted))
        stack.enter_context(patch.object(grant, "is_valid", is_valid))
        stack.enter_context(patch.object(grant, "may_answer", may_answer))
        yield
