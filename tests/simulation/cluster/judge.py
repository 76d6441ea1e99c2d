"""What must hold in every history, and the facts by which it is judged.

- An acknowledged message is in the log of its broker group, and every consumer group of its topic
  handles it in the end.
- Within one generation a queue has one owner, and no commit of an older generation is accepted.
- Of the messages of a key in one queue, a later one is handled once an earlier one has been.
- A message with a key is only in the queue that its key has in a whole list of queues: one that
  consists of what each broker group has offered.
- A drained broker group stores no message of a producer.
- A name service never goes back to an earlier registration of a node or of a master.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from services.broker.groups.joining import Joined
from services.broker.schema.offsets import Commit
from services.names.core.table import BrokerGroup
from tidemark.client.messages import SendResult
from tidemark.formats import hashing
from tidemark.offsets import Queue

LISTS_MAX: Final = 4096
"""Lists of queues that are tried for one key."""


class Violation(AssertionError):
    """An invariant does not hold."""


class MessageId(NamedTuple):
    """Which message it is; its body has the same fields."""

    topic: str
    key: str
    """Empty: it has no sharding key."""
    number: int

    @property
    def body(self) -> bytes:
        """Return the body of the message."""
        return f"{self.topic} {self.key} {self.number}".encode()

    @classmethod
    def of(cls, body: bytes) -> MessageId:
        """Return the message of a body."""
        topic, key, number = body.decode().split(" ")
        return cls(topic, key, int(number))


class Place(NamedTuple):
    """Where a message is."""

    broker_group: str
    queue: int
    queue_offset: int


class Counts(NamedTuple):
    """What happened in a history."""

    sent: int = 0
    acked: int = 0
    handled: int = 0
    """First handlings, by each consumer group."""
    repeated: int = 0
    """Later handlings."""
    generations: int = 0
    epochs: int = 0
    drains: int = 0
    names_restarts: int = 0
    faults: int = 0
    calls: int = 0


class Judge:
    """The facts of one history."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.acked: dict[MessageId, Place] = {}
        self.sent = 0
        self.epochs = self.drains = self.names_restarts = self.faults = self.repeated = 0
        self._readers: dict[str, list[str]] = defaultdict(list)
        """Topic → consumer groups."""
        self._begun: dict[str, dict[MessageId, int]] = defaultdict(dict)
        """Consumer group → message → when its first handling began, in steps."""
        self._done: dict[str, dict[MessageId, int]] = defaultdict(dict)
        """The same for the first handling that has ended."""
        self._step = 0
        self._of_key: dict[tuple[str, str], list[MessageId]] = defaultdict(list)
        """Topic and key → its acknowledged messages, in order."""
        self._owners: dict[tuple[str, str, int], dict[Queue, str]] = defaultdict(dict)
        """Broker group, consumer group and generation → owner of each queue."""
        self._newest: dict[tuple[str, str, int], int] = {}
        """Broker group, consumer group and epoch → newest generation that a member has."""
        self._drained: set[str] = set()
        self._offered: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        """Topic → broker group → numbers of writable queues that it has had; 0: it takes none."""
        self._registered: dict[tuple[str, str], tuple[int, dict[str, tuple[int, int]]]] = {}

    # -- facts about topics and broker groups ----------------------------------------------------

    def expect_reader(self, topic: str, consumer_group: str) -> None:
        """Note that a consumer group reads a topic from its first message on."""
        self._readers[topic].append(consumer_group)

    def offers(self, broker_group: str, topic: str, queues: int) -> None:
        """Note how many queues of a topic a broker group offers to producers from now on."""
        self._offered[topic][broker_group].add(queues)

    def may_be_absent(self, broker_group: str, topics: Iterable[str]) -> None:
        """Note that a broker group comes later or goes."""
        for topic in topics:
            self._offered[topic][broker_group].add(0)

    def drained(self, broker_group: str) -> None:
        """Note that a broker group has answered that it is drained."""
        self._drained.add(broker_group)
        self.drains += 1

    def undrains(self, broker_group: str) -> None:
        """Note that a broker group is about to take messages again."""
        self._drained.discard(broker_group)

    def registered(self, instance: str, group: BrokerGroup | None, name: str) -> None:
        """Check what a name service has of a broker group after a registration."""
        if group is None:
            self._registered.pop((instance, name), None)
            return
        nodes = {node.name: (node.epoch, node.counter) for node in group.nodes.values()}
        epoch, known = self._registered.get((instance, name), (0, {}))
        back = [each for each in nodes if nodes[each] < known.get(each, (0, 0))]
        if group.epoch < epoch or back:
            raise Violation(
                f"{instance} goes back to an earlier registration of {name}: epoch {group.epoch} "
                f"after {epoch}, nodes {nodes} after {known}"
            )
        self._registered[instance, name] = group.epoch, nodes

    def known_groups(self, instance: str) -> list[str]:
        """Return the broker groups that a name service has had since its start."""
        return [name for each, name in self._registered if each == instance]

    def names_started(self, instance: str) -> None:
        """Note that a name service begins with nothing."""
        for each in [each for each in self._registered if each[0] == instance]:
            del self._registered[each]

    # -- facts about messages --------------------------------------------------------------------

    def stored(self, broker_group: str, body: bytes) -> None:
        """Check a message that a broker group appends for a producer."""
        if broker_group in self._drained:
            raise Violation(f"the drained broker group {broker_group} stores {body!r}")

    def acknowledged(self, message: MessageId, result: SendResult) -> None:
        """Check where a message was acknowledged."""
        assert result.broker_group is not None
        place = Place(result.broker_group, result.queue, result.queue_offset)
        self.acked[message] = place
        if message.key:
            self._check_queue_of_key(message, place)
            self._of_key[message.topic, message.key].append(message)

    def _check_queue_of_key(self, message: MessageId, place: Place) -> None:
        offered = self._offered[message.topic]
        hashed = abs(hashing.string_hash(message.key))
        names = sorted(offered)
        choices = itertools.product(*(sorted(offered[name]) for name in names))
        for counts in itertools.islice(choices, LISTS_MAX):
            total = sum(counts)
            if not total:
                continue
            at = hashed % total
            for name, count in zip(names, counts, strict=True):
                if at < count:
                    if (name, at) == place[:2]:
                        return
                    break
                at -= count
        raise Violation(
            f"{message} is in {place.broker_group}/{place.queue}, and its key has another queue in "
            f"every list of queues that there was: { ({n: sorted(offered[n]) for n in names}) }"
        )

    def handles(self, consumer_group: str, body: bytes) -> None:
        """Note that a member begins to handle a message."""
        message, begun = MessageId.of(body), self._begun[consumer_group]
        self._step += 1
        self.repeated += message in begun
        begun.setdefault(message, self._step)

    def handled(self, consumer_group: str, body: bytes) -> None:
        """Note that a member has handled a message."""
        self._step += 1
        self._done[consumer_group].setdefault(MessageId.of(body), self._step)

    # -- facts about consumer groups -------------------------------------------------------------

    def joined(self, broker_group: str, group: str, member: str, joined: Joined) -> None:
        """Check the assignment that a member is answered with."""
        owners = self._owners[broker_group, group, joined.generation]
        for queue in joined.assignment:
            owner = owners.setdefault(queue, member)
            if owner != member:
                raise Violation(
                    f"{queue} of {broker_group} has two owners in generation {joined.generation} "
                    f"of {group}: {owner} and {member}"
                )
        epoch = broker_group, group, joined.generation >> 32
        self._newest[epoch] = max(joined.generation, self._newest.get(epoch, 0))

    def committed(self, broker_group: str, group: str, commit: Commit) -> None:
        """Check a commit that was accepted."""
        generation = commit.generation or 0
        newest = self._newest.get((broker_group, group, generation >> 32), 0)
        if generation < newest:
            raise Violation(
                f"{broker_group} accepts a commit of generation {generation} of {group} from "
                f"{commit.member}, and {newest} has begun"
            )

    # -- the end ---------------------------------------------------------------------------------

    def unhandled(self) -> list[tuple[str, MessageId]]:
        """Return acknowledged messages with a consumer group that has not handled them."""
        return [
            (reader, message)
            for message in self.acked
            for reader in self._readers[message.topic]
            if message not in self._done[reader]
        ]

    def is_empty(self, broker_group: str) -> bool:
        """Whether everything acknowledged at a broker group is handled."""
        return not any(
            self.acked[message].broker_group == broker_group for _, message in self.unhandled()
        )

    def check_order(self) -> None:
        """Check the order in which the messages of each key were handled."""
        for messages in self._of_key.values():
            for earlier, later in itertools.pairwise(messages):
                if self.acked[earlier][:2] == self.acked[later][:2]:
                    self._check_pair(earlier, later)

    def _check_pair(self, earlier: MessageId, later: MessageId) -> None:
        for reader in self._readers[earlier.topic]:
            if self._begun[reader][later] < self._done[reader][earlier]:
                raise Violation(
                    f"{reader} begins with {later} before it has handled {earlier}, and both are "
                    f"in {self.acked[later][:2]}"
                )

    def counts(self, calls: int) -> Counts:
        """Return what has happened."""
        return Counts(
            self.sent,
            len(self.acked),
            sum(map(len, self._done.values())),
            self.repeated,
            len(self._owners),
            self.epochs,
            self.drains,
            self.names_restarts,
            self.faults,
            calls,
        )
