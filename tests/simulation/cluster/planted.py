"""Mistakes that the simulation has to find, planted for the length of a ``with``.

Each removes one rule from the tested code. They live here and nowhere in the product. What they
patch is named, so a rename breaks the test and not the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from services.broker.groups.active_groups import ActiveGroups
from services.broker.groups.coordinator import Coordinator
from services.broker.groups.membership import Membership
from services.names.core.completeness import Completeness
from services.names.core.table import Table
from shared.state import records
from shared.state.records import DrainRecord, StateRecord
from shared.state.state import BrokerState
from tests.simulation.cluster import term
from tests.simulation.cluster.group_log import GroupLog
from tests.simulation.cluster.plan import Fault
from tidemark.client import cluster_producer, route_calls, subscription
from tidemark.client.progress import QueueProgress
from tidemark.client.queue_choice import GroupQueue, writable_queues
from tidemark.client.routes import Routes, read_routes
from tidemark.offsets import Queue


class Planted(NamedTuple):
    """One mistake."""

    plant: Callable[[], AbstractContextManager[None]]
    symptom: str
    """Regular expression of the symptom; another one would be found by chance."""
    seed: int
    """A seed that finds the mistake; the test searches for another one if it no longer does."""
    faults: tuple[Fault, ...] = ()
    """What happens in these histories, for mistakes that need it."""


@contextmanager
def keys_pass_over_a_broker_group_without_master() -> Iterator[None]:
    """A key is hashed over the queues of the broker groups that have a master now."""

    def of_those_with_master(routes: Routes) -> tuple[GroupQueue, ...]:
        groups = tuple(each for each in routes.groups if each.master is not None)
        return writable_queues(routes._replace(groups=groups or routes.groups))

    with patch.object(cluster_producer, "writable_queues", of_those_with_master):
        yield


@contextmanager
def incomplete_route_taken_as_complete() -> Iterator[None]:
    """A client takes each route for one of all broker groups."""

    def complete(answer: Mapping[str, Any]) -> Routes:
        return read_routes(answer)._replace(complete=True)

    with patch.object(route_calls, "read_routes", complete):
        yield


@contextmanager
def name_service_complete_from_the_start() -> Iterator[None]:
    """A name service does not wait for the broker groups of its configuration."""
    with patch.object(Completeness, "complete", property(lambda self: True)):
        yield


@contextmanager
def lower_registration_replaces_a_higher_one() -> Iterator[None]:
    """A name service takes the registration that came last."""
    with patch.object(Table, "_check_order", lambda *_: None):
        yield


@contextmanager
def two_members_have_one_queue() -> Iterator[None]:
    """A queue is assigned to its next owner before the former one has given it up."""

    def assignment(self: Membership, name: str) -> list[Queue]:
        meant = [queue for queue, owner in self._target.items() if owner == name]
        return sorted({*self._owned.get(name, ()), *meant})

    with patch.object(Membership, "assignment", assignment):
        yield


@contextmanager
def commit_of_an_old_generation_accepted() -> Iterator[None]:
    """A commit is accepted whatever its generation."""
    with patch.object(Coordinator, "check_caller", lambda *_: None):
        yield


@contextmanager
def generations_repeat_after_a_failover() -> Iterator[None]:
    """Each master counts generations from the beginning."""

    def from_one(self: ActiveGroups) -> int:
        self._numbers += 1
        return self._numbers

    with patch.object(ActiveGroups, "_next_generation", from_one):
        yield


@contextmanager
def drain_forgotten_at_failover() -> Iterator[None]:
    """A new master does not read the drain from its log."""

    def replayed(log: GroupLog) -> BrokerState:
        state = BrokerState()
        for record in _without_drains(log.state_records()):
            state.apply(record)
        return state

    with patch.object(term, "replayed", replayed):
        yield


def _without_drains(bodies: Iterable[bytes]) -> Iterator[StateRecord]:
    for body in bodies:
        record = records.decode(body)
        if not isinstance(record, DrainRecord):
            yield record


@contextmanager
def messages_in_hand_committed() -> Iterator[None]:
    """A member commits what it has handed to the program, done or not."""
    with patch.object(QueueProgress, "position", QueueProgress.reached):
        yield


@contextmanager
def messages_of_a_key_handled_at_once() -> Iterator[None]:
    """A consumer with several handlers does not keep the order of keys."""
    with patch.object(subscription, "message_key", lambda message: None):
        yield


@contextmanager
def acknowledged_before_it_is_confirmed() -> Iterator[None]:
    """A send is answered before every later master has it."""

    async def at_once(*_: object) -> None:
        return

    with patch.object(term.Term, "_until_confirmed", at_once):
        yield


DRAINS: Final = (Fault.DRAIN, Fault.DRAIN, Fault.KILL_MASTER, Fault.SWITCH)
MASTERS: Final = (Fault.KILL_MASTER, Fault.SWITCH, Fault.STORM, Fault.RESTART_NAMES)
NAMES: Final = (Fault.RESTART_NAMES, Fault.LOSE_NAMES, Fault.CRASH_PRODUCER, Fault.CUT_BROKERS)
DISKS: Final = (*(Fault.SLOW,) * 3, *(Fault.KILL_MASTER,) * 3)
STALE: Final = (Fault.STOP_MASTER, Fault.STOP_MASTER, Fault.RESTART_NAMES, Fault.LOSE_NAMES)
MEMBERS: Final = (
    *(Fault.CRASH_CONSUMER,) * 3, *(Fault.CHANGE_CONSUMERS,) * 2, Fault.STALL_CONSUMER
)  # fmt: skip

FAULTS: Final[dict[str, Planted]] = {
    "keys-pass-over-a-broker-group-without-master": Planted(
        keys_pass_over_a_broker_group_without_master, "another queue in every list", 0, MASTERS
    ),
    "incomplete-route-taken-as-complete": Planted(
        incomplete_route_taken_as_complete, "another queue in every list", 0, NAMES
    ),
    "name-service-complete-from-the-start": Planted(
        name_service_complete_from_the_start, "another queue in every|UnknownTopic", 0, NAMES
    ),
    "lower-registration-replaces-a-higher-one": Planted(
        lower_registration_replaces_a_higher_one, "goes back to an earlier", 6, STALE
    ),
    "two-members-have-one-queue": Planted(
        two_members_have_one_queue, "has two owners in generation", 3, MEMBERS
    ),
    "commit-of-an-old-generation-accepted": Planted(
        commit_of_an_old_generation_accepted, "accepts a commit of generation", 0, MEMBERS
    ),
    "generations-repeat-after-a-failover": Planted(
        generations_repeat_after_a_failover, "has two owners in generation", 0, MASTERS
    ),
    "drain-forgotten-at-failover": Planted(
        drain_forgotten_at_failover, "the drained broker group", 0, DRAINS
    ),
    "messages-in-hand-committed": Planted(messages_in_hand_committed, "after the last", 0, MEMBERS),
    "messages-of-a-key-handled-at-once": Planted(
        messages_of_a_key_handled_at_once, "before it has handled", 2, MASTERS
    ),
    "acknowledged-before-it-is-confirmed": Planted(
        acknowledged_before_it_is_confirmed, "after the last|is not in", 3, DISKS
    ),
}
