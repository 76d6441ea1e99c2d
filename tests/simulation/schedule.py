"""The possible events of a node between two starts, and their probabilities: drawn from a seed.

Sizes are small so that every border is crossed often: of pages, log files, queue files and index
files. Message sizes are sometimes all equal, so that a record written after a cut ends where one
that was cut used to end.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Final, NamedTuple

from shared.files.store_dir import StoreConfig
from tests.simulation.machine import Log, NewOne

TOPICS: Final = ("orders", "payments-with-a-longer-name", "%RETRY%billing", "t" * 127)
WORDS: Final = ("red", "green", "blue", "Aa", "BB")  # the last two have equal hashes

RECORD_EXTRA: Final = 400
"""More than a record needs besides its body."""


class Ending(Enum):
    """End of a start."""

    POWER_CUT = "power cut"
    KILL = "SIGKILL"
    STOP = "SIGTERM"


class Step(Enum):
    """One action of the processes, or of the outside world."""

    SEND = "send"
    COMMIT = "commit"
    FLUSH = "flush"
    DISPATCH = "dispatch"
    SYNC = "sync"
    PREPARE = "prepare_next"
    RESTART_REPUT = "restart reput"
    RESTART_BROKER = "restart broker"
    FILL_DISK = "fill disk"
    FREE_DISK = "free disk"


_WEIGHTS: Final = {
    Step.SEND: 40,
    Step.FLUSH: 14,
    Step.DISPATCH: 20,
    Step.SYNC: 9,
    Step.PREPARE: 4,
    Step.RESTART_REPUT: 3,
    Step.RESTART_BROKER: 2,
}


class Tampering(Enum):
    """Actions of an operator, or of a bad disk, on a store while nothing runs."""

    NO_QUEUES = "consumequeue/ deleted"
    NO_QUEUE = "one queue or the index deleted"
    NO_INDEX = "index/ deleted"
    NO_FILE = "one derived file deleted"
    EMPTY_FILE = "one derived file empty"
    OLD_CHECKPOINT = "checkpoint restored from an old copy"
    NO_CHECKPOINT = "checkpoint deleted"


class Scale(NamedTuple):
    """The shape of one run."""

    config: StoreConfig
    log: Log
    rounds: int
    steps_max: int
    topics: tuple[str, ...]
    queues: int
    body_size_max: int
    equal_sizes: bool
    fills_disk: bool
    fails_syncs: bool
    batch_topics: frozenset[str] = frozenset()
    """Topics with batch queues."""


def draw_scale(random: Random) -> Scale:
    """Pick sizes and probabilities."""
    slots, entries = random.choice(((3, 24), (20, 60), (50, 400)))
    body_size_max = random.choice((40, 300, 300, 3000))
    return Scale(
        config=StoreConfig(
            commit_log_file_size=random.choice((16, 16, 32, 64)) << 10,
            consume_queue_file_size=20 * random.choice((3, 7, 30, 300)),
            index_slots=slots,
            index_entries=entries,
            record_crc=random.random() < 0.7,
            mapped_files_max=random.choice((1, 3, 64)),
            queue_files_mapped_max=random.choice((2, 512)),
            visible_after="written" if random.random() < 0.2 else "flushed",
        ),
        log=Log(
            pool_size=random.choice((0, 4096, 16384, 1 << 20)),
            warm_up=random.random() < 0.2,
            lock_memory=random.random() < 0.2,
        ),
        rounds=random.randint(2, 4),
        steps_max=random.choice((12, 30, 60)),
        topics=TOPICS[: random.randint(1, len(TOPICS))],
        queues=random.randint(1, 3),
        body_size_max=body_size_max,
        equal_sizes=random.random() < 0.4,
        fills_disk=random.random() < 0.1,
        fails_syncs=random.random() < 0.1,
    )


def draw_batch_topics(seed: int, topics: tuple[str, ...]) -> frozenset[str]:
    """Pick the topics with batch queues; odd seeds have none.

    Nothing else is drawn from these random numbers, so an odd seed is the run that it was before
    there were batch queues.
    """
    random = Random(f"batch topics {seed}")
    able = [topic for topic in topics if not topic.startswith("%RETRY%")]
    return frozenset(topic for topic in able if seed % 2 == 0 and random.random() < 0.6)


def draw_step(random: Random, scale: Scale) -> Step:
    """Pick the next action."""
    if scale.fills_disk and random.random() < 0.1:
        return random.choice((Step.FILL_DISK, Step.FREE_DISK))
    if scale.log.pool_size and random.random() < 0.15:
        return Step.COMMIT
    return random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]


def draw_ending(random: Random) -> Ending:
    """Pick how the start ends: mostly by a kill or a power cut."""
    return random.choices(list(Ending), (6, 2, 1))[0]


def draw_tampering(random: Random) -> Tampering:
    """Pick an action on the store after it ended, in whatever way it ended."""
    return random.choice(list(Tampering))


def draw_batch(random: Random, scale: Scale, serial: int) -> list[NewOne]:
    """One request: messages of one or more queues, all with bodies never used before."""
    count = 1 if random.random() < 0.5 else random.randint(2, 8)
    topic, queue = random.choice(scale.topics), random.randrange(scale.queues)
    batch = []
    for number in range(count):
        if random.random() < 0.1:
            topic, queue = random.choice(scale.topics), random.randrange(scale.queues)
        head = f"{serial:06}.{number:02}|".encode()
        size = scale.body_size_max if scale.equal_sizes else random.randint(10, scale.body_size_max)
        keys = () if scale.equal_sizes else tuple(random.sample(WORDS, random.randrange(3)))
        batch.append(
            NewOne(
                topic=topic,
                queue=queue,
                body=head + random.randbytes(size - len(head)),
                tags="" if scale.equal_sizes else random.choice(("", "TagA", "TagB")),
                keys=keys,
                unique_id=f"UID{serial:06}{number:02}",
                in_batch=topic in scale.batch_topics,
            )
        )
    if sum(len(one.body) + RECORD_EXTRA for one in batch) > scale.config.commit_log_file_size:
        return batch[:1]
    return batch
