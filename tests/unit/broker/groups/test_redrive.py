"""Redrive over a real small store: every dead letter is sent again, and none of them twice."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.groups import dead_letters
from services.broker.groups.copies import Copies
from services.broker.groups.dead_letters import DeadLetters, LetterFilter, Redriven
from services.broker.groups.redrive import COMPRESSED, Redrive, RedriveRequest, RedriveResult
from services.broker.log.append import Appended
from services.broker.read import query
from services.broker.send.batches import Batches
from shared.files.index import Asked, Budget
from shared.runtime import time_slicer
from shared.runtime.clock import SystemClock
from tests.support.log_contexts import log_context_of
from tests.support.small_broker import BORN, FIRST_MS, HOST, SmallBroker
from tests.support.stored_messages import messages_of, records_of
from tidemark.errors import (
    AckTimeout,
    DispatchBehind,
    IndexDisabled,
    Overloaded,
    TidemarkError,
    UnknownGroup,
)
from tidemark.formats import batch, inner_batch, nack, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

RETRY = "%RETRY%billing"
DEAD = "%DLQ%billing"
ALL = LetterFilter()


class Kit:
    """A broker with dead letters of the group billing."""

    def __init__(self, root: Path) -> None:
        self.broker = SmallBroker(root)
        self.again()

    def again(
        self,
        *,
        properties_size_max: int = 32_747,
        index_is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """The parts as a new process makes them: what was in memory is gone."""
        broker = self.broker
        self.letters = DeadLetters(
            broker.messages,
            broker.topics,
            broker.index,
            broker.dispatched,
            SystemClock(),
            index_is_whole=index_is_whole,
        )
        self.redriver = Redrive(
            Copies(
                broker.append_part,
                broker.flusher_part,
                HOST,
                properties_size_max,
                pick=lambda count: 0,
            ),
            self.letters,
            broker.topics,
            broker.configs,
            Batches(
                log_context_of(
                    clock=SystemClock(),
                    host=HOST,
                    config=SimpleNamespace(store=broker.store.config),
                ),
                broker.topics,
            ),
        )

    async def topics(self, *names: str) -> None:
        await self.broker.configs.ensure("billing")
        for name in names or ("orders",):
            await self.broker.topics.create(name, 2)

    async def die(
        self,
        body: bytes,
        *,
        topic: str = "orders",
        unique_id: str | None = None,
        pairs: dict[str, str] | None = None,
    ) -> Record:
        """One message that is a dead letter now."""
        name = unique_id if unique_id is not None else f"ID-{body.decode()}"
        sent = self.broker.send(topic, body, unique_id=name or None, pairs=pairs)
        raw = nack.nacked(sent, dead=True)
        await self.broker.configs.dead_topic("billing")
        return self.broker.send(
            DEAD, body, unique_id=None, pairs=properties.parse(raw), reconsume_times=17
        )

    async def redrive(
        self,
        wanted: LetterFilter = ALL,
        *,
        to_group: bool = False,
        from_offset: int = 0,
        matched_max: int = 1000,
        dry_run: bool = False,
    ) -> RedriveResult:
        request = RedriveRequest(to_group, wanted, from_offset, matched_max, dry_run)
        return await self.redriver.redrive("billing", request)

    def copies(self, topic: str = "orders") -> list[bytes]:
        """Bodies of the messages of a topic that were dead letters, in the order of its queues."""
        self.broker.dispatch()
        return [
            bytes(each.body)
            for queue in range(2)
            for each in self.broker.all(topic, queue)
            if nack.redrive_origin(each.properties) is not None
        ]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(tmp_path)
    yield kit
    kit.broker.close()


def counts(result: RedriveResult) -> tuple[int, int, int]:
    return result.matched, result.redriven, result.skipped


async def test_dead_letters_go_back_to_their_topic_as_new_messages(kit: Kit) -> None:
    await kit.topics()
    letter = await kit.die(b"a", pairs={"TAGS": "new", "KEYS": "k1 k2", "colour": "red"})
    kit.broker.now_ms += 1000
    result = await kit.redrive()
    assert result.as_dict() == {
        "matched": 1,
        "redriven": 1,
        "skipped": 0,
        "refused": 0,
        "refusals": [],
        "next_offset": 1,
        "max_offset": 1,
        "done": True,
        "dry_run": False,
    }
    kit.broker.dispatch()
    copy = kit.broker.all("orders")[-1]
    assert (bytes(copy.body), copy.reconsume_times, copy.unique_id) == (b"a", 0, "ID-a")
    assert (copy.tags, copy.keys, copy.born_host) == ("new", ["k1", "k2"], BORN)
    found = copy.property_map
    assert found["TIDEMARK_REDRIVE_ORIGIN"] == f"billing@{letter.queue_offset}"
    assert found["colour"] == "red"
    assert not found.keys() & {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "WAIT", "REAL_TOPIC"}
    assert not kit.broker.own[-1], "user data: refused while the disk is full"


async def test_dead_letters_of_a_batch_topic_go_back_as_batches(kit: Kit) -> None:
    await kit.broker.configs.ensure("billing")
    await kit.broker.topics.create("batches", 1, is_batch=True)
    for body in (b"a", b"b"):
        await kit.die(body, topic="batches", pairs={"TAGS": "new"})
    before = len(records_of(kit.broker, "batches"))
    assert counts(await kit.redrive()) == (2, 2, 0)
    copies = records_of(kit.broker, "batches")[before:]
    assert {each.sys_flag for each in copies} == {inner_batch.SYS_FLAGS}
    assert [each.unique_id for each in copies] == ["ID-a", "ID-b"]
    found = messages_of(kit.broker, "batches")[before:]
    assert [bytes(each.body) for each in found] == [b"a", b"b"]
    assert all(nack.redrive_origin(each.properties) is not None for each in found)


async def test_a_compressed_letter_is_not_put_into_a_batch(kit: Kit) -> None:
    await kit.broker.configs.ensure("billing")
    await kit.broker.topics.create("batches", 1, is_batch=True)
    letter = await kit.die(b"a", topic="batches")
    run = Run(DEAD, 0, batch.encode([WireMessage(b"z", letter.properties)]), 1, BORN, HOST)
    kit.broker.append_now([run._replace(sys_flag=COMPRESSED)])
    kit.broker.dispatch()
    end = kit.broker.appender.appended
    result = (await kit.redrive(from_offset=1)).as_dict()
    assert (result["matched"], result["redriven"], result["refused"]) == (1, 0, 1)
    assert result["refusals"][0]["code"] == "not-permitted"
    assert kit.broker.appender.appended == end
    assert counts(await kit.redrive(from_offset=1, to_group=True)) == (1, 1, 0)


async def test_dead_letters_can_go_back_to_their_group_alone(kit: Kit) -> None:
    await kit.topics()
    letter = await kit.die(b"a")
    before = len(kit.broker.all("orders"))
    assert counts(await kit.redrive(to_group=True)) == (1, 1, 0)
    kit.broker.dispatch()
    assert len(kit.broker.all("orders")) == before
    (copy,) = kit.broker.all(RETRY)
    assert copy.reconsume_times == 0
    assert copy.property_map["RETRY_TOPIC"] == "orders"
    origin = letter.property_map["ORIGIN_MESSAGE_ID"]
    assert copy.property_map["ORIGIN_MESSAGE_ID"] == origin


async def test_a_copy_in_a_batch_is_found_again(kit: Kit) -> None:
    await kit.topics()
    letter = await kit.die(b"a")
    raw = nack.redriven(letter, "billing", to_group=False)
    await kit.broker.topics.create("orders", 3)
    kit.broker.send_batch("orders", [WireMessage(b"a", raw)], queue=2, unique_id="ID-a")
    assert counts(await kit.redrive()) == (1, 0, 1)


@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("unique_id", ["ID", ""])
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("then_to_group", [False, True])
async def test_a_letter_is_redriven_once(
    kit: Kit, to_group: bool, unique_id: str, dispatched: bool, then_to_group: bool
) -> None:
    await kit.topics()
    await kit.die(b"a", unique_id=unique_id)
    await kit.redrive(to_group=to_group)
    if dispatched:
        kit.broker.dispatch()
    assert counts(await kit.redrive(to_group=then_to_group)) == (1, 0, 1)
    assert len(kit.copies("orders") + kit.copies(RETRY)) == 1


# A crash between two appends: a letter with a copy is known by it, the others are sent again.
@pytest.mark.parametrize("survived", range(8))
async def test_after_a_crash_only_letters_without_a_copy_are_sent_again(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    await kit.topics()
    for number in range(7):
        await kit.die(b"%d" % number)
    monkeypatch.setattr("services.broker.groups.redrive.LETTERS_AT_ONCE", 1)
    append, left = kit.broker.append_now, survived

    def crash(runs: Sequence[Run]) -> Appended:
        nonlocal left
        if left == 0:
            raise TidemarkError("killed")
        left -= 1
        return append(runs)

    monkeypatch.setattr(kit.broker, "append_now", crash)
    if survived < 7:
        with pytest.raises(TidemarkError, match="killed"):
            await kit.redrive()
    else:
        await kit.redrive()
    monkeypatch.setattr(kit.broker, "append_now", append)
    kit.broker.dispatch()
    kit.again()
    assert counts(await kit.redrive()) == (7, 7 - survived, survived)
    assert kit.copies() == [b"%d" % number for number in range(7)]


async def test_a_copy_that_its_topic_does_not_show_any_more_still_counts(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    await kit.redrive()
    kit.broker.dispatch()
    await kit.broker.topics.delete("orders")
    kit.again()
    assert counts(await kit.redrive()) == (1, 0, 1)


async def test_a_letter_that_came_of_a_redriven_one_can_be_redriven(kit: Kit) -> None:
    await kit.topics()
    first = await kit.die(b"a", unique_id="ID")
    await kit.redrive()
    kit.broker.dispatch()
    copy = kit.broker.all("orders")[-1]
    raw = properties.parse(nack.nacked(copy, dead=True))
    second = kit.broker.send(DEAD, b"a", unique_id=None, pairs=raw, reconsume_times=17)
    assert second.property_map["TIDEMARK_REDRIVE_ORIGIN"] == f"billing@{first.queue_offset}"
    assert counts(await kit.redrive()) == (2, 1, 1)
    kit.broker.dispatch()
    origin = kit.broker.all("orders")[-1].property_map["TIDEMARK_REDRIVE_ORIGIN"]
    assert origin == f"billing@{second.queue_offset}"
    assert counts(await kit.redrive()) == (2, 0, 2)


# One look-up reads a bounded number of bytes. With more of one unique id, such as a large message's
# retries, the letter counted as sent again, in this call and in every later one.
@pytest.mark.parametrize("to_group", [False, True])
async def test_a_letter_of_a_large_message_with_many_retries_is_redriven_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, to_group: bool
) -> None:
    monkeypatch.setattr(query, "Budget", lambda: Budget(size=3000))
    await kit.topics()
    await kit.broker.configs.retry_topic("billing")
    for _ in range(6):
        kit.broker.send(RETRY, b"r" * 1000, unique_id="ID")
    await kit.die(b"a", unique_id="ID")
    for _ in range(100):  # all in one second, which is all that the index knows of their time
        kit.broker.send("orders", b"s" * 1000, unique_id="ID")
        kit.broker.send(RETRY, b"r" * 1000, unique_id="ID")
    assert counts(await kit.redrive(to_group=to_group)) == (1, 1, 0)
    kit.broker.dispatch()
    for _ in range(10):
        kit.broker.send("orders", b"s" * 1000, unique_id="ID")
        kit.broker.send(RETRY, b"r" * 1000, unique_id="ID")
    kit.again()
    assert counts(await kit.redrive(to_group=not to_group)) == (1, 0, 1)
    assert len(kit.copies("orders") + kit.copies(RETRY)) == 1


async def test_a_look_for_a_copy_does_not_judge_what_lies_before_the_letter(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.topics()
    for _ in range(30):
        kit.broker.send("orders", unique_id="ID")
    letter = await kit.die(b"a", unique_id="ID")
    judged: list[int] = []
    real = kit.broker.index.judge

    def judge(offset: PhysicalOffset, asked: Asked) -> tuple[Record | None, int] | None:
        judged.append(offset)
        return real(offset, asked)

    monkeypatch.setattr(kit.broker.index, "judge", judge)
    assert await kit.letters.was_sent_again("billing", letter) is Redriven.NO
    assert not judged
    await kit.redrive()
    kit.broker.dispatch()
    assert await kit.letters.was_sent_again("billing", letter) is Redriven.YES
    assert len(judged) == 1


async def test_filters(kit: Kit) -> None:
    await kit.topics("orders", "bills")
    letters = []
    for number in range(12):
        kit.broker.now_ms = FIRST_MS + number * 1000
        topic = "bills" if number % 3 == 0 else "orders"
        pairs = {"KEYS": f"k{number % 2} all"}
        letters.append(await kit.die(b"%d" % number, topic=topic, pairs=pairs))

    async def matched(wanted: LetterFilter) -> list[int]:
        result = await kit.redrive(wanted, dry_run=True)
        numbers = [number for number, each in enumerate(letters) if wanted.matches(each)]
        assert result.matched == result.redriven == len(numbers)
        return numbers

    assert await matched(ALL) == list(range(12))
    assert await matched(LetterFilter(topic="bills")) == [0, 3, 6, 9]
    assert await matched(LetterFilter(key="k1")) == [1, 3, 5, 7, 9, 11]
    assert await matched(LetterFilter(topic="orders", key="k1")) == [1, 5, 7, 11]
    window = LetterFilter(begin_ms=FIRST_MS + 2000, end_ms=FIRST_MS + 4000)
    assert await matched(window) == [2, 3, 4]
    assert await matched(LetterFilter(message_id=letters[4].message_id.lower())) == [4]
    first_id = letters[5].property_map["ORIGIN_MESSAGE_ID"]
    assert await matched(LetterFilter(message_id=first_id)) == [5]
    assert await matched(LetterFilter(message_id="ID-6")) == [6]
    assert await matched(LetterFilter(message_id="missing")) == []
    assert kit.copies("orders") + kit.copies("bills") == []
    assert counts(await kit.redrive(LetterFilter(topic="bills"))) == (4, 4, 0)
    assert kit.copies("bills") == [b"0", b"3", b"6", b"9"]
    assert counts(await kit.redrive()) == (12, 8, 4)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 70),
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
)
def test_any_sequence_of_bounded_calls_sends_each_letter_once(
    letters: int, calls: list[tuple[int, bool]]
) -> None:
    async def run(root: Path) -> None:
        kit = Kit(root)
        await kit.topics()
        for number in range(letters):
            await kit.die(b"%d" % number)
        at = 0
        for matched_max, restarts in calls:
            result = await kit.redrive(from_offset=at, matched_max=matched_max)
            assert result.matched == min(matched_max, letters - at)
            assert result.next_offset == at + result.matched
            at = result.next_offset
            if restarts:
                kit.broker.dispatch()
                kit.again()
            if result.as_dict()["done"]:
                at = 0
        await kit.redrive()
        assert sorted(kit.copies()) == sorted(b"%d" % number for number in range(letters))
        kit.broker.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(run(Path(root)))


async def test_messages_with_a_sharding_key_go_to_its_queue(kit: Kit) -> None:
    await kit.topics()
    for number in range(6):
        await kit.die(b"%d" % number, pairs={"__SHARDINGKEY": f"customer-{number}"})
    await kit.redrive()
    kit.broker.dispatch()
    for queue in range(2):
        for each in kit.broker.all("orders", queue):
            if nack.redrive_origin(each.properties) is not None:
                key = each.property_map["__SHARDINGKEY"]
                assert queue == abs(_java_hash(key)) % 2


def _java_hash(text: str) -> int:
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


async def test_letters_whose_topic_is_gone_do_not_keep_the_others_back(kit: Kit) -> None:
    await kit.topics("orders", "bills")
    for number in range(6):
        await kit.die(b"%d" % number, topic=("orders", "bills")[number % 2])
    await kit.broker.topics.delete("bills")
    for dry_run in (True, False):
        result = await kit.redrive(dry_run=dry_run)
        assert counts(result) == (6, 3, 0)
        (refusal,) = result.as_dict()["refusals"]
        assert (refusal["topic"], refusal["code"], refusal["count"]) == (
            "bills",
            "unknown-topic",
            3,
        )
        assert result.as_dict()["refused"] == 3
    assert kit.copies("orders") == [b"0", b"2", b"4"]
    assert counts(await kit.redrive(LetterFilter(topic="bills"), to_group=True)) == (3, 3, 0)
    assert kit.copies(RETRY) == [b"1", b"3", b"5"]


# The copies were appended behind the deletion: they could not be read, the letters counted as
# redriven for good, and the topic that was created again showed them.
@pytest.mark.parametrize("when", ["look", "file"])
@pytest.mark.parametrize("to_group", [False, True])
async def test_no_copy_goes_to_a_topic_that_is_deleted_meanwhile(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, when: str, to_group: bool
) -> None:
    await kit.topics("orders", "bills")
    for number in range(4):
        await kit.die(b"%d" % number, topic=("orders", "bills")[number % 2])
    await kit.broker.configs.retry_topic("billing")
    gone = RETRY if to_group else "bills"
    real = kit.letters.was_sent_again

    async def delete() -> None:
        kit.broker.lacks_file = False
        if kit.broker.topics.find(gone) is not None:
            await kit.broker.topics.delete_system(gone)

    async def looked(group: str, letter: Record) -> Redriven:
        await delete()
        return await real(group, letter)

    if when == "look":
        monkeypatch.setattr(kit.letters, "was_sent_again", looked)
    else:
        kit.broker.lacks_file = True
        monkeypatch.setattr(kit.broker, "file_made", delete)
    result = await kit.redrive(to_group=to_group)
    refused = 4 if to_group else 2
    assert counts(result) == (4, 4 - refused, 0)
    assert result.as_dict()["refused"] == refused
    assert {each["code"] for each in result.refusals} == {"unknown-topic"}
    monkeypatch.undo()
    await kit.broker.topics.create("bills", 2)
    await kit.broker.configs.retry_topic("billing")
    assert kit.copies("bills") + kit.copies(RETRY) == []
    # They were given back: the next call sends them, and only them.
    assert counts(await kit.redrive(to_group=to_group)) == (4, refused, 4 - refused)


async def test_no_copy_goes_to_a_topic_while_it_is_being_deleted(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.topics()
    await kit.die(b"a")
    real, append_state = kit.letters.was_sent_again, kit.broker.append_state
    looked, redriven = asyncio.Event(), asyncio.Event()

    async def record(body: bytes) -> PhysicalOffset:
        end = await append_state(body)
        looked.set()
        await redriven.wait()  # the deletion waits for the disk
        return end

    async def look(group: str, letter: Record) -> Redriven:
        monkeypatch.setattr(kit.broker, "append_state", record)
        deletions.append(asyncio.create_task(kit.broker.topics.delete("orders")))
        await looked.wait()
        return await real(group, letter)

    deletions: list[asyncio.Task[object]] = []
    monkeypatch.setattr(kit.letters, "was_sent_again", look)
    result = await kit.redrive()
    assert counts(result) == (1, 0, 0)
    assert [each["code"] for each in result.refusals] == ["not-serving"]
    redriven.set()
    await deletions[0]
    assert kit.copies() == []


async def test_a_letter_that_is_filled_to_the_last_byte_is_redriven_without_its_largest_properties(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ leaves no room in a dead letter for what its copy adds. It was refused forever."""
    await kit.topics()
    letter = await kit.die(b"a", pairs={"long": "x" * 3000, "short": "s"})
    await kit.die(b"b")
    redriven = nack.redriven(letter, "billing", to_group=False)
    kit.again(properties_size_max=len(redriven) - 1)
    result = await kit.redrive()
    assert (counts(result), result.as_dict()["refused"]) == ((2, 2, 0), 0)
    assert kit.copies() == [b"a", b"b"]
    (copy,) = (
        each
        for each in kit.broker.all("orders", 0)
        if bytes(each.body) == b"a" and nack.redrive_origin(each.properties) is not None
    )
    found = properties.parse(copy.properties)
    assert "long" not in found
    assert found["short"] == "s"
    assert found[nack.DROPPED_PROPERTIES] == "long"
    assert copy.unique_id == "ID-a"
    assert [getattr(each, "event", "") for each in caplog.records] == ["redriven-shortened"]
    assert counts(await kit.redrive()) == (2, 0, 2), "each is found to be redriven"


async def test_a_dry_run_makes_nothing(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    end = kit.broker.appender.appended
    assert counts(await kit.redrive(dry_run=True)) == (1, 1, 0)
    assert counts(await kit.redrive(to_group=True, dry_run=True)) == (1, 1, 0)
    assert kit.broker.appender.appended == end


async def test_a_group_without_dead_letters_is_done_at_once(kit: Kit) -> None:
    await kit.topics()
    result = await kit.redrive()
    assert (counts(result), result.next_offset, result.max_offset) == ((0, 0, 0), 0, 0)
    assert result.as_dict()["done"] is True
    listed = await kit.letters.list("billing", ALL, 0, 10)
    assert listed == {
        "messages": [],
        "next_offset": 0,
        "min_offset": 0,
        "max_offset": 0,
        "done": True,
    }


async def test_beyond_the_end_there_is_nothing(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    result = await kit.redrive(from_offset=9)
    assert (counts(result), result.as_dict()["done"]) == ((0, 0, 0), True)
    assert (await kit.letters.list("billing", ALL, 9, 10))["done"] is True


async def test_to_a_group_that_is_gone_nothing_is_sent(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    await kit.broker.configs.delete("billing")
    with pytest.raises(UnknownGroup):
        await kit.redrive(to_group=True)


async def test_without_an_index_it_is_unknown_what_was_redriven(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    broker = kit.broker
    blind = DeadLetters(broker.messages, broker.topics, None, broker.dispatched, SystemClock())
    with pytest.raises(IndexDisabled):
        blind.check_can_tell()
    listed = await blind.list("billing", ALL, 0, 10)
    assert [each["redriven"] for each in listed["messages"]] == [None]


async def test_a_node_that_stops_first_says_that_the_outcome_is_unknown(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    kit.broker.is_stopping = True
    with pytest.raises(AckTimeout, match="1 dead letters"):
        await kit.redrive()


async def test_too_many_letters_that_are_not_dispatched_wait(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.topics()
    for number in range(5):
        await kit.die(b"%d" % number)
    monkeypatch.setattr(dead_letters, "UNDISPATCHED_MAX", 3)
    assert counts(await kit.redrive(matched_max=3)) == (3, 3, 0)
    with pytest.raises(Overloaded, match="not dispatched yet"):
        await kit.redrive(from_offset=3)
    kit.broker.dispatch()
    assert counts(await kit.redrive(from_offset=3)) == (2, 2, 0)


async def test_a_list_shows_where_letters_came_from_and_which_were_redriven(kit: Kit) -> None:
    await kit.topics("orders", "bills")
    letters = []
    for number in range(5):
        kit.broker.now_ms += 1000
        topic = ("orders", "bills")[number % 2]
        pairs = {"TAGS": "new", "KEYS": "k"}
        letters.append(await kit.die(b"%d" % number, topic=topic, pairs=pairs))
    await kit.redrive(LetterFilter(topic="bills"))
    listed = await kit.letters.list("billing", ALL, 1, 3)
    assert [each["queue_offset"] for each in listed["messages"]] == [1, 2, 3]
    assert [each["redriven"] for each in listed["messages"]] == [True, False, True]
    assert (listed["next_offset"], listed["max_offset"], listed["done"]) == (4, 5, False)
    assert listed["messages"][0] == {
        "queue_offset": 1,
        "message_id": letters[1].message_id,
        "unique_id": "ID-1",
        "original_topic": "bills",
        "original_message_id": letters[1].property_map["ORIGIN_MESSAGE_ID"],
        "reconsume_times": 17,
        "dead_at_ms": FIRST_MS + 2000,
        "born_timestamp_ms": 77,
        "tags": "new",
        "keys": ["k"],
        "size": letters[1].size,
        "redriven": True,
    }
    only = await kit.letters.list("billing", LetterFilter(topic="bills"), 0, 10)
    assert [each["queue_offset"] for each in only["messages"]] == [1, 3]
    assert only["done"] is True


# 1. A letter is redriven; 2. the power fails; 3. the node starts: queues and DISPATCHED cover the
# copy, and the index files that were open are rebuilt; 4. a redrive finds no copy, and makes a
# second one.
async def test_while_the_index_is_made_again_nothing_is_redriven(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    await kit.redrive()
    kit.broker.dispatch()
    whole = False
    kit.again(index_is_whole=lambda: whole)
    with pytest.raises(DispatchBehind):
        await kit.redrive()
    (listed,) = (await kit.letters.list("billing", ALL, 0, 10))["messages"]
    assert listed["redriven"] is None
    whole = True
    assert counts(await kit.redrive()) == (1, 0, 1)
    assert kit.copies() == [b"a"]


async def test_an_index_lost_during_the_look_up_proves_nothing(kit: Kit) -> None:
    await kit.topics()
    letter = await kit.die(b"a")
    answers = iter([True, False])
    kit.again(index_is_whole=lambda: next(answers))
    assert await kit.letters.was_sent_again("billing", letter) is Redriven.UNKNOWN
    answers = iter([True, True, False])
    (listed,) = (await kit.letters.list("billing", ALL, 0, 10))["messages"]
    assert listed["redriven"] is None


# It counted as skipped because it had been sent again before.
async def test_a_letter_whose_state_is_unknown_is_not_skipped(kit: Kit) -> None:
    await kit.topics()
    await kit.die(b"a")
    answers = iter([True, True, True, False, False])
    kit.again(index_is_whole=lambda: next(answers))
    with pytest.raises(DispatchBehind):
        await kit.redrive()
    answers = iter([True, True, False, True, True, True, True])
    assert counts(await kit.redrive()) == (1, 1, 0)
    assert kit.copies() == [b"a"]


# The look-up was one step of the loop: while it went through the copies of a unique id that many
# messages share, no other request was answered.
async def test_other_requests_run_during_a_look_up_and_no_letter_is_sent_twice(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.topics()
    await kit.die(b"a", unique_id="ID")
    for number in range(200):
        kit.broker.now_ms += 1000 if number % 20 == 0 else 0
        kit.broker.send("orders", unique_id="ID")
    kit.broker.dispatch()
    monkeypatch.setattr(time_slicer, "SLICE_S", 0.0)
    calls = [asyncio.create_task(kit.redrive()) for _ in range(2)]
    others = 0
    while not all(call.done() for call in calls):
        others += 1
        await asyncio.sleep(0)
    assert others > 100
    found = [counts(call.result()) for call in calls]
    assert sorted(found) == [(1, 0, 1), (1, 1, 0)]
    assert kit.copies() == [b"a"]


async def test_letters_of_another_group_are_its_own(kit: Kit) -> None:
    await kit.topics()
    letter = await kit.die(b"a")
    await kit.redrive()
    kit.broker.dispatch()
    assert await kit.letters.was_sent_again("billing", letter) is Redriven.YES
    assert await kit.letters.was_sent_again("shipping", letter) is Redriven.NO
