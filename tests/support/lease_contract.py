"""What every store of a lease must do: tests that the modules of the stores inherit."""

from __future__ import annotations

from typing import Final

from services.ha.core.events import LeaseOutcome
from services.ha.lease.interface import LeaseStore, Outcome
from services.ha.lease.value import Holder, Lease, Member, Stored
from tidemark.offsets import Epoch

FREE: Final = Lease(None, Epoch(1), (Member("a", "1f" * 16),), 1, 1, ("a", "b"))
HOLDER: Final = Holder("a", "1f" * 16, "0123456789abcdef")
RENEWALS: Final = 20
"""More than the versions that any store keeps."""


async def made(lease: LeaseStore) -> Stored:
    """Create the lease; return what is stored."""
    return stored_by(await lease.create(FREE))


def stored_by(outcome: Outcome) -> Stored:
    """Return what a write stored."""
    assert outcome.outcome is LeaseOutcome.APPLIED, outcome
    assert outcome.stored is not None
    return outcome.stored


async def read(lease: LeaseStore) -> Stored:
    """Return the lease, which is there."""
    outcome = await lease.get()
    assert outcome.outcome is LeaseOutcome.FOUND, outcome
    assert outcome.stored is not None
    return outcome.stored


class LeaseContract:
    """Tests of a fixture ``lease``: a store without its lease."""

    async def test_what_was_written_last_is_found(self, lease: LeaseStore) -> None:
        assert await lease.get() == Outcome(LeaseOutcome.ABSENT)
        first = await made(lease)
        assert await read(lease) == first
        held = FREE._replace(holder=HOLDER, epoch=Epoch(2), renewed=7, handover_to="b")
        second = stored_by(await lease.put(held, first))
        assert second == await read(lease)
        assert (second.lease, second.uid) == (held, first.uid)
        assert second.version != first.version
        free = FREE._replace(epoch=Epoch(2))
        assert stored_by(await lease.put(free, second)).lease == free

    async def test_a_write_on_a_version_that_was_replaced_changes_nothing(
        self, lease: LeaseStore
    ) -> None:
        first = await made(lease)
        second = stored_by(await lease.put(FREE._replace(renewed=1), first))
        assert await lease.put(FREE._replace(renewed=2), first) == Outcome(LeaseOutcome.CONFLICT)
        assert await read(lease) == second

    async def test_a_version_that_was_replaced_long_ago_is_refused(self, lease: LeaseStore) -> None:
        first = stored = await made(lease)
        for renewed in range(RENEWALS):
            stored = stored_by(await lease.put(FREE._replace(renewed=renewed + 1), stored))
        assert await lease.put(FREE, first) == Outcome(LeaseOutcome.CONFLICT)

    async def test_a_lease_that_is_there_is_not_created(self, lease: LeaseStore) -> None:
        first = await made(lease)
        assert await lease.create(FREE._replace(epoch=Epoch(9))) == Outcome(LeaseOutcome.CONFLICT)
        assert await read(lease) == first
