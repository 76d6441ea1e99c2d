"""The interface of a lease store: get, put and create, each with an outcome.

``directory`` keeps the lease on one machine, ``etcd`` in an etcd cluster, ``kubernetes`` in the API
server of a Kubernetes cluster. All write by compare-and-set only, and report *unknown* if they do
not know the outcome; ``session`` has the rules for it. Step before: the effects of the replica.
Step after: ``LeaseAnswered``, back to it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.value import Lease, Stored


class Outcome(NamedTuple):
    """Outcome of one call."""

    outcome: LeaseOutcome
    stored: Stored | None = None
    reason: str = ""
    """Of an unknown outcome: what happened, with the limit that was reached."""


class LeaseStore(Protocol):
    """The object of one group. At most one call at a time; a cancelled one may still be applied."""

    async def get(self) -> Outcome:
        """Return found, absent or unknown; never from a cache."""
        ...

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Replace base; return applied, conflict, absent or unknown."""
        ...

    async def create(self, lease: Lease) -> Outcome:
        """Create the object; return applied, conflict or unknown."""
        ...

    async def announce(self, role: str) -> str:
        """Show the role of this node (master, slave) after a change; this does not fence anything.

        Returns the reason of a failure, empty on success.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


async def carry_out(
    store: LeaseStore, effect: LeaseGet | LeasePut | LeaseCreate, timeout_ms: int
) -> LeaseAnswered:
    """Send the request of the effect; the outcome is unknown after timeout_ms."""
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
