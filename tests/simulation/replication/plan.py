"""The plan of one seed: the group, the speed of everything, and which faults come when."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Final, NamedTuple

from shared.cluster.time_rules import TimeRules
from tests.simulation.replication.lease_object import Weather
from tidemark.formats.checkpoint import Slot

TIMES: Final = TimeRules(
    lease_ms=1_000,
    renew_ms=200,
    request_timeout_ms=200,
    margin_ms=300,
    link_dead_ms=300,
    heartbeat_ms=100,
    lag_max_ms=600,
    ack_limit_ms=350,
    wait_random_ms=150,
    wait_rank_ms=150,
    client_timeout_ms=1_000,
    broker_silent_ms=700,
)
"""Proportions of the local profile, three times as fast, for more terms in a run."""


WINDOW_SIZE: Final = 8_000
"""Window of bytes under way to a slave: less than the lag of a slow one, more than a record."""
GENTLE_SIZE: Final = 3_000


class Fault(Enum):
    """A kind of fault."""

    KILL = "kill one service"
    STOP = "stop one service for a while"
    STOP_NODE = "stop a node for a while; its clock goes on"
    STALL = "stop broker or reput of a node for longer than a lease"
    POWER = "cut the power of a node"
    POWER_ALL = "cut the power of all nodes"
    CUT = "cut two nodes apart, in one direction or both"
    ISOLATE = "cut a node from the others and from the lease"
    LEASE_UNREACHABLE = "a node does not reach the lease"
    LEASE_DEAF = "a node gets no answers of the lease"
    LEASE_TOUCHED = "a third party changes the lease object"
    RESET_LINKS = "reset the connections of two nodes"
    FULL_DISK = "a disk is full for a while"
    SLOW_DISK = "a disk becomes slow for a while"
    FAILED_SYNC = "syncs of a disk fail for a while"
    SWITCH = "an operator switches the master"
    LATE_APPEND = "a broker is stopped within an append, and its node is switched away from"
    AT_SLOT = "something happens to a node right when a slot of its page is stored"
    AT_FILE = "something happens to a node right when a file of its ha is replaced or removed"
    LATE_CHANGE = "a change of the in-sync set reaches the lease late, and its member is cut off"
    WINNER = "something happens to the next one that takes the lease, while it becomes master"
    CHANGE = "something happens to the master as soon as the in-sync set changes"
    END = "ha is shut down cleanly, and started again"
    END_OTHER = "broker or reput is shut down cleanly, and started again"
    END_NODE = "all services of a node are shut down cleanly, and started again"
    PAUSE = "an operator pauses automatic failover, until all is healed"
    REMOVE = "an operator removes a member of the in-sync set"
    NODES = "an operator removes a node from the group, or adds it again"
    REFUSED = "an operator gives a command that must be refused"
    RESYNC = "an operator has a node copied anew"
    NEW_VOLUME = "a node gets an empty disk"
    DELETE_LEASE = "the lease object is deleted, now or when it is taken next"
    CLOCK = "a boot-time clock leaps ahead"
    HASTY = "a node takes the lease to have run out, whatever its clock says"


USUAL: Final = (
    Fault.KILL,
    Fault.STOP,
    Fault.STOP_NODE,
    Fault.POWER,
    Fault.CUT,
    Fault.ISOLATE,
    Fault.LEASE_UNREACHABLE,
    Fault.LEASE_DEAF,
    Fault.RESET_LINKS,
    Fault.SLOW_DISK,
    Fault.SWITCH,
    Fault.END,
    Fault.END_OTHER,
    Fault.END_NODE,
    Fault.WINNER,
    Fault.CHANGE,
    Fault.AT_SLOT,
    Fault.AT_FILE,
    Fault.LATE_CHANGE,
)
SUDDEN: Final = (
    Fault.KILL,
    Fault.STOP,
    Fault.POWER,
    Fault.ISOLATE,
    Fault.RESET_LINKS,
    Fault.CUT,
    Fault.STALL,
    Fault.SLOW_DISK,
    Fault.SWITCH,
)
"""Faults of a winner, or of a master whose set changes."""
SEVERE: Final = (
    Fault.STOP,
    Fault.STOP_NODE,
    Fault.POWER,
    Fault.ISOLATE,
    Fault.WINNER,
    Fault.AT_SLOT,
    Fault.AT_FILE,
)
"""Faults that usually cost a master its lease."""
WATCHED: Final = (
    Slot.SERVING_EPOCH,
    Slot.EPOCH_RECORD_END,
    Slot.GENERATION,
    Slot.WRITTEN,
    Slot.FLUSHED,
    Slot.CONFIRM,
    Slot.ROLE,
    Slot.EPOCH,
    Slot.GRANTED_TO,
    Slot.FENCED,
    Slot.LEASE_DEADLINE,
    Slot.DISPATCHED,
    Slot.DISPATCHED_DURABLE,
    Slot.REPUT_GENERATION,
    Slot.BROKER_NONCE,
    Slot.BROKER_STATE,
    Slot.IN_SYNC_SIZE,
    Slot.SENDS_HELD,
)
"""Slots at which AT_SLOT strikes."""
RARE: Final = (
    Fault.POWER_ALL,
    Fault.LEASE_TOUCHED,
    Fault.FULL_DISK,
    Fault.FAILED_SYNC,
    Fault.STALL,
    Fault.PAUSE,
    Fault.REFUSED,
    Fault.REMOVE,
    Fault.RESYNC,
    Fault.NEW_VOLUME,
    Fault.DELETE_LEASE,
    Fault.CLOCK,
    Fault.HASTY,
)


THEMES: Final = (
    (Fault.SWITCH, Fault.POWER, Fault.RESET_LINKS, Fault.STOP, Fault.SLOW_DISK),
    (Fault.LATE_CHANGE, Fault.CUT, Fault.RESET_LINKS),
    (Fault.LATE_CHANGE, Fault.LEASE_DEAF, Fault.LEASE_UNREACHABLE, Fault.CUT),
    (Fault.AT_FILE, Fault.WINNER, Fault.KILL, Fault.SWITCH),
    (Fault.AT_FILE, Fault.POWER, Fault.POWER_ALL),
    (Fault.AT_SLOT, Fault.WINNER, Fault.CHANGE),
    (Fault.SWITCH, Fault.AT_SLOT, Fault.SLOW_DISK),
    (Fault.RESYNC, Fault.AT_FILE, Fault.POWER),
    (Fault.RESYNC, Fault.KILL, Fault.END_NODE),
    (Fault.DELETE_LEASE, Fault.NEW_VOLUME),
    (Fault.DELETE_LEASE, Fault.KILL, Fault.ISOLATE),
    (Fault.KILL, Fault.END, Fault.END_OTHER),
    (Fault.STOP, Fault.STOP_NODE, Fault.ISOLATE),
    (Fault.STOP,),
    (Fault.HASTY, Fault.CUT, Fault.WINNER),
    (Fault.SWITCH, Fault.LEASE_DEAF, Fault.LEASE_TOUCHED, Fault.KILL),
    (Fault.SWITCH, Fault.STALL, Fault.LATE_APPEND),
    (Fault.STALL, Fault.SLOW_DISK, Fault.ISOLATE),
    (Fault.FAILED_SYNC, Fault.SWITCH, Fault.KILL),
    (Fault.FAILED_SYNC, Fault.AT_FILE, Fault.POWER),
    (Fault.FULL_DISK, Fault.SWITCH, Fault.AT_FILE),
    (Fault.REMOVE, Fault.CHANGE, Fault.SWITCH, Fault.CUT),
    (Fault.POWER, Fault.WINNER, Fault.SLOW_DISK),
    (Fault.RESYNC, Fault.NEW_VOLUME, Fault.SWITCH),
    (Fault.PAUSE, Fault.SWITCH, Fault.END_NODE),
    (Fault.REFUSED, Fault.SWITCH, Fault.ISOLATE),
)
"""Combinations of faults whose joint effects would be hidden among many other faults."""
OPERATED: Final = (
    *(Fault.SWITCH, Fault.SWITCH, Fault.END, Fault.END_OTHER, Fault.END_NODE),
    *(Fault.PAUSE, Fault.REMOVE, Fault.RESYNC, Fault.RESYNC),
)
"""Frequent operations that must succeed whatever happens at the same time."""
CLOCK_FAULTS: Final = (Fault.CLOCK, Fault.HASTY)
"""Faults after which reads may be stale, so fewer rules are checked."""
ROUNDS_EVERY: Final = 4
"""Every fourth seed has rounds: few faults, and a whole group after each round."""
ROUNDS: Final = 6
OFTEN_ENOUGH: Final = (Fault.HASTY, Fault.RESYNC, Fault.NEW_VOLUME)
"""Rare faults that need other faults to show an effect, so they are drawn more often."""
REFUSED_COMMANDS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("failover", {"old_master_stopped": "true"}),
    ("failover", {"group": "another", "old_master_stopped": "true"}),
    ("failover", {"group": "g0"}),
    ("failover", {"group": "g0", "old_master_stopped": "true", "to": "n9"}),
    ("switchover", {"to": "n9"}),
    ("remove-member", {"node": "n9"}),
    ("resync", {}),
    ("resync", {"group": "another"}),
    ("adopt", {}),
    ("unheard-of", {}),
)
"""Commands with arguments that must be refused in every state."""
SERVICES: Final = ("ha", "broker", "reput")


class Left(NamedTuple):
    """Services of one node that are not healed, while the other nodes are enough."""

    services: tuple[str, ...]
    at_master: bool
    """Whether the node holds the lease."""
    gone: bool
    """Whether the services are gone for good, or else paused."""


class Plan(NamedTuple):
    """The plan of one seed."""

    nodes: int
    min_in_sync: int
    preemption: float
    delay_max_us: int
    spike: float
    drift: float
    disk_us: tuple[int, ...]
    sends_per_s: float
    weather: Weather
    faults: tuple[Fault, ...]
    gap_ms: int
    """Average time between two faults."""
    duration_ms: int
    left: Left | None
    at_master: float
    """Share of faults that are aimed at the node that holds the lease."""
    lease_in_directory: bool = False
    """The lease is kept in a directory that all nodes mount, and else in Kubernetes."""


def draw_plan(random: Random) -> Plan:
    """Draw a plan."""
    nodes = random.choice((2, 3, 3))
    least = random.choice((1, 1, 2) if nodes == 2 else (1, 2, 2))
    bad = random.random() < 0.5
    weather = Weather(
        delay_max_ms=random.choice((2, 10, 60)),
        lost=random.choice((0.0, 0.05, 0.2)) if bad else 0.0,
        answer_lost=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
        late=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
        refused=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
    )
    usual = USUAL if random.random() < 0.6 else SEVERE
    faults = [fault for fault in usual if random.random() < 0.35]
    faults += [
        fault for fault in RARE if random.random() < (0.25 if fault in OFTEN_ENOUGH else 0.12)
    ]
    if Fault.DELETE_LEASE in faults and random.random() < 0.5:
        faults.append(Fault.HASTY)
    return Plan(
        nodes=nodes,
        min_in_sync=least,
        preemption=random.choice((0.01, 0.05, 0.25)),
        delay_max_us=random.choice((300, 2_000, 20_000)),
        spike=random.choice((0.0, 0.0, 0.002, 0.02)),
        drift=random.choice((0.0, 0.01)),
        disk_us=tuple(random.choice((200, 2_000, 15_000)) for _ in range(nodes)),
        sends_per_s=random.choice((4.0, 15.0, 40.0)),
        weather=weather,
        faults=tuple(faults),
        gap_ms=random.choice((150, 400, 900)),
        duration_ms=random.choice((3_000, 6_000, 12_000)),
        at_master=random.choice((0.3, 0.6, 0.9)),
        left=_draw_left(random) if nodes > least and random.random() < 0.4 else None,
    )


def has_lease_in_directory(seed: int) -> bool:
    """Whether the groups of a seed keep their lease in a directory: four adjacent seeds out of
    every twelve."""
    return seed // 4 % 3 == 1


def theme_of(seed: int) -> tuple[Fault, ...]:
    """The only faults of a seed. Every third seed has no theme; its faults come from its plan."""
    turn, place = divmod(seed, 3)
    return THEMES[(2 * turn + place - 1) % len(THEMES)] if place else ()


def _draw_left(random: Random) -> Left:
    services = tuple(service for service in SERVICES if random.random() < 0.5)
    return Left(
        services or (random.choice(SERVICES),),
        at_master=random.random() < 0.7,
        gone=random.random() < 0.4,
    )
