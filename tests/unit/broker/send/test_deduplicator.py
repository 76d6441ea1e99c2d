"""A send and its repeat at the same time: stored once, in whichever order they run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from services.broker.log.ack_levels import AckLevel, Admitted, Reached
from services.broker.log.append import FILE_TRIES, Appended
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.send.sender import Sender
from services.broker.send.stored_ids import StoredIds
from services.broker.send.wanted_delay import Delay
from services.broker.state.topics import Topics
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.state.records import TopicConfig
from shared.state.state import BrokerState
from tests.support.small_broker import BORN, LEVELS_MS, SmallBroker
from tests.unit.broker.log.test_append import held_at_the_last_file, parts_in
from tests.unit.broker.send.test_sender import ground_of
from tests.unit.broker.send.test_stored_ids import ids_of
from tests.unit.broker.state.test_topics import FakeLog
from tidemark.errors import AckTimeout, FileNotReady, Overloaded, WriteFailed
from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot


class Held:
    """Waiting tasks in the order of their arrival; a test releases them one by one."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]


class Broker(SmallBroker):
    """A test decides when its next log file exists, and when waiting tasks go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.files = Held()

    async def file_made(self) -> None:
        await self.files.wait()


class HeldTopics:
    """One topic of one queue, which a test may have made later."""

    def __init__(self) -> None:
        self.held: Held | None = None

    def is_batch(self, name: str) -> bool:
        return False

    def ready_for_sending(self, name: str) -> TopicConfig | None:
        return TopicConfig(name, 1, 1) if self.held is None else None

    async def for_sending(self, name: str) -> TopicConfig:
        if self.held is not None:
            await self.held.wait()
        return TopicConfig(name, 1, 1)


class Kit:
    """A broker's sends."""

    def __init__(self, broker: Broker, topics: object | None = None) -> None:
        self.broker, self.topics = broker, HeldTopics()
        self.metrics = BrokerMetrics(Registry("broker"))
        log_context = ground_of(broker.flusher_part, self.metrics, delay_levels_ms=LEVELS_MS)
        sender = Sender(log_context, broker.append_part, cast(Topics, topics or self.topics))
        self.sends = Deduplicator(sender, ids_of(broker))

    def send(self, *ids: str | None, retry: bool = False, **more: Any) -> asyncio.Task[SendResult]:
        return asyncio.create_task(self.sends.send("t", request(*ids, retry=retry, **more), BORN))

    def stored(self) -> list[str]:
        """Unique ids of what is in the log, in its order."""
        self.broker.dispatch()
        topics = ("t", "SCHEDULE_TOPIC_XXXX")
        records = [each for topic in topics for each in self.broker.all(topic)]
        found = sorted((each.physical_offset, each.unique_id or "") for each in records)
        return [unique_id for _, unique_id in found]


def request(*ids: str | None, retry: bool = False, **more: Any) -> ProduceRequest:
    entries = [
        WireMessage(b"x", properties.encode({} if name is None else {"UNIQ_KEY": name}))
        for name in ids
    ]
    made = ProduceRequest(batch.encode(entries), len(ids), 0, AckLevel.DISK, 3000, None, retry)
    return replace(made, **more)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    broker = Broker(tmp_path)
    yield Kit(broker)
    broker.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def let_go(held: Held, order: list[int]) -> None:
    """Those who wait go on in this order, each as far as it gets."""
    waiting, held.waiting = held.waiting, []
    for number in order:
        waiting[number].set_result(None)
        await turns()


BOTH_ORDERS = pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["first try", "repeat"])


# -- both wait for the next log file ---------------------------------------------------------------
# 1. The first try is appended, and the next file does not exist: it waits. 2. Its client gives up
# and sends it again. 3. The repeat searched, found nothing, and waited as well. 4. Both were
# stored.


@BOTH_ORDERS
@pytest.mark.parametrize(
    ("is_repeat", "delays", "topic"),
    [(False, None, None), (True, None, None), (False, [Delay(level=1)], "SCHEDULE_TOPIC_XXXX")],
    ids=["a send and its repeat", "two repeats", "what waits for its time"],
)
async def test_both_wait_for_a_file_and_one_is_stored(
    kit: Kit, order: list[int], is_repeat: bool, delays: list[Delay] | None, topic: str | None
) -> None:
    kit.broker.lacks_file = True
    tries = [kit.send("A", retry=retry, delays=delays) for retry in (is_repeat, True)]
    await turns()
    assert len(kit.broker.files.waiting) == 2
    kit.broker.lacks_file = False
    await let_go(kit.broker.files, order)
    first, again = [(await each).results() for each in tries]
    assert first == again
    assert first[0].get("topic") == topic
    assert kit.stored() == ["A"]


@BOTH_ORDERS
async def test_of_several_messages_each_is_stored_once(kit: Kit, order: list[int]) -> None:
    kit.broker.lacks_file = True
    tries = [kit.send("A", None, "B"), kit.send("B", "C", retry=True), kit.send(None)]
    await turns()
    kit.broker.lacks_file = False
    await let_go(kit.broker.files, [*order, 2])
    first, again, _ = [(await each).results() for each in tries]
    assert sorted(kit.stored()) == ["", "", "A", "B", "C"]
    assert [each["unique_id"] for each in first] == ["A", None, "B"]
    assert [each["unique_id"] for each in again] == ["B", "C"]
    assert first[2]["physical_offset"] == again[0]["physical_offset"]


@pytest.mark.parametrize("retry", [False, True])
async def test_no_send_waits_for_a_file_for_ever(kit: Kit, retry: bool) -> None:
    kit.broker.lacks_file = True
    sent = kit.send("A", retry=retry)
    for _ in range(FILE_TRIES - 1):
        await turns()
        await let_go(kit.broker.files, [0])
    with pytest.raises(FileNotReady):
        await sent
    assert not kit.broker.files.waiting
    assert kit.stored() == []


async def test_a_delayed_first_try_is_answered_normally_beside_repeats_of_other_sends(
    kit: Kit,
) -> None:
    # Also while the index is rebuilt, and it is unknown which messages of a repeat are stored.
    kit.broker.lacks_file = True
    sent = kit.send("A")
    await turns()
    kit.broker.lacks_file = False
    await kit.send("B", retry=True)
    kit.broker.positions.publish(Slot.INDEX_BEHIND, 1)
    await let_go(kit.broker.files, [0])
    assert isinstance(await sent, SendResult)
    assert kit.stored() == ["B", "A"]


async def test_a_first_try_behind_more_repeats_than_are_kept_is_refused(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.broker.send.repeats.NOTED_MAX", 2)
    kit.broker.lacks_file = True
    sent, without_ids = kit.send("A"), kit.send(None)
    await turns()
    kit.broker.lacks_file = False
    for name in "ABC":
        await kit.send(name, retry=True)
    await let_go(kit.broker.files, [0, 1])
    with pytest.raises(Overloaded, match="Nothing was stored") as caught:
        await sent
    assert caught.value.retriable
    await without_ids
    assert kit.stored() == ["A", "B", "C", ""]


async def test_with_a_slow_disk_a_send_and_all_its_repeats_are_stored_once(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        hold = await held_at_the_last_file(parts)
        start = parts.appender.appended
        log = SimpleNamespace(
            reader=parts.reader,
            clock=SystemClock(),
            dispatched=lambda: start,
            readable_end=lambda: parts.appender.appended,
            index_is_whole=lambda: True,
        )
        sender = Sender(ground_of(None), parts.append, cast(Topics, HeldTopics()))
        sends = Deduplicator(sender, StoredIds(cast(LogContext, log), None))
        tries = [
            asyncio.create_task(
                sends.send("t", request(name, retry=retry, ack=AckLevel.MEMORY), BORN)
            )
            for name, retry in [("A", False), ("A", True), ("A", True), ("B", False)]
        ]
        await turns()
        assert parts.appender.appended == start
        before = parts.offsets.next_of(("t", 0))
        hold.set()
        first, *again, other = [(await each).results() for each in tries]
        assert again == [first, first]
        assert {first[0]["queue_offset"], other[0]["queue_offset"]} == {before, before + 1}
        assert parts.offsets.next_of(("t", 0)) == before + 2


# -- both wait for their topic to be made ----------------------------------------------------------


@BOTH_ORDERS
async def test_both_wait_for_their_topic_and_one_is_stored(kit: Kit, order: list[int]) -> None:
    kit.topics.held = held = Held()
    tries = [kit.send("A"), kit.send("A", retry=True)]
    await turns()
    kit.topics.held = None
    await let_go(held, order)
    first, again = [(await each).results() for each in tries]
    assert first == again
    assert kit.stored() == ["A"]


async def test_a_repeat_that_comes_at_any_moment_of_the_making_of_its_topic_is_stored_once(
    tmp_path: Path,
) -> None:
    # The topic is there for whoever asks some turns of the loop before the one who had it made
    # goes on.
    broker = Broker(tmp_path)
    late_turns = 0
    for turn in range(15):
        log = FakeLog()
        log.gate = asyncio.Event()
        offsets = QueueOffsets({})
        topics = Topics(BrokerState(), log, offsets, flushed=lambda: 0, auto_create_queues=1)
        kit = Kit(broker, topics)
        name = f"ID{turn}"
        first = kit.send(name)
        await log.appended.wait()
        log.gate.set()
        await turns(turn)
        late_turns += topics.find("t") is not None and not first.done()
        again = kit.send(name, retry=True)
        assert (await first).results() == (await again).results()
        assert kit.stored().count(name) == 1
    assert late_turns, "it came in between at least once"
    broker.close()


# -- the first try's body is not whole yet ---------------------------------------------------------


@pytest.mark.parametrize("repeated", ["A", "B"])
async def test_a_first_try_whose_body_took_a_while_is_stored_once(kit: Kit, repeated: str) -> None:
    since = kit.sends.repeat_count
    again = (await kit.send(repeated, retry=True)).results()
    first = (await kit.sends.send("t", request("A"), BORN, since=since)).results()
    assert (first == again) is (repeated == "A")
    assert kit.stored() == sorted({"A", repeated}, reverse=True)


# -- what is answered ------------------------------------------------------------------------------


# Its client mistook the results of the rest for those of all messages.
async def test_an_error_has_the_results_of_found_and_of_appended_messages(kit: Kit) -> None:
    (stored,) = (await kit.send("B")).results()
    kit.broker.is_stopping = True
    with pytest.raises(AckTimeout, match="3 messages are appended") as caught:
        await kit.send("A", "B", "C", retry=True)
    results = caught.value.facts["results"]
    assert [each["unique_id"] for each in results] == ["A", "B", "C"]
    assert results[1] == stored
    assert kit.stored() == ["B", "A", "C"]


# A repeat of which all was stored was answered and not counted.
@pytest.mark.parametrize("repeated", [["A"], ["A", "B"], ["B"]])
async def test_every_answered_send_is_counted_once(kit: Kit, repeated: list[str]) -> None:
    await kit.send("A")
    await kit.send(*repeated, retry=True)
    assert kit.metrics.put_results.labels("ok").value == 2
    assert kit.stored() == sorted({"A", *repeated})


async def test_a_repeat_that_failed_behind_the_append_is_not_counted_as_answered(kit: Kit) -> None:
    await kit.send("A")
    kit.broker.is_stopping = True
    for repeated in (["A"], ["A", "B"]):
        with pytest.raises(AckTimeout):
            await kit.send(*repeated, retry=True)
    assert kit.metrics.put_results.labels("ok").value == 1


# The bytes of the rest may be there after the next start; what was found is there.
async def test_a_failed_append_of_the_rest_reports_the_found_messages(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.send("A")
    append = kit.broker.append_now

    def fails(*args: Any, **more: Any) -> Appended:
        fault = WriteFailed("planted")
        fault.appended = append(*args, **more)
        raise fault

    monkeypatch.setattr(kit.broker, "append_now", fails)
    with pytest.raises(WriteFailed) as caught:
        await kit.send("A", "B", retry=True)
    results = caught.value.facts["results"]
    assert [(each["unique_id"], each["outcome"]) for each in results] == [
        ("A", "stored"),
        ("B", "unknown"),
    ]


class TwoCopies:
    """A group that confirms everything, on two nodes, while ``can_answer``."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.can_answer = True

    def admit(self, asked: AckLevel | None) -> Admitted:
        return Admitted(AckLevel.REPLICATED, 2, asked=False)

    async def durable(self, end: int, deadline: float) -> bool:
        self.ends.append(end)
        return True

    def reached(self, admitted: Admitted) -> Reached | None:
        return Reached(AckLevel.REPLICATED, 2) if self.can_answer else None


async def test_a_repeat_in_a_group_waits_once_and_reports_the_reached_level(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = TwoCopies()
    monkeypatch.setattr(kit.sends._sender, "_term", group)
    monkeypatch.setattr(kit.sends._sender, "_durability", group)
    monkeypatch.setattr(kit.sends._sender, "_flushed", lambda: 1 << 40)
    first = await kit.send("A")
    again = await kit.send("A", retry=True)
    more = await kit.send("B", "A", retry=True)
    for sent in (first, again, more):
        assert sent.as_dict()["ack"] == {"level": "replicated", "copies": 2}
    assert group.ends == [group.ends[0], group.ends[0], kit.broker.appender.appended]
    group.can_answer = False
    with pytest.raises(AckTimeout, match="2 messages are stored, level disk is reached") as caught:
        await kit.send("A", "C", retry=True)
    assert [each["unique_id"] for each in caught.value.facts["results"]] == ["A", "C"]
