"""Trace over a real small store: every event, each with its time or why it has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.broker.groups import commit_times
from services.broker.groups import trace as trace_module
from services.broker.groups.commit_times import CommitTimes
from services.broker.groups.copies import Copies
from services.broker.groups.deliveries import Deliveries, Delivery
from services.broker.groups.nacks import Nacks
from services.broker.groups.repeated_nacks import RepeatedNacks
from services.broker.groups.stored_messages import Place
from services.broker.groups.trace import GroupProgress, Tracer
from services.broker.groups.trace_events import Role, group_of, home_of, role_of
from services.broker.schema.groups import GroupConfig as GroupChanges
from services.broker.schema.parsing import parsed
from shared.runtime.clock import SystemClock
from shared.state import records
from shared.state.records import DelayRecord, OffsetsRecord
from tests.support.small_broker import FIRST_MS, HOST, LEVELS_MS, SmallBroker
from tests.unit.broker.groups.test_nacks import Members
from tidemark.errors import BadRequest, UnknownMessage, UnknownTopic
from tidemark.formats import batch, delay, nack, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.record import Record
from tidemark.formats.runs import Run

RETRY = "%RETRY%billing"
DEAD = "%DLQ%billing"


class Remembered:
    """What a coordinator hands out: from the ring of deliveries."""

    def __init__(self) -> None:
        self.ring = Deliveries()

    def deliveries(self, group: str, topic: str, queue: int, queue_offset: int) -> list[Delivery]:
        return self.ring.find(group, (topic, queue), queue_offset)


class Kit:
    """A broker, its send-back and its traces."""

    def __init__(self, root: Path) -> None:
        self.broker = broker = SmallBroker(root)
        self.remembered = Remembered()
        self.nacks = Nacks(
            Copies(broker.append_part, broker.flusher_part, HOST, 32_747, pick=lambda count: 0),
            broker.messages,
            broker.topics,
            broker.configs,
            Members(),
            broker.counters,
            RepeatedNacks(broker.index, broker.dispatched, SystemClock()),
            delay_levels_ms=LEVELS_MS,
        )
        self.tracer = self.tracer_with_index(index=True)

    def tracer_with_index(self, *, index: bool) -> Tracer:
        broker = self.broker
        return Tracer(
            broker.messages,
            broker.topics,
            broker.index if index else None,
            GroupProgress(
                broker.offsets,
                self.remembered,
                CommitTimes(broker.queues, broker.reader, broker.dispatched),
            ),
            SystemClock(),
            delay_levels_ms=LEVELS_MS,
            flushed=lambda: broker.appender.flushed,
            dispatched=broker.dispatched,
        )

    async def topics(self, *names: str) -> None:
        for name in names or ("orders",):
            await self.broker.topics.create(name, 1)

    def later(self, ms: int = 1000) -> int:
        self.broker.now_ms += ms
        return self.broker.now_ms

    async def events(self, message_id: str, topic: str | None = None) -> list[dict[str, Any]]:
        found = await self.tracer.trace(message_id, topic)
        assert found.complete
        return [event.as_dict() for event in found.events]

    async def story(
        self, message_id: str, topic: str | None = None
    ) -> list[tuple[str, int | None]]:
        return [(event["what"], event["at_ms"]) for event in await self.events(message_id, topic)]

    def deliver(self, stored: Record, member: str = "m", group: str = "billing") -> int:
        """Let a member fetch the message; return when."""
        at_ms = self.later()
        first = stored.queue_offset
        delivery = Delivery(first, first + 1, member, 7, at_ms)
        self.remembered.ring.note(group, (stored.topic, stored.queue_id), delivery)
        return at_ms

    def commit(self, stored: Record, group: str = "billing") -> int:
        """Let the group be done with the message; return when that was written."""
        at_ms = self.later()
        moves = {(stored.topic, stored.queue_id): stored.queue_offset + 1}
        self.broker.offsets.accept(group, moves)
        self.broker.append_offsets_now([records.encode(OffsetsRecord(0, {group: moves}))])
        self.broker.dispatch()
        return at_ms

    async def nack(self, stored: Record, level: int = 0) -> int:
        at_ms = self.later()
        await self.nacks.nack("billing", stored.message_id, delay_level=level)
        self.broker.dispatch()
        return at_ms

    def release(self) -> Record:
        self.later()
        (released,) = self.broker.release()
        return released


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(tmp_path)
    yield kit
    kit.broker.close()


async def test_a_message_that_was_handled_at_once(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders")
    delivered, committed = kit.deliver(message), kit.commit(message)
    assert await kit.story(message.message_id) == [
        ("produced", FIRST_MS),
        ("flushed", None),
        ("dispatched", None),
        ("delivered", delivered),
        ("committed", committed),
    ]
    events = await kit.events("ID", "orders")
    assert [event.get("reason") for event in events] == [
        None,
        "not_recorded",
        "not_recorded",
        None,
        None,
    ]
    place = {
        "topic": "orders",
        "queue": 0,
        "queue_offset": 0,
        "physical_offset": message.physical_offset,
        "message_id": message.message_id,
    }
    assert events[0] == {
        "what": "produced",
        "at_ms": FIRST_MS,
        "for_topic": "orders",
        "born_host": "10.0.0.7:4711",
        "born_timestamp_ms": 77,
        **place,
    }
    assert events[3] == {
        "what": "delivered",
        "at_ms": delivered,
        "group": "billing",
        "member": "m",
        "generation": 7,
        **place,
    }
    assert events[4] == {
        "what": "committed",
        "at_ms": committed,
        "group": "billing",
        "committed_offset": 1,
        **place,
    }


async def test_a_message_that_fails_until_it_is_dead_and_is_redriven(kit: Kit) -> None:
    await kit.broker.configs.put("billing", parsed({"retry_max": 2}, GroupChanges))
    await kit.topics()
    message = kit.broker.send("orders")
    story: list[tuple[str, int | None]] = [
        ("produced", FIRST_MS),
        ("flushed", None),
        ("dispatched", None),
    ]
    current = message
    for _ in range(2):
        story.append(("delivered", kit.deliver(current)))
        story.append(("retried", await kit.nack(current)))
        story.append(("committed", kit.commit(current)))
        current = kit.release()
        story.append(("released", current.store_timestamp_ms))
    story.append(("delivered", kit.deliver(current)))
    story.append(("dead", await kit.nack(current)))
    story.append(("committed", kit.commit(current)))
    (letter,) = kit.broker.all(DEAD)
    raw = nack.redriven(letter, "billing", to_group=False)
    kit.later()
    copy = kit.broker.send("orders", unique_id=None, pairs=properties.parse(raw))
    story += [("redriven", copy.store_timestamp_ms), ("flushed", None), ("dispatched", None)]
    story.append(("delivered", kit.deliver(copy)))
    story.append(("committed", kit.commit(copy)))
    for found in (message, current, letter, copy):
        assert await kit.story(found.message_id) == story
    assert await kit.story("ID", "orders") == story
    events = await kit.events("ID", "orders")
    retried = [event for event in events if event["what"] == "retried"]
    assert [(each["group"], each["delay_level"]) for each in retried] == [
        ("billing", 3),
        ("billing", 4),
    ]
    assert [each["deliver_at_ms"] - each["at_ms"] for each in retried] == [10_000, 30_000]
    (dead,) = (event for event in events if event["what"] == "dead")
    assert (dead["group"], dead["reconsume_times"], dead["topic"]) == ("billing", 3, DEAD)
    (redriven,) = (event for event in events if event["what"] == "redriven")
    assert (redriven["group"], redriven["dead_queue_offset"]) == ("billing", 0)


async def test_a_delayed_message_before_and_after_its_time(kit: Kit) -> None:
    await kit.topics()
    waits = delay.by_level("orders", 0, b"UNIQ_KEY\x01ID\x02", 2, 4)
    assert waits.topic == SCHEDULE_TOPIC
    raw = properties.parse(waits.properties)
    waiting = kit.broker.send(waits.topic, queue=1, unique_id=None, pairs=raw)
    events = await kit.events("ID", "orders")
    assert [event["what"] for event in events] == ["produced", "delayed", "flushed", "dispatched"]
    assert events[0]["for_topic"] == "orders"
    assert (events[1]["delay_level"], events[1]["deliver_at_ms"]) == (2, FIRST_MS + 5000)
    released = kit.release()
    assert released.topic == "orders"
    story = await kit.story(released.message_id)
    assert story[-1] == ("released", released.store_timestamp_ms)
    assert story == await kit.story("ID", "orders")
    assert role_of(waiting) is Role.DELAYED
    assert (home_of(waiting), home_of(released)) == ("orders", "orders")


async def test_a_message_of_any_time_that_was_carried_forward(kit: Kit) -> None:
    await kit.topics()
    due_ms = FIRST_MS + 12_345
    waits = delay.by_time("orders", 0, b"UNIQ_KEY\x01ID\x02", due_ms, FIRST_MS)
    await kit.broker.topics.ensure_system(delay.TIMER_TOPIC, 1)
    raw = properties.parse(waits.properties)
    waiting = kit.broker.send(delay.TIMER_TOPIC, unique_id=None, pairs=raw)
    carried = delay.carried(waiting, due_ms)
    assert carried is not None
    kit.later()
    kit.broker.send(delay.TIMER_TOPIC, unique_id=None, pairs=properties.parse(carried.properties))
    events = await kit.events("ID", "orders")
    delayed = [event for event in events if event["what"] == "delayed"]
    assert [(each.get("carried", False), each["deliver_at_ms"]) for each in delayed] == [
        (False, due_ms),
        (True, due_ms),
    ]
    assert delayed[0]["delay_level"] is None


async def test_a_delayed_message_that_was_cancelled(kit: Kit) -> None:
    await kit.topics()
    waits = delay.by_level("orders", 0, b"UNIQ_KEY\x01ID\x02", 2, 4)
    raw = properties.parse(waits.properties)
    waiting = kit.broker.send(waits.topic, queue=1, unique_id=None, pairs=raw)
    at_ms = kit.later()
    cancelled = {(2, waiting.queue_offset): FIRST_MS + 5000, (3, 0): 1}
    kit.broker.append_offsets_now([records.encode(DelayRecord(0, cancelled=cancelled))])
    kit.broker.dispatch()
    story = await kit.story("ID", "orders")
    assert story == [
        ("produced", FIRST_MS),
        ("delayed", FIRST_MS),
        ("flushed", None),
        ("dispatched", None),
        ("cancelled", at_ms),
    ]


async def test_a_trace_covers_every_group_that_reads_the_topic(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders")
    kit.deliver(message, "a1", "audit")
    kit.commit(message, "audit")
    kit.deliver(message, "b1", "billing")
    kit.broker.offsets.accept("billing", {("orders", 0): 0})
    kit.broker.offsets.accept("shipping", {("orders", 0): 0})
    kit.broker.offsets.accept("elsewhere", {("bills", 0): 9})
    events = await kit.events(message.message_id)
    by_group = [(each["what"], each["group"]) for each in events if "group" in each]
    assert by_group == [("delivered", "audit"), ("committed", "audit"), ("delivered", "billing")]


async def test_a_commit_whose_record_is_not_found_has_no_time(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_times, "RECORDS_MAX", 3)
    await kit.topics()
    message = kit.broker.send("orders")
    other = kit.broker.send("orders", unique_id="OTHER")
    for _ in range(4):
        kit.commit(other, "elsewhere")
    kit.commit(message)
    (committed,) = (
        event
        for event in await kit.events(message.message_id)
        if event["what"] == "committed" and event["group"] == "billing"
    )
    assert (committed["at_ms"], committed["reason"]) == (None, "commit_not_found")


async def test_a_trace_whose_first_record_expired_says_so(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders")
    await kit.nack(message, -1)
    (letter,) = kit.broker.all(DEAD)
    await kit.broker.topics.delete("orders")
    await kit.topics()  # made again: what was before is not shown
    events = await kit.events(letter.message_id)
    assert events[0] == {
        "what": "produced",
        "at_ms": None,
        "reason": "expired",
        "topic": "orders",
        "message_id": message.message_id,
        "born_timestamp_ms": 77,
    }
    assert [event["what"] for event in events] == ["produced", "dead"]


async def test_a_message_without_unique_id_is_traced_as_far_as_one_record_goes(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders", unique_id=None)
    found = await kit.tracer.trace(message.message_id)
    assert (found.complete, found.unique_id) == (False, None)
    assert [event.what for event in found.events] == ["produced", "flushed", "dispatched"]


async def test_one_message_of_a_batch_is_traced_with_its_own_copies(kit: Kit) -> None:
    await kit.topics()
    batch = kit.broker.send_batch("orders", [WireMessage(b"0"), WireMessage(b"1")])
    kit.broker.offsets.accept("billing", {("orders", 0): 0})
    for offset in (0, 1):
        await kit.nacks.nack("billing", Place("orders", 0, offset), delay_level=-1)
    kit.broker.dispatch()
    *_, letter = kit.broker.all(DEAD)
    by_place = await kit.tracer.trace(batch.message_id, queue_offset=1)
    by_copy = await kit.tracer.trace(letter.message_id)
    by_id = await kit.tracer.trace(f"{batch.message_id}-1", "orders")
    for found in (by_place, by_copy, by_id):
        assert (bytes(found.message.body), found.message.queue_offset) == (b"1", 1)
        assert [event.what for event in found.events] == [
            "produced", "flushed", "dispatched", "dead",
        ]  # fmt: skip
        assert found.events[-1].facts["message_id"] == letter.message_id
    first = await kit.tracer.trace(batch.message_id)
    assert bytes(first.message.body) == b"0"


async def test_a_message_of_a_batch_is_found_by_the_unique_id_that_the_index_has(kit: Kit) -> None:
    await kit.topics()
    entries = [WireMessage(b"0", b"UNIQ_KEY\x01U0\x02"), WireMessage(b"1", b"UNIQ_KEY\x01U1\x02")]
    kit.broker.send_batch("orders", entries, unique_id="U0")
    found = await kit.tracer.trace("U0", "orders")
    assert (bytes(found.message.body), found.complete) == (b"0", True)


async def test_an_id_that_only_looks_like_one_of_a_copy_is_unknown(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders")
    for made_up in (f"{message.message_id[:-1]}9-0", f"{message.message_id}-7"):
        with pytest.raises(UnknownMessage):
            await kit.tracer.trace(made_up, "orders")


async def test_without_index_one_record_is_all_there_is(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders")
    blind = kit.tracer_with_index(index=False)
    found = await blind.trace(message.message_id)
    assert (found.complete, found.message.message_id) == (False, message.message_id)
    with pytest.raises(UnknownMessage):
        await blind.trace("ID", "orders")


async def test_groups_beyond_the_bound_are_counted(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "GROUPS_MAX", 2)
    await kit.topics()
    message = kit.broker.send("orders")
    for number in range(5):
        kit.broker.offsets.accept(f"g{number}", {("orders", 0): 1})
    found = await kit.tracer.trace(message.message_id)
    assert (found.groups_left_out, found.complete) == (3, False)


async def test_messages_of_another_topic_with_the_same_id_are_left_out(kit: Kit) -> None:
    await kit.topics("orders", "bills")
    order, bill = kit.broker.send("orders"), kit.broker.send("bills")
    kit.broker.offsets.accept("billing", {("orders", 0): 0, ("bills", 0): 0})
    await kit.nack(order)
    await kit.nack(bill, -1)
    assert [what for what, _ in await kit.story("ID", "orders")] == [
        "produced",
        "flushed",
        "dispatched",
        "retried",
    ]
    assert [what for what, _ in await kit.story("ID", "bills")] == [
        "produced",
        "flushed",
        "dispatched",
        "dead",
    ]


async def test_the_answer_has_the_oldest_record_as_the_api_shows_messages(kit: Kit) -> None:
    await kit.topics()
    message = kit.broker.send("orders", b"work")
    await kit.nack(message)
    found = await kit.tracer.trace("ID", "orders")
    shown = found.as_dict(kit.tracer.as_map(found.message, json_body=True))
    assert shown["message"]["message_id"] == message.message_id
    assert shown["message"]["body_text"] == "work"
    assert (shown["unique_id"], shown["groups_left_out"], shown["complete"]) == ("ID", 0, True)


async def test_unknown_messages(kit: Kit) -> None:
    await kit.topics()
    kit.broker.send("orders")
    with pytest.raises(UnknownMessage, match="no message with the unique id 'missing'"):
        await kit.tracer.trace("missing", "orders")
    with pytest.raises(UnknownTopic):
        await kit.tracer.trace("ID", "bills")
    with pytest.raises(BadRequest, match="is not a message id"):
        await kit.tracer.trace("ID")


def stored(kit: Kit, topic: str, raw: bytes, times: int = 0) -> Record:
    entries = batch.encode([WireMessage(b"", raw)])
    run = Run(topic, 0, entries, 1, HOST, HOST, reconsume_times=times)
    return kit.broker.record(kit.broker.append_now([run]).start)


def test_roles(kit: Kit) -> None:
    place = b"REAL_TOPIC\x01%s\x02REAL_QID\x010\x02"
    origin, redriven = b"TIDEMARK_DELAY_ORIGIN\x013@1\x02", b"TIDEMARK_REDRIVE_ORIGIN\x01g@1\x02"
    retry = place % RETRY.encode()
    for topic, raw, times, role in (
        ("orders", b"", 0, Role.PRODUCED),
        ("orders", origin, 0, Role.RELEASED),
        ("orders", redriven, 0, Role.REDRIVEN),
        (SCHEDULE_TOPIC, place % b"orders", 0, Role.DELAYED),
        (delay.TIMER_TOPIC, place % b"orders", 0, Role.DELAYED),
        (delay.TIMER_TOPIC, place % b"orders" + origin, 0, Role.CARRIED),
        (SCHEDULE_TOPIC, retry, 1, Role.RETRIED),
        (SCHEDULE_TOPIC, retry + redriven, 1, Role.RETRIED),
        (SCHEDULE_TOPIC, b"", 0, Role.DELAYED),
        (RETRY, retry + origin, 1, Role.RELEASED),
        (RETRY, retry, 1, Role.RELEASED),  # RocketMQ released it
        (RETRY, retry + origin + redriven, 1, Role.RELEASED),
        (RETRY, redriven, 0, Role.REDRIVEN),
        (DEAD, retry + redriven, 17, Role.DEAD),
    ):
        assert role_of(stored(kit, topic, raw, times)) is role, (topic, raw)


def test_homes_and_groups(kit: Kit) -> None:
    place = b"REAL_TOPIC\x01%s\x02REAL_QID\x010\x02"
    retry, back = place % RETRY.encode(), b"RETRY_TOPIC\x01orders\x02"
    for topic, raw, home, group in (
        ("orders", b"", "orders", None),
        ("bills", b"REAL_TOPIC\x01x\x02REAL_QID\x010\x02", "bills", None),
        (SCHEDULE_TOPIC, place % b"orders", "orders", None),
        (SCHEDULE_TOPIC, retry + back, "orders", "billing"),
        (RETRY, retry + back, "orders", "billing"),
        (DEAD, retry + back, "orders", "billing"),
        (DEAD, b"", DEAD, "billing"),
    ):
        found = stored(kit, topic, raw)
        assert (home_of(found), group_of(found)) == (home, group), (topic, raw)
