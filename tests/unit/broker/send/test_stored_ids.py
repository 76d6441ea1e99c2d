"""A repeated send finds its stored messages: dispatched or not, old or new, and no others."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.broker.log.log_context import LogContext
from services.broker.send import stored_ids
from services.broker.send.placing import Wait
from services.broker.send.repeats import NOTED_MAX, Part, Repeats
from services.broker.send.stored_ids import (
    SEARCH_BACK_S,
    Place,
    StoredIds,
    unique_ids_of,
    walk,
    without,
)
from services.reput.dispatcher import Dispatcher
from shared.runtime.clock import SystemClock
from shared.runtime.pauses import Pauses
from tests.support.small_broker import FIRST_MS, HOST, SmallBroker
from tidemark.errors import DispatchBehind, Overloaded
from tidemark.formats import batch, delay, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hashing import SCHEDULE_TOPIC, index_hash
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset


class Clock(SystemClock):
    """Wall time is the store's."""

    def __init__(self, broker: SmallBroker) -> None:
        self.broker = broker
        self.now_s = 0.0

    def wall_ms(self) -> int:
        return self.broker.now_ms

    def monotonic(self) -> float:
        return self.now_s


class Rebooted(SmallBroker):
    """A broker whose machine may be started again; reput then resumes, and takes no step."""

    def sync(self) -> None:
        """Make what is dispatched durable."""
        self._dispatcher.sync()

    def reboot(self) -> None:
        self._dispatcher.close()
        self._dispatcher = Dispatcher(self.store, self.positions, self.reader, boot_id=(8, 8))
        self._dispatcher.resume()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Rebooted]:
    made = Rebooted(tmp_path)
    yield made
    made.close()


def ids_of(
    broker: SmallBroker,
    *,
    has_index: bool = True,
    clock: Clock | None = None,
    index_is_whole: Callable[[], bool] | None = None,
) -> StoredIds:
    log_context = SimpleNamespace(
        reader=broker.reader,
        clock=clock or Clock(broker),
        dispatched=broker.dispatched,
        readable_end=lambda: broker.appender.appended,
        index_is_whole=index_is_whole or (lambda: not broker.positions.get(Slot.INDEX_BEHIND)),
    )
    return StoredIds(cast(LogContext, log_context), broker.index if has_index else None)


def find(before: StoredIds, topics: Sequence[str], unique_ids: Sequence[str]) -> dict[str, Place]:
    indexed = asyncio.run(before.find_indexed(topics, unique_ids, Pauses()))
    return before.find(indexed, topics, unique_ids)


def append(broker: SmallBroker, topic: str, *unique_ids: str) -> list[int]:
    """Append one message for each id, and do not dispatch them; return their physical offsets."""
    found = []
    for unique_id in unique_ids:
        entry = WireMessage(b"x" * 100, properties.encode({"UNIQ_KEY": unique_id}))
        run = Run(topic, 0, batch.encode([entry]), 1, HOST, HOST, FIRST_MS)
        found.append(int(broker.append_now([run]).start))
    return found


def test_dispatched_and_undispatched_messages_are_found_and_no_others(broker: SmallBroker) -> None:
    (first,) = append(broker, "t", "A")
    broker.dispatch()
    (second, _) = append(broker, "t", "B", "OTHER")
    append(broker, "u", "C")
    found = find(ids_of(broker), ["t"], ["A", "B", "C", "D"])
    assert {name: place.physical_offset for name, place in found.items()} == {
        "A": first,
        "B": second,
    }
    assert [found[name].queue_offset for name in "AB"] == [0, 1]
    assert found["B"].end == broker.record(second).physical_offset + broker.record(second).size
    assert found["A"].result("A", HOST)["message_id"] == broker.record(first).message_id


def test_of_two_with_one_id_the_first_counts(broker: SmallBroker) -> None:
    (first,) = append(broker, "t", "A")
    broker.dispatch()
    append(broker, "t", "A")
    assert find(ids_of(broker), ["t"], ["A"])["A"].physical_offset == first


def test_the_walk_goes_on_in_the_next_file(broker: SmallBroker) -> None:
    names = [f"ID{number}" for number in range(2000)]
    offsets = append(broker, "t", *names)
    assert broker.appender.appended > 1 << 18, "more than a file"
    found = find(ids_of(broker), ["t"], names)
    assert [found[name].physical_offset for name in names] == offsets


def test_a_clock_that_was_set_ahead_hides_nothing(broker: SmallBroker) -> None:
    """It looked back ten minutes of the wall clock: that was set 700 s ahead between a send and its
    repeat, and the message was stored twice."""
    append(broker, "t", "A")
    broker.dispatch()
    before = ids_of(broker)
    broker.now_ms += 700_000
    assert find(before, ["t"], ["A"])
    broker.now_ms -= 10 * 86_400_000
    assert find(before, ["t"], ["A"])


def test_it_searches_back_to_where_the_log_ended_ten_minutes_ago(broker: SmallBroker) -> None:
    clock = Clock(broker)
    before = ids_of(broker, clock=clock)
    append(broker, "t", "A")
    broker.dispatch()
    assert find(before, ["t"], ["A"])
    append(broker, "t", "B")
    broker.dispatch()
    clock.now_s += SEARCH_BACK_S - 1
    assert find(before, ["t"], ["A", "B"]).keys() == {"A", "B"}
    clock.now_s += 1
    assert find(before, ["t"], ["A", "B"]).keys() == {"B"}


def test_undispatched_records_are_read_once_for_any_number_of_repeats(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each repeat read all of it, on the loop: with reput stopped a send took 260 ms."""
    names = [f"ID{number}" for number in range(3000)]
    places = append(broker, "t", *names)
    before, walked = ids_of(broker), list[int]()

    def counted(*args: Any) -> Any:
        found = walk(*args)
        walked.extend(entry.physical_offset for entry in found[0])
        return found

    monkeypatch.setattr(stored_ids, "walk", counted)
    for number in (0, 1500, 2999):
        (found,) = find(before, ["t", "u"], [names[number]]).values()
        assert found.physical_offset == places[number]
    assert not find(before, ["u"], names)
    assert len(walked) == len(set(walked)) == 3000
    (new,) = append(broker, "t", "NEW")
    assert find(before, ["t"], ["NEW"])["NEW"].physical_offset == new
    assert len(walked) == 3001
    broker.dispatch()
    assert find(before, ["t"], names[:50]).keys() == set(names[:50])
    assert len(walked) == 3001
    assert not before._tail._parts


def test_the_unique_ids_that_are_kept_are_bounded(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "TAIL_IDS_MAX", 1500)
    append(broker, "t", *(f"ID{number}" for number in range(4000)))
    with pytest.raises(Overloaded, match="Nothing was stored"):
        find(ids_of(broker), ["t"], ["ID1"])


def test_dispatch_between_the_two_halves_of_a_look_hides_nothing(broker: SmallBroker) -> None:
    before = ids_of(broker)
    places = append(broker, "t", "A", "B")
    indexed = asyncio.run(before.find_indexed(["t"], ["A", "B", "C"], Pauses()))
    (last,) = append(broker, "t", "C")
    broker.dispatch()
    asyncio.run(before.find_indexed(["t"], ["OTHER"], Pauses()))  # forgets what is dispatched
    found = before.find(indexed, ["t"], ["A", "B", "C", "D"])
    assert [found[name].physical_offset for name in "ABC"] == [*places, last]


def test_ids_made_to_have_one_hash_are_refused_after_a_bounded_look(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "RECORDS_MAX", 10)
    alike = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=5)]
    assert len({index_hash("t", each) for each in alike}) == 1
    append(broker, "t", *alike[1:])
    broker.dispatch()
    with pytest.raises(Overloaded, match="same hashes"):
        find(ids_of(broker), ["t"], [alike[0]])


def test_without_an_index_the_tail_is_what_is_known(broker: SmallBroker) -> None:
    append(broker, "t", "A")
    broker.dispatch()
    append(broker, "t", "B")
    assert find(ids_of(broker, has_index=False), ["t"], ["A", "B"]).keys() == {"B"}


def test_while_the_index_is_rebuilt_a_repeat_is_not_stored_again(broker: Rebooted) -> None:
    # 1. A message is stored, dispatched and synced, its response is lost; 2. power cut; 3. reput
    # resumes: all is dispatched, and the open index files are rebuilt; 4. the message is sent
    # again, was not found and stored once more.
    (first,) = append(broker, "t", "A")
    broker.dispatch()
    broker.sync()
    broker.reboot()
    assert broker.positions.get(Slot.INDEX_BEHIND)
    assert broker.dispatched() == broker.appender.appended
    with pytest.raises(DispatchBehind, match=r"index is being rebuilt.*Nothing was st") as found:
        find(ids_of(broker), ["t"], ["A"])
    assert found.value.retriable
    (second,) = append(broker, "t", "B")
    assert find(ids_of(broker), ["t"], ["B"])["B"].physical_offset == second, "it is in the tail"
    with pytest.raises(DispatchBehind):
        find(ids_of(broker), ["t"], ["B", "A"])
    assert not find(ids_of(broker, has_index=False), ["t"], ["A"]), "there is none to wait for"
    broker.dispatch()
    places = find(ids_of(broker), ["t"], ["A", "B", "C"])
    assert {name: place.physical_offset for name, place in places.items()} == {
        "A": first,
        "B": second,
    }


def test_an_index_lost_during_the_look_up_proves_no_absence(broker: SmallBroker) -> None:
    append(broker, "t", "A")
    broker.dispatch()
    for missing in ("A", "B"):
        answers = iter([True, False])
        before = ids_of(broker, index_is_whole=functools.partial(next, answers))
        if missing == "A":
            assert find(before, ["t"], ["A"])
        else:
            with pytest.raises(DispatchBehind):
                find(before, ["t"], ["A", "B"])


def test_messages_appended_by_repeats_are_known_by_topic_and_id() -> None:
    parts = [Part(PhysicalOffset(at), PhysicalOffset(at + 100)) for at in range(0, 400, 100)]
    repeats = Repeats()
    repeats.note("t", ["A"], parts[0])
    count = repeats.count
    assert repeats.since(count, "t", ["A"]) == []
    repeats.note("t", ["B", "A"], parts[1])
    repeats.note("u", ["A"], parts[2])
    repeats.note("t", ["C"], parts[3])
    assert repeats.since(count, "t", ["A"]) == [parts[1]]
    assert repeats.since(count, "t", ["C", "B"]) == [parts[1], parts[3]]
    assert repeats.since(0, "t", ["A"]) == parts[:2]
    assert repeats.since(repeats.count, "t", ["A", "B", "C"]) == []


def test_kept_repeats_are_bounded_and_older_sends_are_refused() -> None:
    part = Part(PhysicalOffset(0), PhysicalOffset(1))
    repeats = Repeats()
    repeats.note("t", ["A"], part)
    repeats.note("t", [f"ID{number}" for number in range(NOTED_MAX - 1)], part)
    assert repeats.since(0, "t", ["A"]) == [part]
    repeats.note("t", ["B"], part)
    with pytest.raises(Overloaded, match="Nothing was stored"):
        repeats.since(0, "t", ["A"])
    assert repeats.since(1, "t", ["B"]) == [part]
    repeats.note("t", [f"ID{number}" for number in range(NOTED_MAX + 1)], part)
    with pytest.raises(Overloaded):
        repeats.since(3, "t", ["B"])
    assert repeats.since(4, "t", ["B"]) == []


def test_a_tail_that_is_too_long_is_a_matter_of_waiting(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.broker.send.stored_ids.TAIL_MAX", 100)
    append(broker, "t", "A", "B")
    with pytest.raises(DispatchBehind, match="Nothing was stored") as caught:
        find(ids_of(broker), ["t"], ["A"])
    assert caught.value.retriable
    assert caught.value.facts["limit"] == 100


def test_messages_that_are_there_are_left_out_of_what_is_appended() -> None:
    entries = batch.encode(
        WireMessage(bytes([number]), properties.encode({"UNIQ_KEY": f"ID{number}"}), number)
        for number in range(4)
    )
    assert unique_ids_of(entries) == ["ID0", "ID1", "ID2", "ID3"]
    left = without(entries, frozenset({0, 2}))
    assert unique_ids_of(left) == ["ID1", "ID3"]
    assert [(bytes(each.body), each.flag) for each in batch.iterate(left)] == [
        (b"\x01", 1),
        (b"\x03", 3),
    ]


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_repeated_delayed_message_reports_the_due_time_of_its_record(
    broker: SmallBroker, dispatched: bool
) -> None:
    """A repeat with ``delay_ms`` comes later than the first try: its answer had a later time."""
    due_ms = FIRST_MS + 90_123
    raw = properties.encode({"UNIQ_KEY": "A"})
    waits = delay.by_time("orders", 0, raw, due_ms, FIRST_MS)
    entry = WireMessage(b"x", waits.properties)
    broker.append_now(
        [Run(waits.topic, waits.queue_id, batch.encode([entry]), 1, HOST, HOST, FIRST_MS)]
    )
    if dispatched:
        broker.dispatch()
    place = find(ids_of(broker), ["orders", delay.TIMER_TOPIC], ["A"])["A"]
    later = Wait(delay.TIMER_TOPIC, at_ms=due_ms + 5000)
    for wait in (later, None):
        result = place.result("A", HOST, wait)
        assert (result["topic"], result["deliver_at_ms"]) == (delay.TIMER_TOPIC, due_ms)


@pytest.mark.parametrize("kind", ["level", "time"])
def test_a_delayed_message_is_found_where_it_waited_after_its_delivery_and_a_nack(
    broker: SmallBroker, kind: str
) -> None:
    """The answer was the delivered copy's place, without a delivery time."""
    raw = properties.encode({"UNIQ_KEY": "A"})
    if kind == "level":
        waits = delay.by_level("orders", 0, raw, 2, 4)
    else:
        waits = delay.by_time("orders", 0, raw, FIRST_MS + 5000, FIRST_MS)
    retries = delay.by_level("%RETRY%g", 0, raw, 3, 4)
    for topic, queue, stored in [
        waits,
        ("orders", 0, properties.encode({"UNIQ_KEY": "A", "TIDEMARK_DELAY_ORIGIN": "2@0"})),
        retries,
        ("%RETRY%g", 0, raw),
    ]:
        entry = WireMessage(b"x", stored)
        broker.append_now([Run(topic, queue, batch.encode([entry]), 1, HOST, HOST, FIRST_MS)])
        broker.dispatch()
        topics = ["orders", SCHEDULE_TOPIC, delay.TIMER_TOPIC]
        place = find(ids_of(broker), topics, ["A"])["A"]
        assert (place.topic, place.physical_offset) == (waits.topic, 0)


def test_an_undelayed_message_is_found_in_its_topic_although_its_retry_waits(
    broker: SmallBroker,
) -> None:
    append(broker, "orders", "A")
    retry = delay.by_level("%RETRY%g", 0, properties.encode({"UNIQ_KEY": "A"}), 3, 4)
    entry = WireMessage(b"x", retry.properties)
    broker.append_now(
        [Run(retry.topic, retry.queue_id, batch.encode([entry]), 1, HOST, HOST, FIRST_MS)]
    )
    broker.dispatch()
    place = find(ids_of(broker), ["orders", SCHEDULE_TOPIC, delay.TIMER_TOPIC], ["A"])["A"]
    assert (place.topic, place.physical_offset) == ("orders", 0)
