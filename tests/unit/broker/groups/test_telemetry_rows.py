"""The tables of a telemetry snapshot, over a store of real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.broker.groups.telemetry_rows import TelemetryRows
from services.broker.metrics import BrokerMetrics
from shared.metrics.registry import Registry
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from shared.state.values import GroupConfig
from tests.support.small_broker import FIRST_MS
from tests.unit.broker.groups.test_lag_sampler import Made
from tidemark.formats.telemetry import Absent, Head, decode, encode_packed
from tidemark.formats.telemetry_reader import Snapshot, SnapshotReader

AT_MS = FIRST_MS + 10_000
NEVER, NOTHING, LATER = Absent.NEVER_COMMITTED, Absent.NONE, Absent.AS_DISPATCHED


class Journal:
    """Takes snapshots of a broker and reads them back."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.metrics = BrokerMetrics(Registry("broker"))
        self.rows = TelemetryRows(self.metrics.groups, self.metrics)
        self.reader = SnapshotReader()
        self.number = 0
        self.packed: list[bytes] = []
        """Sections of the last snapshot."""

    async def take(self) -> Snapshot:
        self.made.clock.now_s += 1000.0
        assert await self.made.sampler.sample_into(self.rows) is not None
        self.packed = await self.rows.packed(AT_MS, TimeSlicer(self.made.clock, Pauses()))
        number = self.number
        self.number += 1
        head = Head(1, 0, number, number == 0, 0, 1, number, 0, AT_MS, AT_MS, "", {})
        snapshot = self.reader.feed(decode(encode_packed(head, self.packed)))
        self.rows.written()
        assert snapshot is not None
        return snapshot


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path / "store")
    yield made
    made.broker.close()


def shown(snapshot: Snapshot, table: str) -> dict[str, tuple[Any, ...]]:
    """Existing rows: their names, joined by blanks, and their values."""
    rows = snapshot.tables[table]
    found = {}
    for place in range(len(rows.present)):
        if rows.present[place]:
            found[name(snapshot, table, place)] = tuple(
                Absent(rows.absent[column][place]) if rows.absent[column][place] else values[place]
                for column, values in rows.values.items()
            )
    return found


def name(snapshot: Snapshot, table: str, place: int) -> str:
    rows = snapshot.tables[table]
    if rows.names:
        return rows.names[place]
    return " ".join(
        str(key[place]) if of == "queue" else name(snapshot, of, key[place])
        for of, key in rows.keys.items()
    )


async def test_a_snapshot_has_every_queue_group_pair_and_position(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1})
    made.join("billing", "orders")
    made.members.places["billing", "orders", 0] = (3, 3)
    snapshot = await Journal(made).take()
    assert shown(snapshot, "topic") == {"orders": (NOTHING, NOTHING)}
    assert shown(snapshot, "group") == {"billing": (1, 5000, 1, 0)}
    assert shown(snapshot, "queue") == {"orders 0": (0, 4), "orders 1": (0, 1), "orders 2": (0, 0)}
    assert shown(snapshot, "pair") == {
        "billing orders": (1, 1, 2, LATER, FIRST_MS + 2, LATER, *(NOTHING,) * 5)
    }
    assert shown(snapshot, "position") == {
        "billing orders 0": (1, FIRST_MS + 2, 1),
        "billing orders 1": (1, NOTHING, 1),
        "billing orders 2": (NEVER, NEVER, 1),
    }


async def test_queues_beyond_the_bound_of_series_are_in_the_snapshot(tmp_path: Path) -> None:
    made = Made(tmp_path / "store", queue_series_max=0)
    made.add_group("billing", {0: 1})
    snapshot = await Journal(made).take()
    assert len(shown(snapshot, "queue")) == 3
    assert shown(snapshot, "position")["billing orders 0"][0] == 1
    made.broker.close()


async def test_a_snapshot_of_what_stands_still_has_no_rows(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1, 2: 0})
    journal = Journal(made)
    first = {table: shown(await journal.take(), table) for table in ("queue", "position")}
    second = await journal.take()
    assert journal.packed == []
    assert {table: shown(second, table) for table in first} == first


async def test_what_moves_is_in_the_next_snapshot(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1})
    journal = Journal(made)
    await journal.take()
    made.broker.send("orders", queue=2)
    made.broker.offsets.accept("billing", {("orders", 0): 4})
    journal.metrics.groups.committed("billing", "orders", before=1, after=4)
    journal.metrics.messages_in.labels("orders", "normal").inc()
    journal.metrics.messages_in.labels("orders", "fifo").inc(2)
    snapshot = await journal.take()
    assert shown(snapshot, "queue")["orders 2"] == (0, 1)
    assert shown(snapshot, "position")["billing orders 0"] == (4, NOTHING, Absent.NOT_TRACKED)
    assert shown(snapshot, "pair")["billing orders"][6:8] == (NOTHING, 3)
    assert shown(snapshot, "topic")["orders"] == (3, NOTHING)


async def test_groups_topics_and_queues_that_are_gone_leave_the_next_snapshot(made: Made) -> None:
    made.add_group("billing", {0: 1})
    made.add_group("audit", {1: 1})
    made.add_topic("events", 2)
    made.broker.send("events")
    journal = Journal(made)
    first = await journal.take()
    assert shown(first, "group").keys() == {"billing", "audit"}
    assert "events 1" in shown(first, "queue")
    del made.broker.state.groups["audit"]
    made.broker.offsets.remove_group("audit")
    del made.broker.state.topics["events"]
    made.add_topic("orders", 2)
    snapshot = await journal.take()
    assert shown(snapshot, "group").keys() == {"billing"}
    assert shown(snapshot, "pair").keys() == {"billing orders"}
    assert shown(snapshot, "topic").keys() == {"orders"}
    assert shown(snapshot, "queue").keys() == {"orders 0", "orders 1"}
    assert len(journal.rows) == 1 + 1 + 2 + 1 + 2


async def test_offsets_of_an_unknown_topic_and_beyond_the_end_have_their_reasons(
    made: Made,
) -> None:
    made.add_group("billing", {0: 9})
    made.add_group("billing", {0: 7}, topic="gone")
    made.join("billing", "orders")
    made.members.numbers["billing"] = {("orders", 0): None}
    snapshot = await Journal(made).take()
    assert shown(snapshot, "position") == {
        "billing orders 0": (9, Absent.AHEAD, Absent.NOT_TRACKED),
        "billing orders 1": (NEVER, NEVER, 1),
        "billing orders 2": (NEVER, NEVER, 1),
        "billing gone 0": (7, Absent.UNKNOWN_TOPIC, 1),
    }
    assert shown(snapshot, "topic").keys() == {"orders", "gone"}


async def test_an_unreadable_head_is_unknown_and_not_caught_up(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add_group("billing", {0: 1})
    monkeypatch.setattr(made.watched.queue_stats, "store_time", lambda *_: None)
    snapshot = await Journal(made).take()
    assert shown(snapshot, "position")["billing orders 0"][1] is Absent.UNREADABLE
    assert shown(snapshot, "pair")["billing orders"][3:6] == (Absent.UNREADABLE,) * 3


async def test_a_broadcasting_group_has_a_pair_and_no_positions(made: Made) -> None:
    made.broker.state.groups["news"] = GroupConfig("news", broadcast=True)
    made.join("news", "orders")
    snapshot = await Journal(made).take()
    assert shown(snapshot, "group")["news"] == (1, 60_000, 1, 1)
    assert shown(snapshot, "pair")["news orders"][:3] == (1, 0, Absent.NOT_TRACKED)
    assert "position" not in snapshot.tables


async def test_a_failed_sample_gives_no_snapshot(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add_group("billing", {0: 1})
    journal = Journal(made)
    await journal.take()

    def broken() -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(made.watched.configs, "all", broken)
    made.clock.now_s += 1000.0
    assert await made.sampler.sample_into(journal.rows) is None


async def test_a_scrape_after_a_snapshot_shows_the_same_sample(made: Made) -> None:
    made.add_group("billing", {0: 1})
    made.clock.now_s += 1000.0
    metrics = BrokerMetrics(Registry("broker"))
    found = await made.sampler.sample_into(TelemetryRows(metrics.groups, metrics))
    await made.sampler.refresh()
    assert made.sampler.found is found


async def test_a_minimum_that_rose_during_the_sample_is_shown_in_the_next_one(made: Made) -> None:
    made.add_group("billing", {0: 1})
    journal = Journal(made)
    await journal.take()
    stats = made.watched.topic_stats
    bounds = stats.bounds

    def passed(topic: str, queue: int) -> Any:
        # The oldest message expires between the group's turn and that of the queues.
        found = bounds(topic, queue)
        if found is None or queue != 0:
            return found
        stats.min_offsets_before["orders", 0] = 0
        return found._replace(min_offset=2)

    made.broker.send("orders", queue=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "bounds", passed)
        assert shown(await journal.take(), "queue")["orders 0"] == (0, 5)
        patch.setattr(stats, "bounds", lambda *key: bounds(*key)._replace(min_offset=2))  # type: ignore[union-attr]
        assert shown(await journal.take(), "queue")["orders 0"] == (2, 5)
