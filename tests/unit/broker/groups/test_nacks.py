"""Nack over a real small store: what is stored for a message, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.groups.copies import Copies
from services.broker.groups.nacks import Nacks
from services.broker.groups.repeated_nacks import RepeatedNacks
from services.broker.groups.stored_messages import Place
from services.broker.schema.groups import GroupConfig as GroupChanges
from services.broker.schema.parsing import parsed
from shared.runtime.clock import SystemClock
from shared.state.records import GroupConfig
from tests.support.metrics import sample
from tests.support.small_broker import BORN, HOST, LEVELS_MS, SmallBroker
from tidemark.errors import (
    AckTimeout,
    BadRequest,
    BroadcastGroup,
    DelayOutOfRange,
    DispatchBehind,
    MemberRequired,
    NotAssigned,
    NotPermitted,
    StaleGeneration,
    TidemarkError,
    UnknownGroup,
    UnknownMember,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from tidemark.formats.batch import WireMessage
from tidemark.formats.nack import PROPERTIES_ROOM, redriven
from tidemark.formats.record import Record
from tidemark.offsets import Queue

RETRY = "%RETRY%billing"
DEAD = "%DLQ%billing"


class Members:
    """A group with one member, or none."""

    def __init__(self) -> None:
        self.refusal: TidemarkError | None = None
        self.asked: list[tuple[str, str | None, int | None]] = []
        self.held: set[Queue] = {("orders", 0)}

    def check_caller(self, group: str, member: str | None, generation: int | None) -> None:
        self.asked.append((group, member, generation))
        if self.refusal is not None:
            raise self.refusal

    def holds(self, group: str, member: str, queue: Queue) -> bool:
        return queue in self.held


class Kit:
    """A broker and its send-back."""

    def __init__(self, root: Path, *, properties_size_max: int = 32_747) -> None:
        self.broker = SmallBroker(root)
        self.members = Members()
        self.index_is_whole = True
        self.nacks = Nacks(
            Copies(
                self.broker.append_part,
                self.broker.flusher_part,
                HOST,
                properties_size_max,
                pick=lambda count: count - 1,
            ),
            self.broker.messages,
            self.broker.topics,
            self.broker.configs,
            self.members,
            self.broker.counters,
            self.repeated(),
            delay_levels_ms=LEVELS_MS,
        )

    def repeated(self) -> RepeatedNacks:
        """The repeated nacks of a process that has just started."""
        return RepeatedNacks(
            self.broker.index,
            self.broker.dispatched,
            SystemClock(),
            index_is_whole=lambda: self.index_is_whole,
        )

    def start_anew(self) -> None:
        """All that was stored is dispatched, and this process remembers nothing of it."""
        self.broker.dispatch()
        self.nacks._repeated = self.repeated()

    async def message(self, **more: object) -> Record:
        await self.broker.topics.create("orders", 1)
        return self.broker.send("orders", **more)  # type: ignore[arg-type]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(tmp_path)
    yield kit
    kit.broker.close()


async def test_a_message_that_comes_back_waits_under_the_schedule_topic(kit: Kit) -> None:
    message = await kit.message(body=b"work", flag=9)
    kit.broker.now_ms += 500
    sent = await kit.nacks.nack("billing", message.message_id)
    kit.broker.dispatch()
    (waiting,) = kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)
    assert sent.as_dict() == {
        "status": "RETRY",
        "topic": RETRY,
        "reconsume_times": 1,
        "delay_level": 3,
        "deliver_at_ms": kit.broker.now_ms + LEVELS_MS[2],
        "message_id": waiting.message_id,
        "unique_id": "ID",
    }
    assert (bytes(waiting.body), waiting.flag, waiting.reconsume_times) == (b"work", 9, 1)
    assert (waiting.born_host, waiting.born_timestamp_ms, waiting.store_host) == (BORN, 77, HOST)
    found = waiting.property_map
    found.pop("__CRC32#")
    assert found == {
        "UNIQ_KEY": "ID",
        "WAIT": "false",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": message.message_id,
        "DELAY": "3",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    assert kit.broker.own[-1], "it goes on while sends are refused"
    assert kit.broker.topics.get(RETRY).queues == 1


async def test_a_message_walks_through_all_its_retries_to_the_dead_letters(kit: Kit) -> None:
    await kit.broker.configs.put("billing", parsed({"retry_max": 5}, GroupChanges))
    first = await kit.message(pairs={"KEYS": "order-1", "TAGS": "new"})
    current, levels = first, []
    for times in range(1, 6):
        sent = await kit.nacks.nack("billing", current.message_id)
        assert (sent.status, sent.reconsume_times) == ("RETRY", times)
        levels.append(sent.delay_level)
        kit.broker.dispatch()
        (current,) = kit.broker.release()
        assert (current.topic, current.reconsume_times) == (RETRY, times)
    assert levels == [3, 4, 4, 4, 4], "four levels: the last one serves for all above"
    sent = await kit.nacks.nack("billing", current.message_id)
    assert (sent.status, sent.topic, sent.delay_level) == ("DEAD", DEAD, 0)
    assert (sent.reconsume_times, sent.deliver_at_ms) == (6, None)
    kit.broker.dispatch()
    (letter,) = kit.broker.all(DEAD)
    assert letter.message_id == sent.message_id
    assert (letter.reconsume_times, letter.unique_id, letter.keys) == (6, "ID", ["order-1"])
    found = letter.property_map
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("orders", first.message_id)
    assert found["DELAY"] == "0"
    assert "TIDEMARK_DELAY_ORIGIN" not in found
    name = "tidemark_group_dead_messages_total"
    labels = {"group": "billing", "topic": "orders"}
    assert sample(kit.broker.registry, name, labels) == 1


async def test_a_message_can_be_dead_at_once_or_wait_at_a_level_of_choice(kit: Kit) -> None:
    message = await kit.message()
    sent = await kit.nacks.nack("billing", Place("orders", 0, 0), delay_level=1)
    assert (sent.status, sent.delay_level) == ("RETRY", 1)
    sent = await kit.nacks.nack("billing", message.message_id.lower(), delay_level=-1)
    assert (sent.status, sent.topic) == ("DEAD", DEAD)


async def test_retries_are_spread_over_the_groups_retry_queues(kit: Kit) -> None:
    await kit.broker.configs.put("billing", parsed({"retry_queues": 3}, GroupChanges))
    message = await kit.message()
    await kit.nacks.nack("billing", message.message_id)
    kit.broker.dispatch()
    (waiting,) = kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)
    assert waiting.property_map["REAL_QID"] == "2"


# RocketMQ reports success there too, and the message is lost once it is committed.
async def test_a_nack_in_a_rocketmq_group_without_retry_queues_is_refused(kit: Kit) -> None:
    message = await kit.message()
    kit.broker.state.groups["billing"] = GroupConfig("billing", retry_queues=0)
    end = kit.broker.appender.appended
    sent = await kit.nacks.nack("billing", message.message_id)
    assert (sent.status, sent.topic, sent.message_id) == ("IGNORED", None, None)
    assert kit.broker.appender.appended == end


BATCH = [
    WireMessage(b"0", b"UNIQ_KEY\x01U0\x02KEYS\x01k\x02", 3),
    WireMessage(b"1", b"TAGS\x01new\x02", 4),
    WireMessage(b"2"),
]


async def test_a_single_message_of_a_batch_comes_back_as_an_ordinary_record(kit: Kit) -> None:
    await kit.broker.topics.create("orders", 1)
    batch = kit.broker.send_batch("orders", BATCH, unique_id="U0")
    sent = await kit.nacks.nack("billing", Place("orders", 0, 1))
    assert sent.unique_id == f"{batch.message_id}-1"
    kit.broker.dispatch()
    (waiting,) = kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)
    assert (bytes(waiting.body), waiting.flag, waiting.reconsume_times) == (b"1", 4, 1)
    assert (waiting.sys_flag & 0xC0, waiting.born_host, waiting.born_timestamp_ms) == (0, BORN, 77)
    found = waiting.property_map
    found.pop("__CRC32#")
    assert found == {
        "TAGS": "new",
        "UNIQ_KEY": f"{batch.message_id}-1",
        "WAIT": "false",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": batch.message_id,
        "DELAY": "3",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    (released,) = kit.broker.release()
    assert (released.topic, bytes(released.body)) == (RETRY, b"1")


async def test_messages_of_a_batch_have_copies_of_their_own(kit: Kit) -> None:
    await kit.broker.topics.create("orders", 1)
    batch = kit.broker.send_batch("orders", BATCH, unique_id="U0")
    ids = []
    for offset in range(3):
        sent = await kit.nacks.nack(
            "billing", Place("orders", 0, offset), delay_level=-1, nack_id=f"nack {offset}"
        )
        ids.append(sent.unique_id)
    assert ids == ["U0", f"{batch.message_id}-1", f"{batch.message_id}-2"]
    end = kit.broker.appender.appended
    kit.start_anew()
    for offset in range(3):
        again = await kit.nacks.nack(
            "billing", Place("orders", 0, offset), delay_level=-1, nack_id=f"nack {offset}",
            is_repeat=True,
        )  # fmt: skip
        assert again.unique_id == ids[offset]
    assert kit.broker.appender.appended == end, "each copy is found again"
    assert [bytes(each.body) for each in kit.broker.all(DEAD)] == [b"0", b"1", b"2"]


# The first message would be retried, and the one that failed committed and lost.
async def test_the_id_of_several_messages_names_none_of_them(kit: Kit) -> None:
    await kit.broker.topics.create("orders", 1)
    single = kit.broker.send_batch("orders", BATCH[:1])
    batch = kit.broker.send_batch("orders", BATCH)
    with pytest.raises(BadRequest, match="the 3 messages at queue offset 1 and after") as caught:
        await kit.nacks.nack("billing", batch.message_id)
    assert caught.value.facts["queue_offset"] == 1
    assert (await kit.nacks.nack("billing", single.message_id)).unique_id == "U0"


@pytest.mark.parametrize("level", [-2, 5, 18])
async def test_a_level_that_there_is_not_is_refused(kit: Kit, level: int) -> None:
    message = await kit.message()
    with pytest.raises(DelayOutOfRange, match="levels 1 to 4"):
        await kit.nacks.nack("billing", message.message_id, delay_level=level)


async def test_broadcast_groups_send_nothing_back(kit: Kit) -> None:
    await kit.broker.configs.put("billing", parsed({"broadcast": True}, GroupChanges))
    message = await kit.message()
    with pytest.raises(BroadcastGroup):
        await kit.nacks.nack("billing", message.message_id)


async def test_an_invisible_message_is_unknown(kit: Kit) -> None:
    message = await kit.message()
    nack = kit.nacks.nack
    with pytest.raises(UnknownMessage, match="no queue points there"):
        await nack("billing", f"{message.message_id[:16]}{message.physical_offset + 1:016X}")
    with pytest.raises(UnknownMessage, match="stored by another host"):
        await nack("billing", f"0A0A0A0A00000001{message.physical_offset:016X}")
    with pytest.raises(UnknownMessage, match="no message at offset 1 of queue 0"):
        await nack("billing", Place("orders", 0, 1))
    with pytest.raises(UnknownQueue):
        await nack("billing", Place("orders", 7, 0))
    with pytest.raises(UnknownTopic):
        await nack("billing", Place("bills", 0, 0))
    with pytest.raises(BadRequest, match="is not a message id"):
        await nack("billing", "4711")
    assert kit.broker.configs.find("billing") is None, "no group is made for nothing"


async def test_internal_messages_of_the_broker_cannot_be_nacked(kit: Kit) -> None:
    await kit.broker.topics.ensure_system("rmq_sys_wheel_timer", 1)
    kit.broker.send("rmq_sys_wheel_timer")
    with pytest.raises(NotPermitted, match="internal to the broker"):
        await kit.nacks.nack("billing", Place("rmq_sys_wheel_timer", 0, 0))


async def test_a_dead_letter_that_is_consumed_can_come_back_again(kit: Kit) -> None:
    message = await kit.message()
    await kit.nacks.nack("billing", message.message_id, delay_level=-1)
    kit.broker.dispatch()
    sent = await kit.nacks.nack("undertaker", Place(DEAD, 0, 0))
    assert (sent.status, sent.topic) == ("RETRY", "%RETRY%undertaker")


REFUSALS = [StaleGeneration("old"), UnknownMember("gone"), MemberRequired("say who")]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_former_member_cannot_nack(kit: Kit, refusal: TidemarkError) -> None:
    message = await kit.message()
    kit.members.refusal = refusal
    with pytest.raises(type(refusal)):
        await kit.nacks.nack("billing", message.message_id, member="m", generation=4)
    assert kit.members.asked == [("billing", "m", 4)]


async def test_a_tool_nacks_a_message_that_no_member_has_in_hand(kit: Kit) -> None:
    message = await kit.message()
    kit.members.refusal = MemberRequired("say who")
    sent = await kit.nacks.nack("billing", message.message_id, without_member=True)
    assert sent.status == "RETRY"
    assert kit.members.asked == []


async def test_only_the_holder_of_a_queue_nacks_its_messages(kit: Kit) -> None:
    message = await kit.message()
    nack = kit.nacks.nack
    assert (await nack("billing", message.message_id, member="m")).status == "RETRY"
    kit.members.held.clear()
    with pytest.raises(NotAssigned, match="queue 0 of topic 'orders'"):
        await nack("billing", message.message_id, member="m")
    assert (await nack("billing", message.message_id)).status == "RETRY", (
        "the caller named no member"
    )


async def test_a_group_that_may_not_be_made_is_unknown(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.broker.configs._auto_create = False
    message = await kit.message()
    with pytest.raises(UnknownGroup):
        await kit.nacks.nack("billing", message.message_id)
    kit.broker.close()


# A message with 32,600 bytes of properties was accepted; its nack was refused as too large. Every
# member that received it ended, one after another, forever.
async def test_any_message_that_may_be_sent_can_be_retried(kit: Kit) -> None:
    message = await kit.message(pairs={"long": "x" * (32_747 - PROPERTIES_ROOM - 20)})
    sent = await kit.nacks.nack("billing", message.message_id)
    assert sent.status == "RETRY"


async def test_a_message_without_room_for_a_retry_becomes_a_dead_letter_with_the_reason(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {"KEYS": "order-1", "long": "x" * 32_690, "short": "y"}
    message = await kit.message(pairs=pairs, body=b"work")
    sent = await kit.nacks.nack("billing", message.message_id)
    assert (sent.status, sent.topic, sent.reconsume_times) == ("DEAD", DEAD, 1)
    kit.broker.dispatch()
    (letter,) = kit.broker.all(DEAD)
    found = letter.property_map
    assert bytes(letter.body) == b"work"
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("orders", message.message_id)
    assert (found["KEYS"], found["UNIQ_KEY"], found["short"]) == ("order-1", "ID", "y")
    assert "long" not in found
    assert found["TIDEMARK_DROPPED_PROPERTIES"] == "long"
    (named,) = [each for each in caplog.records if each.event == "dead-letter-shortened"]  # type: ignore[attr-defined]
    assert named.__dict__["count"] == 1
    assert named.__dict__["message_id"] == message.message_id


async def test_a_message_that_fills_its_file_becomes_a_dead_letter(kit: Kit) -> None:
    body = bytes(kit.broker.records_size_max - 31_000)
    message = await kit.message(body=body, pairs={"long": "x" * 30_800})
    sent = await kit.nacks.nack("billing", message.message_id)
    assert sent.status == "DEAD"
    kit.broker.dispatch()
    (letter,) = kit.broker.all(DEAD)
    assert bytes(letter.body) == body


async def test_a_shortened_letter_has_room_to_be_redriven_and_sent_back(tmp_path: Path) -> None:
    kit = Kit(tmp_path, properties_size_max=2000)
    message = await kit.message(pairs={"long": "x" * 1800, "KEYS": "k " * 50})
    assert (await kit.nacks.nack("billing", message.message_id)).status == "DEAD"
    kit.broker.dispatch()
    (letter,) = kit.broker.all(DEAD)
    copy = redriven(letter, "billing", to_group=True)
    assert len(copy) <= 2000 - PROPERTIES_ROOM // 2
    assert (await kit.nacks.nack("undertaker", letter.message_id)).status == "RETRY"
    kit.broker.close()


async def test_a_node_that_stops_first_says_that_the_outcome_is_unknown(kit: Kit) -> None:
    message = await kit.message()
    await kit.nacks.nack("billing", message.message_id)
    kit.broker.is_stopping = True
    with pytest.raises(AckTimeout, match="outcome is unknown") as refused:
        await kit.nacks.nack("billing", message.message_id)
    assert refused.value.reconsume_times == 1


async def test_a_count_at_its_end_stays_there(kit: Kit) -> None:
    message = await kit.message(reconsume_times=(1 << 31) - 1)
    sent = await kit.nacks.nack("billing", message.message_id)
    assert (sent.status, sent.reconsume_times) == ("DEAD", (1 << 31) - 1)


# It stored a second copy, which was delivered, and handled, as well.
@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize("starts_anew", [False, True])
async def test_a_repeated_nack_stores_one_copy_and_is_answered_as_the_first(
    kit: Kit, level: int, starts_anew: bool
) -> None:
    message = await kit.message()
    # A nack of another group, and an earlier one of this group, have the same unique id.
    for group, nack_id in ("other", "x"), ("billing", "earlier"):
        await kit.nacks.nack(group, message.message_id, delay_level=level, nack_id=nack_id)
    first = await kit.nacks.nack("billing", message.message_id, delay_level=level, nack_id="once")
    end = kit.broker.appender.appended
    if starts_anew:
        kit.start_anew()
    for _ in range(2):
        again = await kit.nacks.nack(
            "billing", message.message_id, delay_level=level, nack_id="once", is_repeat=True
        )
        assert again == first
    assert kit.broker.appender.appended == end
    # Its first try may come behind its repetition.
    if not starts_anew:
        assert first == await kit.nacks.nack(
            "billing", message.message_id, delay_level=level, nack_id="once"
        )


async def test_a_repeated_nack_that_was_not_carried_out_stores_a_copy(kit: Kit) -> None:
    message = await kit.message()
    await kit.nacks.nack("billing", message.message_id, nack_id="delivery-1")
    kit.start_anew()
    # As after a reset of the group: the message came again, and failed again.
    for nack_id in "delivery-2", "delivery-3":
        await kit.nacks.nack("billing", message.message_id, nack_id=nack_id, is_repeat=True)
    kit.broker.dispatch()
    waiting = kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)
    assert [each.property_map["TIDEMARK_NACK_ID"] for each in waiting] == [
        "delivery-1",
        "delivery-2",
        "delivery-3",
    ]


async def test_a_nack_and_its_repetition_at_once_store_one_copy(kit: Kit) -> None:
    message = await kit.message()
    first, again = await asyncio.gather(
        kit.nacks.nack("billing", message.message_id, nack_id="once"),
        kit.nacks.nack("billing", message.message_id, nack_id="once", is_repeat=True),
    )
    assert first == again
    kit.broker.dispatch()
    assert len(kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)) == 1


async def test_a_nack_that_stored_nothing_may_be_repeated(kit: Kit) -> None:
    message = await kit.message()
    kit.broker.is_stopping = True
    with pytest.raises(TidemarkError):
        await kit.nacks.nack("billing", message.message_id, nack_id="once")
    kit.broker.is_stopping = False
    await kit.nacks.nack("billing", message.message_id, nack_id="once", is_repeat=True)
    kit.broker.dispatch()
    assert len(kit.broker.all("SCHEDULE_TOPIC_XXXX", 2)) == 1


async def test_while_the_index_is_rebuilt_a_repeated_nack_is_refused(kit: Kit) -> None:
    message = await kit.message()
    kit.index_is_whole = False
    with pytest.raises(DispatchBehind, match="sent back before"):
        await kit.nacks.nack("billing", message.message_id, nack_id="once", is_repeat=True)
    await kit.nacks.nack("billing", message.message_id, nack_id="other")


async def test_a_redriven_copy_has_no_nack_id_and_a_retry_that_of_the_last_nack(kit: Kit) -> None:
    message = await kit.message()
    await kit.nacks.nack("billing", message.message_id, nack_id="one")
    kit.broker.dispatch()
    (current,) = kit.broker.release()
    assert current.property_map["TIDEMARK_NACK_ID"] == "one"
    await kit.nacks.nack("billing", current.message_id, delay_level=-1, nack_id="two")
    kit.broker.dispatch()
    (letter,) = kit.broker.all(DEAD, 0)
    assert letter.properties.count(b"TIDEMARK_NACK_ID") == 1
    assert letter.property_map["TIDEMARK_NACK_ID"] == "two"
    assert b"TIDEMARK_NACK_ID" not in redriven(letter, "billing", to_group=False)


async def test_without_retries_the_first_failure_is_the_last(kit: Kit) -> None:
    await kit.broker.configs.put("billing", parsed({"retry_max": 0}, GroupChanges))
    message = await kit.message()
    assert (await kit.nacks.nack("billing", message.message_id)).status == "DEAD"
