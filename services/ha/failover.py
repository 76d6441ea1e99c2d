"""What a replica may be, and what moves it from one to another (docs/replication.md, states). Pure.

One table for every state and every happening: a pair that it does not name changes nothing. Who
makes things happen is elsewhere (``replica``, ``following``, ``campaign``, ``mastership``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """What a replica is."""

    RECOVERING = "recovering"
    """Its log is being found; until the first event."""
    FOLLOWER = "follower"
    """It looks for a master, or has not been compared with it yet."""
    TRUNCATING = "truncating"
    """It cuts what the master does not have."""
    RESYNC = "resync"
    """Its store is emptied and copied anew."""
    CATCHUP = "catchup"
    """It copies, and is not in the in-sync set: it cannot become master."""
    IN_SYNC = "in-sync"
    """It copies, and is in the published set."""
    CANDIDATE = "candidate"
    """It wants the lease, and acknowledges nothing."""
    PROMOTING = "promoting"
    """It has the lease; its epoch is not open yet."""
    MASTER = "master"
    FENCED = "fenced"
    """Its term is over; what served it is being torn down."""
    HALTED = "halted"
    """Needs an operator; never electable."""


class Happening(Enum):
    """What moves a replica."""

    RECOVERED = "recovered"
    """Log and identity are whole."""
    DAMAGED = "damaged"
    """Log, table or identity files cannot be trusted, or written."""
    IN_ORDER = "in-order"
    """The master compared the logs: nothing is to be cut."""
    MUST_CUT = "must-cut"
    """The master compared the logs: this one ends in what the master does not have."""
    CUT = "cut"
    """The cut is done and durable."""
    MUST_RESYNC = "must-resync"
    """Nothing in common, or what is missing is gone from the master."""
    BELOW_CONFIRM = "below-confirm"
    """The cut would take confirmed bytes."""
    RESYNCED = "resynced"
    """The store is empty, under a new incarnation."""
    PUBLISHED = "published"
    """The published set has this replica, which copies."""
    REMOVED = "removed"
    """The published set does not have it."""
    LINK_LOST = "link-lost"
    """The link to the master is over, or the master is not master any more."""
    STANDS = "stands"
    """The lease may be taken, by this replica among others."""
    LOST = "lost"
    """The lease was not to be had."""
    WON = "won"
    """The lease is this replica's, with a new epoch."""
    OPENED = "opened"
    """The record that opens the epoch is confirmed."""
    DEPOSED = "deposed"
    """Deadline, another holder, a higher epoch, the broker's end, an error, a planned switch."""
    TORN_DOWN = "torn-down"
    """Nothing is served any more, and the append lock is ha's."""
    ORDERED_RESYNC = "ordered-resync"
    """An operator gives this store up."""
    ADOPTED = "adopted"
    """An operator gives a store from before the group to it."""


_COPYING: Final = (State.FOLLOWER, State.CATCHUP, State.IN_SYNC)
_REIGNING: Final = (State.PROMOTING, State.MASTER)

_MOVES: Final[Mapping[tuple[State, Happening], State]] = {
    (State.RECOVERING, Happening.RECOVERED): State.FOLLOWER,
    **{
        (state, Happening.DAMAGED): State.HALTED
        for state in State
        # A master that cannot go on is deposed first: what it serves is torn down in order.
        if state not in _REIGNING
    },
    (State.PROMOTING, Happening.DAMAGED): State.FENCED,
    (State.MASTER, Happening.DAMAGED): State.FENCED,
    (State.FOLLOWER, Happening.IN_ORDER): State.CATCHUP,
    (State.FOLLOWER, Happening.MUST_CUT): State.TRUNCATING,
    (State.FOLLOWER, Happening.MUST_RESYNC): State.RESYNC,
    (State.FOLLOWER, Happening.BELOW_CONFIRM): State.HALTED,
    (State.TRUNCATING, Happening.CUT): State.FOLLOWER,
    (State.RESYNC, Happening.RESYNCED): State.FOLLOWER,
    (State.CATCHUP, Happening.PUBLISHED): State.IN_SYNC,
    (State.IN_SYNC, Happening.REMOVED): State.CATCHUP,
    (State.CATCHUP, Happening.LINK_LOST): State.FOLLOWER,
    (State.IN_SYNC, Happening.LINK_LOST): State.FOLLOWER,
    **{(state, Happening.STANDS): State.CANDIDATE for state in _COPYING},
    (State.CANDIDATE, Happening.LOST): State.FOLLOWER,
    (State.CANDIDATE, Happening.WON): State.PROMOTING,
    (State.PROMOTING, Happening.OPENED): State.MASTER,
    **{(state, Happening.DEPOSED): State.FENCED for state in _REIGNING},
    (State.FENCED, Happening.TORN_DOWN): State.FOLLOWER,
    **{(state, Happening.ORDERED_RESYNC): State.RESYNC for state in (*_COPYING, State.HALTED)},
    (State.HALTED, Happening.ADOPTED): State.FOLLOWER,
}


def after(state: State, happening: Happening) -> State:
    """The state that follows; the same one where the happening means nothing to it."""
    return _MOVES.get((state, happening), state)


def copies(state: State) -> bool:
    """Whether a replica in this state follows, or looks for, a master."""
    return state in _COPYING


def reigns(state: State) -> bool:
    """Whether a replica in this state has a term."""
    return state in _REIGNING
