"""A repeated send finds what of it is in the log: dispatched or not, old or new, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.sent_before import LOOK_BACK_MS, SentBefore, unique_ids_of, without
from shared.runtime.clock import SystemClock
from tests.support.small_broker import FIRST_MS, HOST, SmallBroker
from tidemark.errors import DispatchBehind
from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.runs import Run


class Clock(SystemClock):
    """Wall time is the store's."""

    def __init__(self, broker: SmallBroker) -> None:
        self.broker = broker

    def wall_ms(self) -> int:
        return self.broker.now_ms


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SmallBroker]:
    made = SmallBroker(tmp_path)
    yield made
    made.close()


def before_of(broker: SmallBroker, *, has_index: bool = True) -> SentBefore:
    return SentBefore(
        broker.index if has_index else None,
        broker.reader,
        Clock(broker),
        dispatched=broker.dispatched,
        written=lambda: broker.appender.appended,
    )


def append(broker: SmallBroker, topic: str, *unique_ids: str) -> list[int]:
    """One message each, not dispatched; their physical offsets."""
    found = []
    for unique_id in unique_ids:
        entry = WireMessage(b"x" * 100, properties.encode({"UNIQ_KEY": unique_id}))
        run = Run(topic, 0, batch.encode([entry]), 1, HOST, HOST, FIRST_MS)
        found.append(int(broker.append_now([run]).start))
    return found


def test_what_is_dispatched_and_what_is_not_is_found_and_nothing_else(
    broker: SmallBroker,
) -> None:
    (first,) = append(broker, "t", "A")
    broker.dispatch()
    (second, _) = append(broker, "t", "B", "OTHER")
    append(broker, "u", "C")
    found = before_of(broker).find(["t"], ["A", "B", "C", "D"])
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
    assert before_of(broker).find(["t"], ["A"])["A"].physical_offset == first


def test_the_walk_goes_on_in_the_next_file(broker: SmallBroker) -> None:
    names = [f"ID{number}" for number in range(2000)]
    offsets = append(broker, "t", *names)
    assert broker.appender.appended > 1 << 18, "more than a file"
    found = before_of(broker).find(["t"], names)
    assert [found[name].physical_offset for name in names] == offsets


def test_it_looks_back_ten_minutes(broker: SmallBroker) -> None:
    append(broker, "t", "A")
    broker.dispatch()
    broker.now_ms += LOOK_BACK_MS - 1000
    assert before_of(broker).find(["t"], ["A"])
    broker.now_ms += 5000
    assert not before_of(broker).find(["t"], ["A"])


def test_without_an_index_the_tail_is_what_is_known(broker: SmallBroker) -> None:
    append(broker, "t", "A")
    broker.dispatch()
    append(broker, "t", "B")
    assert before_of(broker, has_index=False).find(["t"], ["A", "B"]).keys() == {"B"}


def test_a_tail_that_is_too_long_is_a_matter_of_waiting(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.broker.sent_before.TAIL_MAX", 100)
    append(broker, "t", "A", "B")
    with pytest.raises(DispatchBehind, match="Nothing was stored") as caught:
        before_of(broker).find(["t"], ["A"])
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
