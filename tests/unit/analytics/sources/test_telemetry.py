"""The journal source without a broker: options, offsets, ranges, gaps, and the families it has."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analytics.kernel import shape
from analytics.schema import SAMPLES, Gap
from analytics.sources.gaps import split
from analytics.sources.option_values import BadOption
from analytics.sources.telemetry import reader
from analytics.sources.telemetry.options import BrokerSet, Options, parse
from analytics.sources.telemetry.reader import Range, advance, plan, read
from analytics.sources.telemetry.samples import FACTS, TABLES, batches
from analytics.sources.topic.pull import TopicClient, TopicUnreadable
from shared.metrics.catalogue import BY_NAME
from tidemark.formats.telemetry import Absent, Column, Head, Kind, Part, Section
from tidemark.formats.telemetry_reader import Snapshot, SnapshotReader

ONE: dict[str, object] = {"targets": ["h:8080"], "labels": {"cluster": "c", "broker": "g0"}}
OF = BrokerSet(("http://h:8080",), "c", "g0", "")
AT_MS = 1_800_000_000_000
LOOK = "tidemark_broker_look_timestamp_seconds"


def options(**given: str) -> Options:
    return parse({"targets": json.dumps([ONE]), **given})


# -- options --------------------------------------------------------------------------------------


def test_a_set_has_addresses_and_labels(tmp_path: Path) -> None:
    assert options().sets == (OF,)
    file = tmp_path / "targets.json"
    file.write_text(json.dumps([{"targets": ["https://a", "b:1"], "labels": {"replica": "n"}}]))
    assert parse({"targets": str(file)}).sets == (
        BrokerSet(("https://a", "http://b:1"), "", "", "n"),
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "Option targets is ''"),
        ({"targets": "[1]"}, "Option targets"),
        ({"targets": '[{"targets": []}]'}, "an entry has no targets"),
        ({"targets": "/nowhere/there.json"}, "a readable file"),
        ({"targets": json.dumps([ONE, ONE])}, "one entry for each cluster and broker"),
        ({"targets": json.dumps([ONE]), "from": "1"}, "first or last"),
        ({"targets": json.dumps([ONE]), "max_records": "0"}, "at least 1"),
    ],
)
def test_a_bad_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(BadOption, match=named.replace("[", r"\[")):
        parse(given)


# -- offsets --------------------------------------------------------------------------------------


def test_a_new_set_begins_where_the_option_says_and_reads_up_to_the_limit() -> None:
    first, last = options(**{"from": "first"}, max_records="5"), options()
    bounds = {OF: (10, 100)}
    assert advance(first, {}, bounds) == {"c/g0": 10}
    assert advance(last, {}, bounds) == {"c/g0": 100}
    assert advance(first, {"c/g0": 10}, bounds) == {"c/g0": 15}
    assert advance(first, {"c/g0": 98}, bounds) == {"c/g0": 100}


def test_a_set_without_a_master_keeps_its_offset_and_none_goes_back() -> None:
    assert advance(options(), {"c/g0": 7, "gone": 3}, {}) == {"c/g0": 7, "gone": 3}
    assert advance(options(), {"c/g0": 7}, {OF: (0, 5)}) == {"c/g0": 7}


def test_a_set_that_does_not_answer_has_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> None:
        raise TopicUnreadable("t", "no master")

    monkeypatch.setattr(TopicClient, "ranges", unreadable)
    assert reader.bounds(options()) == {}


# -- records --------------------------------------------------------------------------------------


def part(number: int, *, keyframe: int, place: int = 0, parts: int = 1, rows: int = 2) -> Part:
    """A part of a snapshot whose maximum is its number."""
    is_keyframe = number == keyframe
    back = (number - keyframe) * parts + place
    head = Head(
        1,
        2,
        number,
        is_keyframe,
        place,
        parts,
        back,
        rows,
        AT_MS + 15_000 * number,
        AT_MS + 15_000 * number + 7,
        "n1",
        {"t_dispatched_ms": AT_MS},
    )
    if place:
        return Part(head, [])
    value = {"max_offset": Column(array("q", [number if is_keyframe else 1]), b"")}
    if not is_keyframe:
        return Part(head, [Section("queue", Kind.CHANGED, array("q", [0]), columns=value)])
    keys = {"topic": array("q", [0]), "queue": array("q", [3])}
    return Part(
        head,
        [
            Section("topic", Kind.NEW, array("q", [0]), ["orders"]),
            Section("queue", Kind.NEW, array("q", [0]), (), keys, value),
        ],
    )


class Topic:
    """Records by queue offset; a missing one is a hole."""

    def __init__(self, parts: list[Part | Gap]) -> None:
        self.parts = parts
        self.reads: list[tuple[int, int]] = []

    def records(self, _: Options, of: BrokerSet, low: int, high: int) -> Iterator[reader._Record]:
        assert of == OF
        self.reads.append((low, high))
        for at in range(low, high):
            each = self.parts[at]
            if isinstance(each, Gap):
                yield reader._Record(at, at + 1, None, each, "planted")
            else:
                yield reader._Record(at, at + 1, each)


def planted(monkeypatch: pytest.MonkeyPatch, *parts: Part | Gap) -> Topic:
    topic = Topic([*parts])
    monkeypatch.setattr(reader, "_records", topic.records)
    reader._readers.clear()
    return topic


def found(low: int, high: int) -> tuple[list[float], list[str]]:
    """The max offsets of the snapshots of a range, and the reasons of its gaps."""
    read_ = pa.Table.from_batches(read(options(), Range(OF, low, high)), schema=SAMPLES)
    samples, gaps = split(read_)
    is_max = pc.equal(samples.column("metric"), "tidemark_queue_max_offset_messages")
    assert set(gaps.column("subject").to_pylist()) <= {"c/g0"}
    return samples.filter(is_max).column("value").to_pylist(), gaps.column("reason").to_pylist()


def test_a_range_begins_at_its_keyframe_and_yields_its_own_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = planted(monkeypatch, *(part(number, keyframe=number // 4 * 4) for number in range(8)))
    assert found(6, 8) == ([6, 7], [])
    assert topic.reads == [(6, 7), (4, 8)]


def test_the_next_range_continues_without_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = planted(monkeypatch, *(part(number, keyframe=0) for number in range(6)))
    assert found(0, 3) == ([0, 1, 2], [])
    topic.reads.clear()
    assert found(3, 6) == ([3, 4, 5], [])
    assert topic.reads == [(3, 6)]


def test_a_snapshot_belongs_to_the_range_of_its_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        *(part(number, keyframe=0, place=place, parts=2) for number in (0, 1) for place in (0, 1)),
    )
    assert found(0, 3) == ([0], [])
    reader._readers.clear()
    assert found(3, 4) == ([1], [])


@pytest.mark.parametrize("lost", [Gap.EXPIRED, Gap.DAMAGED])
def test_what_cannot_be_read_is_a_gap_up_to_the_next_keyframe(
    monkeypatch: pytest.MonkeyPatch, lost: Gap
) -> None:
    parts: list[Part | Gap] = [part(number, keyframe=number // 4 * 4) for number in range(6)]
    parts[1] = lost
    planted(monkeypatch, *parts)
    assert found(0, 6) == ([0, 4, 5], [str(lost), "torn", "torn"])


def test_a_range_whose_keyframe_expired_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[Part | Gap] = [part(number, keyframe=number // 4 * 4) for number in range(5)]
    parts[0] = Gap.EXPIRED
    planted(monkeypatch, *parts)
    assert found(2, 5) == ([4], ["torn", "torn"])


def test_tasks_have_about_the_rows_that_the_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        *(
            part(number, keyframe=0, place=place, parts=2, rows=100)
            for number in range(4)
            for place in (0, 1)
        ),
    )
    start, end = {"c/g0": 0}, {"c/g0": 8}
    assert list(plan(options(split_rows="200"), start, end)) == [Range(OF, 0, 4), Range(OF, 4, 8)]
    assert next(plan(options(split_rows="1"), start, end)) == Range(OF, 0, 2)
    assert list(plan(options(), end, end)) == []
    assert list(plan(options(), {}, end)) == [], "a new set: its first batch only sets its offset"


# -- samples --------------------------------------------------------------------------------------


def test_all_families_that_the_tables_need_are_in_the_journal_but_those_of_ha() -> None:
    provided = {metric.family.name for columns in TABLES.values() for metric in columns.values()}
    provided |= {metric.family.name for metric in FACTS.values()}
    provided |= {LOOK, "tidemark_ha_epoch", "tidemark_ha_role"}
    missing = shape.METRICS - provided
    assert {name for name in missing if not name.startswith("tidemark_ha_")} == {
        "tidemark_group_lag_messages"  # only proves that a pair exists, as others do
    }
    assert provided <= set(BY_NAME)


def test_values_that_are_absent_have_no_sample_and_times_as_dispatched_have_that_of_the_log() -> (
    None
):
    snapshot = SnapshotReader().feed(
        Part(
            part(0, keyframe=0).head,
            [
                Section("topic", Kind.NEW, array("q", [0]), ["orders"]),
                Section("group", Kind.NEW, array("q", [0]), ["billing"]),
                Section(
                    "pair",
                    Kind.NEW,
                    array("q", [0]),
                    (),
                    {"group": array("q", [0]), "topic": array("q", [0])},
                    {
                        "inflight": Column(array("q", [0]), b""),
                        "consumed_total": Column(array("q", [0]), bytes([Absent.NONE.value])),
                        "awaiting_delivery_at_ms": Column(
                            array("q", [0]), bytes([Absent.AS_DISPATCHED.value])
                        ),
                        "oldest_undelivered_at_ms": Column(array("q", [0]), bytes([200])),
                    },
                ),
            ],
        )
    )
    assert isinstance(snapshot, Snapshot)
    rows = pa.Table.from_batches(batches(snapshot, OF), schema=SAMPLES).to_pylist()
    of_pair = {row["metric"]: row["value"] for row in rows if row["group"] == "billing"}
    assert of_pair == {
        "tidemark_group_inflight_messages": 0.0,
        "tidemark_group_awaiting_delivery_timestamp_seconds": AT_MS / 1000,
    }
    assert {(row["cluster"], row["broker"], row["replica"]) for row in rows} == {("c", "g0", "n1")}
    assert {row["metric"]: row["value"] for row in rows}["tidemark_ha_epoch"] == 2
