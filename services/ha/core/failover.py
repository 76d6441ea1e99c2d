"""The states of a replica and what moves it between them (docs/replication.md, states). Pure.

``next_state`` is the whole table. A pair of state and trigger moves the replica, or is listed as
one that changes nothing, or cannot occur: then it raises, which ends the process. Triggers come
from ``replica``, ``following``, ``leadership``, ``campaign``, ``mastership`` and ``operator``.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What a replica is."""

    RECOVERING = "recovering"
    """Its log is being recovered; until the first event."""
    FOLLOWER = "follower"
    """It searches for a master, or has not been compared with it yet."""
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


class Trigger(Enum):
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


def next_state(state: State, trigger: Trigger) -> State:
    """The state that follows. Raises AssertionError for a pair that cannot occur."""
    match state, trigger:
        case State.RECOVERING, Trigger.RECOVERED:
            return State.FOLLOWER
        # A write can fail, and damage can be found, at any time.
        case State.PROMOTING | State.MASTER, Trigger.DAMAGED:
            return State.FENCED  # what the term serves is torn down in order first
        case _, Trigger.DAMAGED:
            return State.HALTED
        case State.RECOVERING, _:
            raise _impossible(state, trigger)

        # Only a replica that copies has a link, and one that begins to is a follower.
        case State.FOLLOWER, Trigger.IN_ORDER:
            return State.CATCHUP
        case State.FOLLOWER, Trigger.MUST_CUT:
            return State.TRUNCATING
        case State.FOLLOWER, Trigger.MUST_RESYNC:
            return State.RESYNC
        case State.CATCHUP, Trigger.PUBLISHED:
            return State.IN_SYNC
        case State.IN_SYNC, Trigger.REMOVED:
            return State.CATCHUP
        case State.CATCHUP | State.IN_SYNC, Trigger.LINK_LOST:
            return State.FOLLOWER
        case _, Trigger.LINK_LOST:
            return state  # it copied nothing

        case State.TRUNCATING, Trigger.CUT:
            return State.FOLLOWER
        case State.RESYNC, Trigger.RESYNCED:
            return State.FOLLOWER
        case State.HALTED, Trigger.CUT | Trigger.RESYNCED:
            return state  # it was halted while the cut or the resync was under way

        # A replica leaves its master before it campaigns, and so is a follower.
        case State.FOLLOWER, Trigger.STANDS:
            return State.CANDIDATE
        case State.CANDIDATE, Trigger.LOST:
            return State.FOLLOWER
        case State.CANDIDATE, Trigger.WON:
            return State.PROMOTING
        case State.HALTED, Trigger.LOST | Trigger.WON:
            return state  # the same event halted it: what it has won, it gives up at once

        case State.PROMOTING, Trigger.OPENED:
            return State.MASTER
        case State.PROMOTING | State.MASTER, Trigger.DEPOSED:
            return State.FENCED
        case State.FENCED | State.HALTED, Trigger.DEPOSED:
            return state  # a planned switch or damage has fenced it before
        case State.FENCED, Trigger.TORN_DOWN:
            return State.FOLLOWER
        case State.HALTED | State.RESYNC, Trigger.TORN_DOWN:
            return state  # it was halted, or a resync ordered, while the broker had the lock

        case State.FOLLOWER | State.CATCHUP | State.IN_SYNC, Trigger.ORDERED_RESYNC:
            return State.RESYNC
        case State.HALTED, Trigger.ORDERED_RESYNC:
            return State.RESYNC
        case _, Trigger.ORDERED_RESYNC:
            return state  # the order is refused
        case State.HALTED, Trigger.ADOPTED:
            return State.FOLLOWER
    raise _impossible(state, trigger)


def _impossible(state: State, trigger: Trigger) -> AssertionError:
    return AssertionError(f"{trigger.value} cannot happen to a replica that is {state.value}")


def copies(state: State) -> bool:
    """Whether a replica in this state follows, or looks for, a master."""
    return state in (State.FOLLOWER, State.CATCHUP, State.IN_SYNC)


def has_term(state: State) -> bool:
    """Whether a replica in this state has the lease and a term."""
    return state in (State.PROMOTING, State.MASTER)
