"""Where a lease is kept: get, put and create, each with an end. The seam of two implementations.

``directory`` keeps it on one machine, ``kubernetes`` in a cluster's API server. Both write by
compare-and-set only, and both say *unknown* where they do not know: the rules over that are in
``session``. Before: the effects of the replica. After: ``LeaseAnswered``, back into it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.value import Lease, Stored


class Outcome(NamedTuple):
    """How one call ended."""

    outcome: LeaseOutcome
    stored: Stored | None = None
    reason: str = ""
    """Of an unknown one: what happened, with the limit that was reached."""


class LeaseStore(Protocol):
    """The object of one group. At most one call at a time; a cancelled one may still be applied."""

    async def get(self) -> Outcome:
        """Found, absent or unknown; never from a cache."""
        ...

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Replace base: applied, conflict, absent or unknown."""
        ...

    async def create(self, lease: Lease) -> Outcome:
        """Make the object: applied, conflict or unknown."""
        ...

    async def announce(self, role: str) -> str:
        """Show which role (master, slave) this node has, after the fact; never a fence.

        Returns why it could not be done, empty if it was.
        """
        ...

    async def close(self) -> None:
        """Give connections and threads back."""
        ...


async def carry_out(
    store: LeaseStore, effect: LeaseGet | LeasePut | LeaseCreate, timeout_ms: int
) -> LeaseAnswered:
    """Make the request that the effect asks for; unknown after timeout_ms."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            match effect:
                case LeaseGet():
                    ended = await store.get()
                case LeasePut():
                    ended = await store.put(effect.lease, effect.base)
                case LeaseCreate():
                    ended = await store.create(effect.lease)
    except TimeoutError:
        ended = Outcome(LeaseOutcome.UNKNOWN, reason=f"no answer within {timeout_ms} ms")
    return LeaseAnswered(effect.request, ended.outcome, ended.stored, ended.reason)
