"""The states of a replica and the triggers between them (docs/replication.md, states). Pure.

``next_state`` is the whole table. A pair of state and trigger moves the replica, or is listed as
one that changes nothing, or cannot occur: then it raises, which ends the process. Triggers come
from ``replica``, ``following``, ``leadership``, ``campaign``, ``mastership``, ``switchover`` and
``admin_commands``.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """State of a replica."""

    RECOVERING = "recovering"
    """Its log is being recovered, until the first event."""
    FOLLOWER = "follower"
    """It has no master yet, or has not compared its log with the master's."""
    TRUNCATING = "truncating"
    """It cuts records that the master does not have."""
    RESYNC = "resync"
    """Its store is emptied and copied anew."""
    CATCHUP = "catchup"
    """It copies and is not in the in-sync set, so it cannot become master."""
    IN_SYNC = "in-sync"
    """It copies and is in the published in-sync set."""
    CANDIDATE = "candidate"
    """It tries to take the lease, and acknowledges nothing."""
    PROMOTING = "promoting"
    """It has the lease; its epoch is not open yet."""
    MASTER = "master"
    FENCED = "fenced"
    """Its term is over; the broker is being fenced and the append lock taken back."""
    HALTED = "halted"
    """It needs an operator, and is never electable."""


class Trigger(Enum):
    """Cause of a change of state."""

    RECOVERED = "recovered"
    """Log and identity are complete."""
    DAMAGED = "damaged"
    """Log, table or identity files cannot be trusted, or cannot be written."""
    IN_ORDER = "in-order"
    """The master compared the logs, and nothing has to be cut."""
    MUST_CUT = "must-cut"
    """The master compared the logs, and this one ends in records that the master does not have."""
    CUT = "cut"
    """The cut is done and durable."""
    MUST_RESYNC = "must-resync"
    """The logs have nothing in common, or the master no longer has the missing bytes."""
    RESYNCED = "resynced"
    """The store is empty, under a new incarnation."""
    PUBLISHED = "published"
    """The replica copies and is in the published set."""
    REMOVED = "removed"
    """The replica is not in the published set."""
    LINK_LOST = "link-lost"
    """The link to the master has ended, or the master is no longer master."""
    CAMPAIGNS = "campaigns"
    """The replica begins to campaign for the lease."""
    LOST = "lost"
    """The campaign failed."""
    WON = "won"
    """The replica has the lease, with a new epoch."""
    OPENED = "opened"
    """The record that opens the epoch is confirmed."""
    DEPOSED = "deposed"
    """Deadline, another holder, a higher epoch, loss of the broker, an error or a planned switch.
    """
    TORN_DOWN = "torn-down"
    """The broker serves nothing any more, and ha has the append lock."""
    ORDERED_RESYNC = "ordered-resync"
    """An operator discards this store."""
    ADOPTED = "adopted"
    """An operator adds a store from before the group to it."""


def next_state(state: State, trigger: Trigger) -> State:
    """Return the state that follows. Raises AssertionError for a pair that cannot occur."""
    match state, trigger:
        case State.RECOVERING, Trigger.RECOVERED:
            return State.FOLLOWER
        # A write can fail, and damage can be found, at any time.
        case State.PROMOTING | State.MASTER, Trigger.DAMAGED:
            return State.FENCED  # first the term is torn down in order
        case _, Trigger.DAMAGED:
            return State.HALTED
        case State.RECOVERING, _:
            raise _impossible(state, trigger)

        # Only a replica that copies has a link, and it begins as a follower.
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
            return state  # it was not copying

        case State.TRUNCATING, Trigger.CUT:
            return State.FOLLOWER
        case State.RESYNC, Trigger.RESYNCED:
            return State.FOLLOWER
        case State.HALTED, Trigger.CUT | Trigger.RESYNCED:
            return state  # it was halted during the cut or the resync

        # A replica leaves its master before it campaigns, so it is a follower.
        case State.FOLLOWER, Trigger.CAMPAIGNS:
            return State.CANDIDATE
        case State.CANDIDATE, Trigger.LOST:
            return State.FOLLOWER
        case State.CANDIDATE, Trigger.WON:
            return State.PROMOTING
        case State.HALTED, Trigger.LOST | Trigger.WON:
            return state  # the same event halted it: it gives up the lease at once

        case State.PROMOTING, Trigger.OPENED:
            return State.MASTER
        case State.PROMOTING | State.MASTER, Trigger.DEPOSED:
            return State.FENCED
        case State.FENCED | State.HALTED, Trigger.DEPOSED:
            return state  # a planned switch or damage has fenced it already
        case State.FENCED, Trigger.TORN_DOWN:
            return State.FOLLOWER
        case State.HALTED | State.RESYNC, Trigger.TORN_DOWN:
            return state  # it was halted, or a resync ordered, while the broker had the lock

        case State.FOLLOWER | State.CATCHUP | State.IN_SYNC, Trigger.ORDERED_RESYNC:
            return State.RESYNC
        case State.HALTED, Trigger.ORDERED_RESYNC:
            return State.RESYNC
        case _, Trigger.ORDERED_RESYNC:
            return state  # the command is refused
        case State.HALTED, Trigger.ADOPTED:
            return State.FOLLOWER
    raise _impossible(state, trigger)


def _impossible(state: State, trigger: Trigger) -> AssertionError:
    return AssertionError(f"{trigger.value} cannot happen to a replica that is {state.value}")


def copies(state: State) -> bool:
    """Return whether a replica in this state follows a master or waits for one."""
    return state in (State.FOLLOWER, State.CATCHUP, State.IN_SYNC)


def has_term(state: State) -> bool:
    """Return whether a replica in this state has the lease and a term."""
    return state in (State.PROMOTING, State.MASTER)
