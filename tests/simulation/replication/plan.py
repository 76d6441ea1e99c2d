"""What one seed goes through: the group, how fast everything is, and which faults come when."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Final, NamedTuple

from shared.cluster.time_rules import TimeRules
from tests.simulation.replication.lease_object import Weather

TIMES: Final = TimeRules(
    lease_ms=1_500,
    renew_ms=250,
    request_timeout_ms=250,
    margin_ms=500,
    link_dead_ms=500,
    heartbeat_ms=150,
    lag_max_ms=900,
    ack_limit_ms=500,
    wait_random_ms=200,
    wait_rank_ms=250,
    broker_silent_ms=1_000,
)
"""Proportions of the local profile, twice as fast: more terms in a run."""


class Fault(Enum):
    """What happens to the group."""

    KILL = "kill one service"
    STOP = "stop one service for a while"
    STOP_NODE = "stop a node for a while; its clock goes on"
    POWER = "cut the power of a node"
    POWER_ALL = "cut the power of all nodes"
    CUT = "cut two nodes apart, in one direction or both"
    ISOLATE = "cut a node from the others and from the lease"
    LEASE_UNREACHABLE = "a node does not reach the lease"
    LEASE_DEAF = "a node gets no answers of the lease"
    LEASE_TOUCHED = "a third party changes the lease object"
    RESET_LINKS = "reset the connections of two nodes"
    SLOW_DISK = "a disk becomes slow for a while"
    SWITCH = "an operator switches the master"
    NEW_VOLUME = "a node gets an empty disk"
    DELETE_LEASE = "somebody deletes the lease object"
    CLOCK = "a boot-time clock leaps ahead"


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
)
RARE: Final = (
    Fault.POWER_ALL,
    Fault.LEASE_TOUCHED,
    Fault.NEW_VOLUME,
    Fault.DELETE_LEASE,
    Fault.CLOCK,
)


class Plan(NamedTuple):
    """Of one seed."""

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
    """Between two faults, on average."""
    duration_ms: int
    at_master: float
    """How often a fault is aimed at the node that holds the lease."""


def draw_plan(random: Random) -> Plan:
    """One of many."""
    nodes = random.choice((2, 3, 3))
    least = random.choice((1, 1, 2) if nodes == 2 else (1, 2, 2))
    bad = random.random() < 0.4
    weather = Weather(
        delay_max_ms=random.choice((2, 10, 60)),
        lost=random.choice((0.0, 0.05, 0.2)) if bad else 0.0,
        answer_lost=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
        late=random.choice((0.0, 0.05, 0.2)) if bad else 0.0,
        refused=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
    )
    faults = [fault for fault in USUAL if random.random() < 0.35]
    faults += [fault for fault in RARE if random.random() < 0.12]
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
        gap_ms=random.choice((120, 400, 1_000)),
        duration_ms=random.choice((3_000, 6_000, 10_000)),
        at_master=random.choice((0.3, 0.7)),
    )
