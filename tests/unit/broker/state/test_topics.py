"""Topics: names, creation and deletion; what is served is what the log durably has."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.limits import QUEUES_LISTED_MAX
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.state_replay import expired_queues
from services.broker.state.topics import Put, StoredQueues, Topics
from shared.state import records
from shared.state.records import NextOffset, TopicConfig
from shared.state.state import BrokerState
from tidemark.errors import (
    BadName,
    BadRequest,
    DiskFull,
    NotPermitted,
    NotServing,
    UnknownQueue,
    UnknownTopic,
)
from tidemark.offsets import PhysicalOffset, QueueOffset


class FakeLog:
    """A log that is durable at once, unless it is held or full."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.full = False
        self.gate: asyncio.Event | None = None
        self.appended = asyncio.Event()

    async def append_state(self, body: bytes) -> PhysicalOffset:
        if self.full:
            raise DiskFull("no room. Nothing was stored.")
        self.bodies.append(body)
        self.appended.set()
        if self.gate is not None:
            await self.gate.wait()
        return PhysicalOffset(len(self.bodies) * 100)


class Broker:
    """Topics over a fake log, and the restart of both."""

    def __init__(
        self,
        in_store: list[tuple[str, int]] | None = None,
        *,
        auto_create_queues: int | None = None,
        log: FakeLog | None = None,
        next_offsets: dict[tuple[str, int], int] | None = None,
    ) -> None:
        self.log = log or FakeLog()
        self.in_store = in_store or []
        known = {queue: QueueOffset(n) for queue, n in (next_offsets or {}).items()}
        self.offsets = QueueOffsets(known)
        self.changes = 0
        self.state = BrokerState()
        for body in self.log.bodies:
            self.state.apply(records.decode(body))
        self.topics = Topics(
            self.state,
            self.log,
            self.offsets,
            flushed=lambda: 4711,
            stored=StoredQueues(self.in_store),
            auto_create_queues=auto_create_queues,
            on_change=self._changed,
        )

    def _changed(self, topic: str) -> None:
        self.changes += 1

    def names(self, *, system: bool = False) -> list[str]:
        return [topic.name for topic in self.topics.list(system=system)]

    def restarted(self) -> Broker:
        return Broker(self.in_store, log=self.log, next_offsets=dict(self.offsets.items()))

    def sent(self, topic: str, queue: int, count: int) -> None:
        self.offsets.raise_to((topic, queue), QueueOffset(count))


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "1 to 127 of the characters a-z A-Z 0-9 _ - % |"),
        ("a b", "1 to 127 of the characters"),
        ("../etc", "1 to 127 of the characters"),
        ("ä", "1 to 127 of the characters"),
        ("a\n", "1 to 127 of the characters"),
        ("x" * 128, "1 to 127 of the characters"),
        ("%RETRY%group", "names that begin with %RETRY%, %DLQ%"),
        ("%DLQ%group", "names that begin with %RETRY%, %DLQ%"),
        ("rmq_sys_tidemark_state", "rmq_sys_"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_"),
        ("SCHEDULE_TOPIC_XXXX", "is reserved"),
    ],
)
async def test_other_names_are_refused_with_the_rule(name: str, rule: str) -> None:
    broker = Broker(auto_create_queues=4)
    for call in (
        lambda: broker.topics.create(name, 1),
        lambda: broker.topics.delete(name),
        lambda: broker.topics.for_sending(name),
    ):
        with pytest.raises(BadName) as caught:
            await call()
        assert rule in str(caught.value)
    assert broker.log.bodies == []


# -- life ------------------------------------------------------------------------------------------


async def test_the_same_again_writes_no_record() -> None:
    broker = Broker()
    await broker.topics.create("a", 4)
    assert await broker.topics.create("a", 4) == Put(TopicConfig("a", 4, 4), False)
    assert len(broker.log.bodies) == 1


async def test_fewer_queues_can_still_be_read_but_not_sent_to() -> None:
    broker = Broker()
    await broker.topics.create("a", 8)
    assert await broker.topics.create("a", 2) == Put(TopicConfig("a", 2, 8), False)
    broker.topics.for_reading("a", 7)
    assert (await broker.topics.for_sending("a")).queues == 2
    await broker.topics.for_sending("a", 1)
    with pytest.raises(UnknownQueue, match="topic 'a' has no queue 2; queues: 0 to 1"):
        await broker.topics.for_sending("a", 2)


@pytest.mark.parametrize("queues", [-1, 0, 4097])
async def test_a_number_of_queues_out_of_range_is_refused(queues: int) -> None:
    with pytest.raises(BadRequest, match=f"queues must be from 1 to 4096, not {queues}"):
        await Broker().topics.create("a", queues)


@pytest.mark.parametrize("perm", [-1, 8])
async def test_permissions_out_of_range_are_refused(perm: int) -> None:
    with pytest.raises(BadRequest, match="perm must be from 0 to 7"):
        await Broker().topics.create("a", 1, perm=perm)


async def test_an_unknown_topic_is_named_with_those_that_exist() -> None:
    broker = Broker()
    with pytest.raises(UnknownTopic, match="there is no topic 'x'; topics: none"):
        broker.topics.get("x")
    for n in range(22):
        await broker.topics.create(f"t{n:02}", 1)
    with pytest.raises(UnknownTopic, match=r"topics: t00, .*, t19 and 2 more\. Create it: PUT"):
        await broker.topics.for_sending("x")


async def test_permissions_are_kept() -> None:
    broker = Broker()
    await broker.topics.create("a", 1, perm=4)
    await broker.topics.create("b", 1, perm=2)
    broker.topics.for_reading("a", 0)
    await broker.topics.for_sending("b")
    with pytest.raises(NotPermitted, match=r"takes no messages: its perm 4 lacks 2 \(write\)"):
        await broker.topics.for_sending("a")
    with pytest.raises(NotPermitted, match=r"cannot be read: its perm 2 lacks 4 \(read\)"):
        broker.topics.for_reading("b", 0)
    await broker.topics.create("a", 1, perm=6)
    await broker.topics.for_sending("a")


# -- death -----------------------------------------------------------------------------------------


async def test_a_topic_made_again_goes_on_with_its_queue_offsets() -> None:
    broker = Broker([("a", 0), ("a", 1)])
    await broker.topics.create("a", 2)
    broker.sent("a", 0, 70)
    gone = await broker.topics.delete("a")
    assert gone.min_offsets == {0: 70}
    for each in (broker, broker.restarted()):
        # Its queues are still on disk, and must not bring it back.
        assert each.names(system=True) == []
        with pytest.raises(UnknownTopic):
            each.topics.for_reading("a", 0)
    again = await broker.topics.create("a", 3)
    assert again == Put(TopicConfig("a", 3, 3, min_offsets={0: 70}), True)
    for each in (broker, broker.restarted()):
        assert [each.topics.min_offset("a", queue) for queue in (0, 1, 2)] == [70, 0, 0]
    broker.sent("a", 0, 75)
    broker.sent("a", 2, 1)
    assert (await broker.topics.delete("a")).min_offsets == {0: 75, 2: 1}


async def test_nothing_acked_before_a_deletion_is_answered_is_in_the_topic_made_again() -> None:
    """Sends that came while the deletion waited for the disk were stored behind the offsets that it
    had noted, and appeared in the topic created again: 61 messages in 11 of 40 rounds."""
    broker = Broker()
    await broker.topics.create("orders", 1)
    broker.sent("orders", 0, 10)
    broker.log.gate = asyncio.Event()
    broker.log.appended.clear()
    deletion = asyncio.create_task(broker.topics.delete("orders"))
    await broker.log.appended.wait()
    with pytest.raises(NotServing, match="'orders' is being deleted") as refused:
        await broker.topics.for_sending("orders")
    assert refused.value.retriable
    broker.sent("orders", 0, 12)  # a copy of a delayed message, which is no send
    broker.log.gate.set()
    assert (await deletion).min_offsets == {0: 12}
    broker.log.gate = None
    for each in (broker, broker.restarted()):
        with pytest.raises(UnknownTopic):
            await each.topics.for_sending("orders")
        assert (await each.topics.create("orders", 1)).created
        assert each.topics.min_offset("orders", 0) == 12
        await each.topics.for_sending("orders")


async def test_a_topic_whose_deletion_failed_takes_messages_again() -> None:
    broker = Broker()
    await broker.topics.create("orders", 1)
    broker.log.full = True
    with pytest.raises(DiskFull):
        await broker.topics.delete("orders")
    assert (await broker.topics.for_sending("orders")).name == "orders"


# -- topics without a record -----------------------------------------------------------------------


async def test_a_topic_that_only_has_queues_is_served() -> None:
    broker = Broker([("old", 0), ("old", 5), ("SCHEDULE_TOPIC_XXXX", 17)])
    assert broker.topics.list() == [TopicConfig("old", 6, 6)]
    assert broker.names(system=True) == ["SCHEDULE_TOPIC_XXXX", "old"]
    broker.topics.for_reading("SCHEDULE_TOPIC_XXXX", 17)
    broker.topics.for_reading("old", 5)
    await broker.topics.for_sending("old", 5)
    with pytest.raises(UnknownQueue):
        broker.topics.for_reading("old", 6)
    assert broker.log.bodies == []
    assert await broker.topics.create("old", 2) == Put(TopicConfig("old", 2, 6), False)
    assert await broker.topics.delete("old")
    assert broker.names() == []


async def test_creating_what_only_has_queues_as_it_is_writes_a_record_all_the_same() -> None:
    broker = Broker([("old", 1)])
    assert await broker.topics.create("old", 2) == Put(TopicConfig("old", 2, 2), False)
    assert len(broker.log.bodies) == 1


# -- creation by sending ---------------------------------------------------------------------------


async def test_many_first_sends_make_one_topic() -> None:
    broker = Broker(auto_create_queues=4)
    found = await asyncio.gather(*(broker.topics.for_sending("new") for _ in range(20)))
    assert found == [TopicConfig("new", 4, 4)] * 20
    assert len(broker.log.bodies) == 1


async def test_a_send_does_not_change_a_topic_created_meanwhile() -> None:
    broker = Broker(auto_create_queues=4)
    broker.log.gate = asyncio.Event()
    created = asyncio.ensure_future(broker.topics.create("new", 9))
    await asyncio.sleep(0)
    sent = asyncio.ensure_future(broker.topics.for_sending("new"))
    await asyncio.sleep(0)
    broker.log.gate.set()
    assert (await sent).queues == (await created).topic.queues == 9


# -- durability ------------------------------------------------------------------------------------


async def test_a_topic_is_not_served_before_its_record_is_durable() -> None:
    broker = Broker()
    broker.log.gate = asyncio.Event()
    creating = asyncio.ensure_future(broker.topics.create("a", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert broker.log.bodies
    assert broker.topics.find("a") is None
    broker.log.gate.set()
    await creating
    assert broker.topics.find("a") is not None


async def test_a_record_that_could_not_be_written_changes_nothing() -> None:
    broker = Broker()
    await broker.topics.create("a", 1)
    broker.log.full = True
    for call in (broker.topics.create("b", 1), broker.topics.delete("a")):
        with pytest.raises(DiskFull):
            await call
    assert broker.names() == ["a"]
    broker.log.full = False
    await broker.topics.delete("a")
    assert broker.changes == 2


async def test_a_change_is_finished_when_its_caller_goes_away() -> None:
    broker = Broker()
    await broker.topics.create("a", 1)
    broker.log.gate = asyncio.Event()
    deleting = asyncio.ensure_future(broker.topics.delete("a"))
    broker.log.appended.clear()
    await broker.log.appended.wait()
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    broker.log.gate.set()
    broker.log.gate = None
    await broker.topics.create("b", 1)  # behind the deletion
    assert broker.names() == ["b"]


# -- RocketMQ's topics -----------------------------------------------------------------------------


def adopt(broker: Broker, foreign: list[TopicConfig]) -> int:
    """As ``opening`` does: a copy is changed, becomes one snapshot, and is served."""
    state = broker.state.copy()
    changed = broker.topics.adopt(state, foreign)
    offsets = [NextOffset(*queue, offset) for queue, offset in broker.offsets.items()]
    broker.log.bodies += state.snapshot_records(0, 1 << 20, next_offsets=offsets)
    broker.state.become(state)
    return changed


async def test_topics_that_rocketmq_left_become_ours() -> None:
    broker = Broker([("gone", 0)])
    await broker.topics.create("gone", 1)
    await broker.topics.create("kept", 4)
    broker.sent("gone", 0, 7)
    theirs = [
        TopicConfig("kept", 4, 4),
        TopicConfig("new", 4, 5, 4, attributes={"message.type": "DELAY"}),
        TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
    ]
    assert adopt(broker, theirs) == 3
    for each in (broker, broker.restarted()):
        assert each.names() == ["kept", "new"]
        assert each.topics.get("new") == theirs[1]
        assert each.state.deleted["gone"].min_offsets == {0: 7}
        assert each.names(system=True)[0] == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert adopt(broker, theirs) == 0


async def test_a_topic_taken_over_keeps_the_offsets_of_its_deletion() -> None:
    broker = Broker()
    await broker.topics.create("a", 1)
    broker.sent("a", 0, 5)
    await broker.topics.delete("a")
    adopt(broker, [TopicConfig("a", 2, 2)])
    assert broker.topics.min_offset("a", 0) == 5


async def test_a_topic_that_the_broker_needs_is_made_once() -> None:
    broker = Broker()
    made = await broker.topics.ensure_system("%RETRY%g", 2)
    assert made == await broker.topics.ensure_system("%RETRY%g", 5) == TopicConfig("%RETRY%g", 2, 2)
    assert len(broker.log.bodies) == 1
    assert broker.names(system=True) == ["%RETRY%g"]


def test_a_topic_that_always_exists_is_found_before_its_first_message() -> None:
    # Messages that wait there could not be cancelled in a new store: their topic was unknown.
    always = {"SCHEDULE_TOPIC_XXXX": 18, "rmq_sys_wheel_timer": 1}
    offsets = QueueOffsets({})
    topics = Topics(BrokerState(), FakeLog(), offsets, flushed=lambda: 0, always=always)
    assert topics.get("SCHEDULE_TOPIC_XXXX") == TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18)
    assert topics.list(system=True) == []
    offsets.raise_to(("SCHEDULE_TOPIC_XXXX", 4), QueueOffset(1))
    assert [topic.name for topic in topics.list(system=True)] == ["SCHEDULE_TOPIC_XXXX"]


def test_a_queue_whose_messages_have_all_expired_begins_where_it_ended() -> None:
    # After a rebuild it seemed to be new: it ended at 0, below its groups' offsets.
    state = BrokerState()
    state.next_queue_offsets = {("t", 0): 7, ("t", 1): 9, ("t", 2): 3}
    recovered = {("t", 1): QueueOffset(9), ("t", 2): QueueOffset(5)}
    expired = expired_queues(recovered, state)
    topics = Topics(
        state, FakeLog(), QueueOffsets({}), flushed=lambda: 0, stored=StoredQueues(expired=expired)
    )
    assert [topics.min_offset("t", queue) for queue in range(4)] == [7, 0, 0, 0]


# -- any sequence ----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "delete", "send", "restart"]),
        st.sampled_from(["a", "b"]),
        st.integers(1, 3),
    ),
    max_size=25,
)


@given(STEPS)
def test_after_any_sequence_a_restart_serves_the_same(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        broker = Broker()
        highest: dict[tuple[str, int], int] = {}
        for step, name, number in steps:
            if step == "restart":
                broker = broker.restarted()
            elif step == "send":
                if broker.topics.find(name):
                    queue = (name, 0)
                    highest[queue] = broker.offsets.next_of(queue) + number
                    broker.sent(*queue, highest[queue])
            elif step == "create":
                await broker.topics.create(name, number)
            elif broker.topics.find(name):
                await broker.topics.delete(name)
            again = broker.restarted()
            assert again.topics.list() == broker.topics.list()
            for (topic, place), offset in highest.items():
                least = broker.topics.min_offset(topic, place)
                assert least == again.topics.min_offset(topic, place)
                assert least <= offset

    asyncio.run(run())


# -- queue numbers that no topic is made with ------------------------------------------------------

LARGEST = 2**31 - 1


async def test_a_directory_made_by_hand_does_not_make_a_topic_of_two_billion_queues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # `mkdir consumequeue/orders/2147483647` made GET of the topic list 2**31 queues.
    broker = Broker([("orders", LARGEST), ("orders", 2), ("orders", 4096), ("lone", LARGEST)])
    topics = broker.topics
    orders, lone = topics.get("orders"), topics.get("lone")
    assert (orders.queues, lone.queues) == (3, 1)
    assert topics.queue_numbers(orders) == (0, 1, 2, 4096, LARGEST)
    assert topics.queue_numbers(lone) == (0, LARGEST)
    topics.for_reading("orders", LARGEST)
    with pytest.raises(UnknownQueue):
        topics.for_reading("orders", 3)
    assert (await topics.for_sending("lone")).queues == 1
    facts = [vars(each) for each in caplog.records]
    named = [each for each in facts if each["event"] == "queue-numbers"]
    assert [(each["topic"], each["queues"]) for each in named] == [
        ("lone", [LARGEST]),
        ("orders", [4096, LARGEST]),
    ]


async def test_no_answer_lists_more_queues_than_the_limit() -> None:
    # The value in RocketMQ's topics.json is not checked; it may be any number.
    broker = Broker()
    adopt(broker, [TopicConfig("wide", LARGEST, LARGEST)])
    topic = broker.topics.get("wide")
    assert broker.topics.queue_count(topic) == LARGEST
    assert broker.topics.queue_numbers(topic) == tuple(range(QUEUES_LISTED_MAX))


async def test_deleting_a_topic_of_two_billion_queues_takes_no_time() -> None:
    broker = Broker([("wide", LARGEST)], next_offsets={("wide", 7): 3, ("other", 7): 9})
    adopt(broker, [TopicConfig("wide", LARGEST, LARGEST)])
    gone = await broker.topics.delete("wide")
    assert gone.min_offsets == {7: 3}


async def test_queues_outside_are_named_with_those_that_exist() -> None:
    broker = Broker()
    await broker.topics.create("a", 4)
    for queue in (-1, 4):
        with pytest.raises(UnknownQueue, match=f"no queue {queue}; queues: 0 to 3"):
            broker.topics.for_reading("a", queue)


async def test_a_deletion_keeps_what_the_queues_beyond_the_configured_ones_had() -> None:
    broker = Broker([("a", 5)])
    await broker.topics.create("a", 2)
    broker.sent("a", 5, 9)
    assert (await broker.topics.delete("a")).min_offsets == {5: 9}
