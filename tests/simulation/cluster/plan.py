"""What a history consists of, drawn from its seed: broker groups, topics, programs, faults."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from tests.simulation.cluster.network import Weather
from tests.simulation.cluster.programs import Load, Reading


class Fault(Enum):
    """What happens to the cluster."""

    KILL_MASTER = "the master of a broker group is killed"
    STOP_MASTER = "the process of a master is stopped for a while"
    SWITCH = "a master is switched"
    LOSE_ALL = "all nodes of a broker group are killed"
    RESTART_NAMES = "a name service is killed and starts again"
    LOSE_NAMES = "all name services are killed, and start one after another"
    CUT_CLIENTS = "some clients do not reach some servers"
    CUT_BROKERS = "some brokers do not reach some name services"
    STORM = "the network loses, delays and repeats calls"
    SLOW = "the network and the disks are slow"
    DRAIN = "a broker group is drained, and perhaps opened again"
    REMOVE = "a broker group is drained, emptied and removed"
    ADD = "a broker group is added"
    RESIZE = "a topic gets more queues at a broker group"
    CRASH_CONSUMER = "a member is killed; another one comes"
    STALL_CONSUMER = "a member stands still, perhaps longer than its session"
    CHANGE_CONSUMERS = "a member leaves, and another one joins"
    CRASH_PRODUCER = "a producer is killed; another one comes"
    STALL_PRODUCER = "a producer stands still"


CHANGES_QUEUES: Final = (Fault.DRAIN, Fault.REMOVE, Fault.ADD, Fault.RESIZE)
"""Faults that change lists of queues: in half of the histories there are none."""
CLUSTER_FAULTS: Final = (
    *(Fault.KILL_MASTER,) * 4, *(Fault.STOP_MASTER,) * 2, *(Fault.SWITCH,) * 2,
    *(Fault.RESTART_NAMES,) * 3, *(Fault.CRASH_CONSUMER,) * 2, *(Fault.STALL_CONSUMER,) * 3,
    *(Fault.CHANGE_CONSUMERS,) * 3, *(Fault.STORM,) * 3,
    Fault.LOSE_ALL, Fault.LOSE_NAMES, Fault.CUT_CLIENTS, Fault.CUT_BROKERS, Fault.SLOW,
    Fault.CRASH_PRODUCER, Fault.STALL_PRODUCER,
)  # fmt: skip


class GroupPlan(NamedTuple):
    """One broker group."""

    name: str
    nodes: int
    topics: dict[str, int]
    """Its topics with their numbers of queues."""


class Plan(NamedTuple):
    """A whole history."""

    groups: Sequence[GroupPlan]
    spare: Sequence[GroupPlan]
    """Broker groups that may be added."""
    names: int
    """Number of name services."""
    loads: Sequence[Load]
    readings: Sequence[Reading]
    """One for each member at the beginning."""
    duration_s: float
    faults: Sequence[tuple[float, Fault]]
    """When they begin, from the start of the programs on."""
    storm: Weather


class Size(NamedTuple):
    """Bounds of what is drawn."""

    groups: tuple[int, int] = (3, 6)
    topics: tuple[int, int] = (1, 2)
    topic_groups: int | None = None
    """Number of broker groups of a topic; None: any."""
    queues_max: int = 3
    producers: tuple[int, int] = (4, 9)
    members: tuple[int, int] = (1, 3)
    """Members of each consumer group."""
    readers: tuple[int, int] = (1, 1)
    """Consumer groups of each topic."""
    duration_s: tuple[float, float] = (12.0, 30.0)
    long_share: float = 0.04
    """Share of the histories in which registrations expire."""
    faults: tuple[int, int] = (4, 14)
    pause_s: float = 2.0
    session_ms: tuple[int, ...] = (3000, 6000, 9000)


SMALL: Final = Size()
TINY: Final = Size(
    groups=(2, 3), topics=(1, 1), producers=(3, 5), members=(2, 3), duration_s=(8.0, 15.0),
    long_share=0.0, faults=(5, 9), pause_s=0.8,
)  # fmt: skip
"""For mistakes whose faults are named."""
MIDDLE: Final = Size(
    groups=(64, 64),
    topics=(16, 16),
    topic_groups=4,
    queues_max=2,
    producers=(30, 30),
    members=(2, 2),
    duration_s=(10.0, 10.0),
    long_share=0.0,
    faults=(40, 40),
    pause_s=4.0,
)
"""64 broker groups with few clients."""
LARGE: Final = MIDDLE._replace(
    topics=(500, 500),
    producers=(5000, 5000),
    members=(10, 10),
    duration_s=(20.0, 20.0),
    pause_s=20.0,
    session_ms=(30_000,),
)
"""64 broker groups, 5,000 producers and 5,000 consumers."""


def draw(seed: int, size: Size = SMALL, faults: Sequence[Fault] = ()) -> Plan:
    """Draw the history of a seed. faults: replace the kinds that are drawn from."""
    random = Random(seed)
    count = random.randint(*size.groups)
    names = [f"g{number}" for number in range(count + 2)]
    topics = [f"t{number}" for number in range(random.randint(*size.topics))]
    parts = {topic: _groups_of(topic, names[:count], size, random) for topic in topics}
    groups = [
        GroupPlan(
            name,
            1 if random.random() < 0.25 else 2,
            {t: random.randint(1, size.queues_max) for t in topics if name in parts[t]},
        )
        for name in names[:count]
    ]
    spare = [
        GroupPlan(
            name,
            random.choice((1, 2)),
            {random.choice(topics): random.randint(1, size.queues_max)},
        )
        for name in names[count:]
    ]
    is_long = random.random() < size.long_share
    duration_s = random.uniform(*size.duration_s) * (6 if is_long else 1)
    pause_s = size.pause_s * (4 if is_long else 1) * random.choice((0.5, 1, 1, 2))
    kinds = list(faults or CLUSTER_FAULTS)
    if not faults and random.random() < 0.5:
        kinds += CHANGES_QUEUES * 2
    return Plan(
        groups,
        spare,
        random.choice((1, 2, 2, 3)),
        [_load(topics, pause_s, random) for _ in range(random.randint(*size.producers))],
        [each for topic in topics for each in _readings(topic, size, random)],
        duration_s,
        sorted(
            (
                (random.uniform(0, duration_s), random.choice(kinds))
                for _ in range(random.randint(*size.faults))
            ),
            key=lambda each: each[0],
        ),
        _storm(random),
    )


def _groups_of(topic: str, names: Sequence[str], size: Size, random: Random) -> Sequence[str]:
    """Return the broker groups that have a topic: all, or some."""
    count = size.topic_groups
    if count is None:
        if random.random() < 0.6:
            return names
        count = random.randint(2, len(names))
    return random.sample(names, count)


def _load(topics: Sequence[str], pause_s: float, random: Random) -> Load:
    chosen = random.sample(topics, min(len(topics), random.randint(1, 2)))
    return Load(chosen, random.randint(1, 2), random.choice((0, 1)), pause_s)


def _readings(topic: str, size: Size, random: Random) -> list[Reading]:
    """Return the members that read a topic, in one or several consumer groups."""
    found = []
    for number in range(random.randint(*size.readers)):
        reading = Reading(
            [topic],
            f"c-{topic}-{number}",
            random.random() < 0.5,
            random.choice(size.session_ms),
            random.choice((1, 2, 4)),
            random.choice((0.0, 0.01, 0.2)),
            random.choice((4, 20, 200)),
        )
        found += [reading] * random.randint(*size.members)
    return found


def _storm(random: Random) -> Weather:
    loses, drops, delays, repeats = random.choices((0.0, 0.02, 0.1), k=4)
    return Weather(loses, drops, delays, repeats, random.choice((0.0, 0.1)))
