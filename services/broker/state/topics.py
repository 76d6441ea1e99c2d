"""Topics: their existence, their queues, and their creation, change and deletion.

A topic is a state record in the log; only durable records are served. In addition there are topics
that only have queues in the store (RocketMQ serves these as well). Until such a topic is created,
its queue count is given by its highest queue number. A queue directory with a number of QUEUES_MAX
or more does not count for that: the queue can be read by its number, and a log line at start
reports it.

Deleting a topic stores its next queue offsets as min offsets. A topic of the same name that is
created later continues with these offsets and does not show earlier messages (no queue offset is
used twice, promise P5). ``messages`` comes before this step, when a send or a pull requests its
topic (write path, step 3); ``append`` comes after it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from services.broker.fields import check_name
from services.broker.limits import QUEUES_LISTED_MAX, QUEUES_MAX
from services.broker.state.drain import check_open
from services.broker.state.name_locks import NameLocks
from shared.state import records
from shared.state.records import TopicConfig, TopicRecord
from shared.state.state import BrokerState
from shared.state.values import BATCH_QUEUES, QUEUE_TYPE
from tidemark.errors import (
    BadName,
    BadRequest,
    NotPermitted,
    NotServing,
    UnknownQueue,
    UnknownTopic,
)
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.metadata_json import PERM_INHERIT, PERM_READ, PERM_WRITE
from tidemark.offsets import PhysicalOffset, QueueOffset

log = logging.getLogger(__name__)

NAMES_SHOWN_MAX: Final = 20
_PERM_MAX: Final = PERM_READ | PERM_WRITE | PERM_INHERIT

RESERVED_PREFIXES: Final = ("%RETRY%", "%DLQ%", "%LMQ%", "rmq_sys_", "RMQ_SYS_")
RESERVED_NAMES: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
"""RocketMQ's system topics (docs/formats.md, section 15): users can neither create them nor send to
them."""

RESERVE_TIME: Final = "reserve.time"
"""RocketMQ's attribute for a topic's own retention [ms]."""

T = TypeVar("T")

NO_CHANGES: Final[Mapping[str, str | None]] = MappingProxyType({})
NOWHERE: Final[Mapping[int, int]] = MappingProxyType({})


class StateLog(Protocol):
    """Appends state records."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """Append one state record; it is durable on return, however long that takes.

        Raises what a send raises, but only if nothing was appended: a record that is in the log but
        not in the served state would take effect at the next start.

        The state log keeps its own ``BrokerState`` of the appended records, durable or not. A
        snapshot at the start of a new file must contain that state and not the served one.
        Otherwise: 1. a topic's record is the last one of file 1, not flushed yet; 2. file 2 begins
        with a snapshot without the topic; 3. both are flushed, and the creation is answered; 4. the
        next start reads from the snapshot, and the topic is lost.
        """
        ...


class NextOffsets(Protocol):
    """The table of next queue offsets (implemented by ``queue_offsets.QueueOffsets``)."""

    def next_of(self, queue: tuple[str, int]) -> QueueOffset:
        """Return the queue offset of this queue's next message; 0 if it never had one."""
        ...

    def items(self) -> Iterable[tuple[tuple[str, int], QueueOffset]]:
        """Return every queue that ever had a message, with its next offset."""
        ...


class Put(NamedTuple):
    """Result of ``create``."""

    topic: TopicConfig
    created: bool
    """True: the topic did not exist before. False: it was changed, or already as requested."""


def check_user_name(name: str) -> str:
    """Return the name if a user's topic may have it. Raises BadName with the rule."""
    check_name(name)
    if is_reserved(name):
        raise BadName(
            f"topic {name!r} is reserved: system topics, and names that begin with "
            f"{', '.join(RESERVED_PREFIXES)}. Nothing was changed or stored.",
            "Choose another name.",
            field="topic",
            topic=name,
        )
    return name


NOT_CONSUMED: Final = frozenset(
    {
        records.STATE_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    }
)
"""Topics with the store's own records, or with messages that are not delivered yet: no group
consumes them."""


def check_consumed(name: str) -> None:
    """Raise NotPermitted for a topic that no group may consume."""
    if name in NOT_CONSUMED:
        raise NotPermitted(
            f"topic {name!r} is internal to the broker: no group consumes it, so none of its "
            "messages can be nacked. Nothing was changed.",
            "Pull it, or use `tidemark store dump`, to read it.",
            topic=name,
        )


def is_reserved(name: str) -> bool:
    """Return whether it is a system topic: users can read it, but not create it or send to it."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)


class StoredQueues(NamedTuple):
    """The queues that are in the store at the start."""

    in_store: Collection[tuple[str, int]] = ()
    """Topic and number of every queue with a directory or records."""
    expired: Mapping[tuple[str, int], int] = MappingProxyType({})
    """Next offset of each queue whose messages have all expired."""
    batch_topics: Collection[str] = ()
    """Topics with batch queues; needed for those that only have queues in the store."""


NO_QUEUES: Final = StoredQueues()


class Topics:
    """The topics of one broker. For one loop; changes of one topic are serialized."""

    def __init__(
        self,
        state: BrokerState,
        log: StateLog,
        next_offsets: NextOffsets,
        *,
        flushed: Callable[[], int],
        stored: StoredQueues = NO_QUEUES,
        auto_create_queues: int | None = None,
        always: Mapping[str, int] | None = None,
        on_change: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """state: as replayed from the log; from now on only this object changes its topics.

        flushed: returns the flushed offset, which is stored in records. auto_create_queues: number
        of queues of a topic that a send creates; None: sends do not create topics. always: system
        topics with their numbers of queues, which exist without being created, so that their
        messages can be found from the first one on. on_change: called with the topic's name after
        each durable change.
        """
        self._state = state
        self._log = log
        self._next_offsets = next_offsets
        self._flushed = flushed
        self._auto_create_queues = auto_create_queues
        self._always = {
            name: TopicConfig(name, queues, queues) for name, queues in (always or {}).items()
        }
        self._expired = dict(stored.expired)
        self._on_change = on_change
        self._changing = NameLocks()
        self._deleting: set[str] = set()
        """Topics whose deletion is being recorded; sends to them are refused."""
        self._running: set[asyncio.Task[object]] = set()
        self._queues_in_store: dict[str, int] = {}
        """Topic → number of queues, given by the highest queue number below QUEUES_MAX."""
        self._batch_topics = frozenset(stored.batch_topics)
        self._beyond: dict[str, list[int]] = {}
        """Topic → queue numbers from QUEUES_MAX on, ascending; most topics have none."""
        for name, queue in sorted(stored.in_store):
            if queue < QUEUES_MAX:
                self._queues_in_store[name] = queue + 1
            else:
                self._queues_in_store.setdefault(name, 1)
                self._beyond.setdefault(name, []).append(queue)
        self._unrecorded = [
            name
            for name in self._queues_in_store
            if name not in state.topics and not is_reserved(name)
        ]
        """Topics that only have queues in the store, at the start."""
        self._name_beyond()

    def _name_beyond(self) -> None:
        for name, numbers in self._beyond.items():
            topic = self._state.topics.get(name)
            strays = [queue for queue in numbers if topic is None or queue >= topic.queue_count]
            if strays:
                log.warning(
                    "a topic has queues with numbers that no topic is made with; they can be read",
                    extra={
                        "event": "queue-numbers",
                        "topic": name,
                        "queues": strays[:NAMES_SHOWN_MAX],
                        "count": len(strays),
                        "limit": QUEUES_MAX,
                    },
                )

    # -- reading -------------------------------------------------------------------------------

    def find(self, name: str) -> TopicConfig | None:
        """Return the served topic; None if it does not exist or was deleted."""
        topic = self._state.topics.get(name)
        if topic is not None:
            return topic
        queues = self._queues_in_store.get(name)
        if queues is None or name in self._state.deleted:
            return self._always.get(name)
        is_batch = name in self._batch_topics
        attributes = {QUEUE_TYPE: BATCH_QUEUES} if is_batch else {}
        return TopicConfig(name, queues, queues, attributes=attributes)

    def is_batch(self, name: str) -> bool:
        """Return whether the topic exists and has batch queues; a system topic never has them."""
        topic = self.find(name)
        return (
            topic is not None
            and bool(topic.attributes)
            and topic.is_batch
            and not is_reserved(name)
        )

    def get(self, name: str) -> TopicConfig:
        """Return the served topic. Raises BadName, or UnknownTopic with some existing names."""
        topic = self.find(check_name(name))
        if topic is None:
            raise self._unknown(name)
        return topic

    def list(self, *, system: bool = False) -> list[TopicConfig]:
        """Return all topics sorted by name; system: include system topics."""
        names = {*self._state.topics, *self._queues_in_store, *filter(self._is_used, self._always)}
        found = (self.find(name) for name in sorted(names) if system or not is_reserved(name))
        return [topic for topic in found if topic is not None]

    def names(self) -> Iterator[str]:
        """Iterate over the names of all topics, including system topics, in no order.

        There may be duplicates and deleted topics. The iterator must be consumed before an await.
        """
        return itertools.chain(
            self._state.topics, self._queues_in_store, filter(self._is_used, self._always)
        )

    @property
    def is_drained(self) -> bool:
        """Whether no topic accepts sends, because the broker group is drained."""
        return self._state.drained_since_ms is not None

    @property
    def count(self) -> int:
        """Number of topics, without those of the broker itself."""
        topics, deleted = self._state.topics, self._state.deleted
        return len(topics) + sum(
            name not in topics and name not in deleted for name in self._unrecorded
        )

    def _is_used(self, name: str) -> bool:
        """Return whether a system topic of ``always`` ever had a message."""
        queues = range(self._always[name].queues)
        return any(self._next_offsets.next_of((name, queue)) > 0 for queue in queues)

    def queue_count(self, topic: TopicConfig) -> int:
        """Return the number of readable queues from 0 on.

        Queues in the store count even if they are no longer configured, except those with a number
        of QUEUES_MAX or more."""
        return max(topic.queue_count, self._queues_in_store.get(topic.name, 0))

    def queue_numbers(self, topic: TopicConfig) -> Sequence[int]:
        """Return the readable queues, ascending; at most QUEUES_LISTED_MAX of them."""
        count = self.queue_count(topic)
        beyond = (queue for queue in self._beyond.get(topic.name, ()) if queue >= count)
        return tuple(itertools.islice(itertools.chain(range(count), beyond), QUEUES_LISTED_MAX))

    def min_offset(self, name: str, queue: int) -> QueueOffset:
        """Return the queue offset below which nothing may be shown.

        Lower offsets are from before a deletion of the topic. If all records of the queue have
        expired, it is the next offset, which is then known only from the state."""
        topic = self._state.topics.get(name)
        deleted = topic.min_offsets.get(queue, 0) if topic else 0
        return QueueOffset(max(deleted, self._expired.get((name, queue), 0)))

    def for_reading(self, name: str, queue: int) -> TopicConfig:
        """Return the topic if this queue may be read.

        Raises BadName, UnknownTopic, UnknownQueue, NotPermitted.
        """
        topic = self.get(name)
        if not topic.is_readable:
            raise _not_permitted(topic, "cannot be read", "4 (read)")
        count = self.queue_count(topic)
        if not 0 <= queue < count and queue not in self._beyond.get(name, ()):
            raise _unknown_queue(topic, queue, count)
        return topic

    async def for_sending(
        self, name: str, queue: int | None = None, *, is_batch: bool | None = None
    ) -> TopicConfig:
        """Return the topic if it accepts sends; create it if sends create topics.

        is_batch: as in ``create``, for a topic that is created. Raises BadName, UnknownTopic,
        UnknownQueue, NotPermitted, Drained, NotServing (it is being deleted), and what a send
        raises.
        """
        topic = self.ready_for_sending(name)
        if topic is None:
            assert self._auto_create_queues is not None
            queues = self._auto_create_queues
            put = await self._finish(
                self._put(name, queues, is_batch=is_batch, only_if_missing=True)
            )
            topic = _writable(put.topic)
        if queue is not None and not 0 <= queue < topic.queues:
            raise _unknown_queue(topic, queue, topic.queues)
        return topic

    def ready_for_sending(self, name: str) -> TopicConfig | None:
        """Return the topic if it accepts sends; None if a send creates it. Has no await.

        Raises BadName, UnknownTopic, NotPermitted, Drained, NotServing (it is being deleted).
        """
        if self._state.drain is not None:
            check_open(self._state)
        topic = self._state.topics.get(name)
        if name in self._deleting:
            raise _being_deleted(name)
        if topic is None or is_reserved(name):
            check_user_name(name)
            topic = self.find(name)
        if topic is None:
            if self._auto_create_queues is None:
                raise self._unknown(name)
            return None
        return _writable(topic)

    def sendable(self, name: str) -> TopicConfig:
        """Return the topic if it accepts messages now; includes system topics. Has no await.

        Raises BadName, UnknownTopic, NotPermitted, NotServing (it is being deleted).
        """
        if name in self._deleting:
            raise _being_deleted(name)
        topic = self.get(name)
        if not topic.is_writable:
            raise _not_permitted(topic, "takes no messages", "2 (write)")
        return topic

    # -- changing ------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        queues: int,
        *,
        perm: int | None = None,
        is_batch: bool | None = None,
        attributes: Mapping[str, str | None] = NO_CHANGES,
        begins_at: Mapping[int, int] = NOWHERE,
    ) -> Put:
        """Create or change a topic; durable on return. Idempotent.

        If queues is reduced, new messages use fewer queues, and the others can still be read.
        is_batch: whether its queues are batch queues; None: as they are, or were when a topic of
        this name was deleted; simple if it is new. attributes: other changed attributes; None
        removes one. begins_at: queue → queue offset below which nothing is shown any more,
        permanently. Raises BadName, BadRequest, NotPermitted (another type of queues), and what a
        send raises.
        """
        check_user_name(name)
        if not 1 <= queues <= QUEUES_MAX:
            raise BadRequest(
                f"queues must be from 1 to {QUEUES_MAX}, not {queues}.", field="queues"
            )
        if perm is not None and not 0 <= perm <= _PERM_MAX:
            raise BadRequest(
                f"perm must be from 0 to {_PERM_MAX} (4 read, 2 write, 1 inherit), not {perm}.",
                field="perm",
            )
        return await self._finish(
            self._put(
                name,
                queues,
                perm=perm,
                is_batch=is_batch,
                attributes=attributes,
                begins_at=begins_at,
            )
        )

    async def ensure_system(self, name: str, queues: int) -> TopicConfig:
        """Return a topic that the broker itself needs; create it with that many queues if missing.

        Durable on return. Raises BadName, and what a send raises.
        """
        topic = self.find(check_name(name))
        if topic is not None:
            return topic
        return (await self._finish(self._put(name, queues, only_if_missing=True))).topic

    async def delete(self, name: str) -> TopicConfig:
        """Delete a topic; durable on return. Its messages expire with the log.

        Raises BadName, UnknownTopic, and what a send raises.
        """
        check_user_name(name)
        return await self._finish(self._delete(name))

    async def delete_system(self, name: str) -> None:
        """Delete a system topic if it exists; like ``delete``."""
        if self._state.topics.get(name) is not None:
            await self._finish(self._delete(name))

    def adopt(self, state: BrokerState, foreign: Iterable[TopicConfig]) -> int:
        """Replace the topics of a state by RocketMQ's; return the number of changed topics.

        state: a copy of the served state, not served yet. Messages of a topic that RocketMQ deleted
        stay hidden, as after our own deletion.
        """
        theirs = {topic.name: topic for topic in foreign}
        changed = 0
        for topic in theirs.values():
            known = state.find(topic.name)
            kept = topic._replace(min_offsets=known.min_offsets if known else {})
            if known != kept:
                state.apply(TopicRecord(self._flushed(), kept))
                changed += 1
        for topic in list(state.topics.values()):
            if topic.name not in theirs:
                offsets = self._offsets_now(topic)
                gone = topic._replace(deleted=True, min_offsets=offsets)
                state.apply(TopicRecord(self._flushed(), gone))
                changed += 1
        return changed

    async def _finish(self, change: Coroutine[object, object, T]) -> T:
        """Run a change to its end, even if the caller is cancelled meanwhile.

        Otherwise: 1. a deletion's record is appended; 2. the client disconnects and the request is
        cancelled; 3. the topic is still served and accepts messages; 4. the next start replays the
        record, and the topic and these messages are lost.
        """
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved if the caller was cancelled

    async def _delete(self, name: str) -> TopicConfig:
        async with self._changing.holding(name):
            topic = self.get(name)
            # Sends are refused from here on. Otherwise: 1. the next queue offsets are read; 2. the
            # record waits for the disk; 3. a message is stored at a later offset and acked; 4. the
            # deletion is answered; 5. the topic is created again, and shows the message.
            self._deleting.add(name)
            try:
                while True:
                    gone = topic._replace(deleted=True, min_offsets=self._offsets_now(topic))
                    await self._record(gone)
                    # Deliveries of delayed messages are not refused, so some may have been appended
                    # meanwhile. Once the record is applied, there are no more.
                    if self._offsets_now(topic) == gone.min_offsets:
                        break
            finally:
                self._deleting.discard(name)
        return gone

    async def _put(
        self,
        name: str,
        queues: int,
        *,
        perm: int | None = None,
        is_batch: bool | None = None,
        only_if_missing: bool = False,
        attributes: Mapping[str, str | None] = NO_CHANGES,
        begins_at: Mapping[int, int] = NOWHERE,
    ) -> Put:
        async with self._changing.holding(name):
            # Looked up again: another request may have created it while this one waited.
            before = self.find(name)
            if before is not None and only_if_missing:
                return Put(before, created=False)
            known = self._state.find(name)
            wanted = TopicConfig(name, queues, queues) if before is None else before
            begins = dict(known.min_offsets) if known else {}
            for queue, offset in begins_at.items():
                if offset > begins.get(queue, 0):
                    begins[queue] = offset
            changed = {**wanted.attributes, **attributes}
            if _has_batch_queues(name, before, known, is_batch):
                changed[QUEUE_TYPE] = BATCH_QUEUES
            wanted = wanted._replace(
                queues=queues,
                read_queues=max(queues, wanted.read_queues),
                perm=wanted.perm if perm is None else perm,
                attributes={key: value for key, value in changed.items() if value is not None},
                min_offsets=begins,
            )
            if wanted != self._state.topics.get(name):
                await self._record(wanted)
            return Put(wanted, created=before is None)

    async def _record(self, topic: TopicConfig) -> None:
        body = records.encode_topic(TopicRecord(self._flushed(), topic))
        await self._log.append_state(body)
        self._state.apply(records.decode(body))
        self._on_change(topic.name)

    def _offsets_now(self, topic: TopicConfig) -> Mapping[int, int]:
        """Return queue → next offset, for a later topic of this name; without empty queues."""
        known = dict(topic.min_offsets)
        numbers = self.queue_numbers(topic)
        if len(numbers) == QUEUES_LISTED_MAX:
            # RocketMQ's file may claim any number of queues; only few of them had messages.
            numbers = [
                queue for (name, queue), _ in self._next_offsets.items() if name == topic.name
            ]
        for queue in numbers:
            offset = self._next_offsets.next_of((topic.name, queue))
            if offset:
                known[queue] = offset
        return known

    def _unknown(self, name: str) -> UnknownTopic:
        names = {*self._state.topics, *self._queues_in_store} - self._state.deleted.keys()
        count = len(names) - sum(map(is_reserved, names))
        existing = heapq.nsmallest(
            NAMES_SHOWN_MAX, (each for each in names if not is_reserved(each))
        )
        shown = ", ".join(existing) or "none"
        more = f" and {count - NAMES_SHOWN_MAX} more" * (count > NAMES_SHOWN_MAX)
        return UnknownTopic(
            f"there is no topic {name!r}; topics: {shown}{more}.",
            f"Create it: PUT /v1/topics/{name} with a number of queues, "
            f"or `tidemark topic create {name}`.",
            topic=name,
            topics=existing,
        )


def _has_batch_queues(
    name: str, before: TopicConfig | None, known: TopicConfig | None, wanted: bool | None
) -> bool:
    """Return whether a topic that is put has batch queues.

    before: the existing topic. known: the existing or deleted topic of this name. wanted: as in
    ``Topics.create``. The type stays once a queue had a message, because units of both types would
    be needed for one queue. Raises NotPermitted if another type is wanted.
    """
    fixed = before
    if fixed is None and known is not None and known.min_offsets:
        fixed = known
    if fixed is None:
        return bool(wanted)
    if wanted is not None and wanted != fixed.is_batch:
        had = "has" if before is not None else "had, before its deletion,"
        raise NotPermitted(
            f"topic {name!r} {had} {fixed.queue_type} queues, and the type of its queues cannot be "
            "changed. Nothing was changed.",
            "Create a topic of another name.",
            topic=name,
            queue_type=fixed.queue_type,
        )
    return fixed.is_batch


def _being_deleted(name: str) -> NotServing:
    return NotServing(
        f"topic {name!r} is being deleted. Nothing was stored.",
        "Try again: then it is deleted, or its deletion has failed.",
        topic=name,
    )


def _unknown_queue(topic: TopicConfig, queue: int, count: int) -> UnknownQueue:
    exist = f"0 to {count - 1}" if count else "none"
    return UnknownQueue(
        f"topic {topic.name!r} has no queue {queue}; queues: {exist}.",
        topic=topic.name,
        queue=queue,
        queues=count,
    )


def _writable(topic: TopicConfig) -> TopicConfig:
    """Return the topic. Raises NotPermitted if it accepts no messages."""
    if not topic.is_writable:
        raise _not_permitted(topic, "takes no messages", "2 (write)")
    return topic


def _not_permitted(topic: TopicConfig, what: str, bit: str) -> NotPermitted:
    return NotPermitted(
        f"topic {topic.name!r} {what}: its perm {topic.perm} lacks {bit}.",
        f'PUT /v1/topics/{topic.name} with "perm": 6 allows reading and sending.',
        topic=topic.name,
        perm=topic.perm,
    )
