"""What moved with a blamed stage: of tables with known answers, whatever the blame is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.columns import Floats
from analytics.report.facts import MovedWith, Pair, to_json
from analytics.report.gather import gather
from analytics.report.moved import moved_with, steps_of
from analytics.report.overview import pairs_at
from analytics.report.page import page
from analytics.report.sentences import moved_words
from analytics.schema import TABLES
from analytics.tables import TableRoot
from tests.support.lag_world import (
    END,
    START,
    MemoryTables,
    as_table,
    pair_row,
    tables,
    tick,
)

LAST: Final = 199
PUT, FLUSH, ACK = (
    "tidemark_broker_put_duration_seconds",
    "tidemark_log_flush_duration_seconds",
    "tidemark_ha_ack_duration_seconds",
)


def noise(seed: int, size: int = LAST + 1) -> Floats:
    return np.random.default_rng(seed).uniform(0.1, 5.0, size)


def search_index() -> Pair:
    """A pair of the made world, with replication blamed."""
    (pair,) = (
        each
        for each in pairs_at(MemoryTables(tables()), tick(LAST), 15.0)
        if each.group == "search-index"
    )
    return replace(pair, blamed="replication")


PAIR: Final = search_index()


def stages(term: Sequence[float], pair: Pair = PAIR) -> pa.Table:
    """A row for each tick; NaN: none."""
    return as_table(
        "stages",
        [
            {
                "tick": tick(number),
                "pair_id": pair.pair_id,
                "cluster": pair.cluster,
                "broker": pair.broker,
                "group": pair.group,
                "topic": pair.topic,
                "replication_seconds": float(value),
            }
            for number, value in enumerate(term)
            if not math.isnan(value)
        ],
    )


def counted(
    family: str,
    means: Sequence[float],
    *,
    labels: str = "",
    broker: str = PAIR.broker,
    restart_at: int | None = None,
    each: int = 30,
) -> list[dict[str, Any]]:
    """Samples of a histogram's sum and count. Between two ticks, `each` values with that mean
    come."""
    rows, total, count = [], 100.0, 1_000.0
    for number, mean in enumerate(means):
        began = START - timedelta(hours=1)
        if restart_at is not None and number >= restart_at:
            began = tick(restart_at) - timedelta(seconds=1)
            if number == restart_at:
                total, count = 0.0, 0.0
        total, count = total + each * mean, count + each
        for end, value in (("sum", total), ("count", count)):
            rows.append(
                {
                    "ts": tick(number) + timedelta(seconds=3),
                    "target": "n0:8081",
                    "metric": f"{family}_{end}",
                    "cluster": PAIR.cluster,
                    "broker": broker,
                    "replica": "n0",
                    "labels": labels,
                    "value": value,
                    "started_at": began,
                }
            )
    return rows


def later(values: Floats, steps: int) -> Floats:
    """The same values, this many ticks later; noise before them."""
    found = np.roll(values, steps)
    found[:steps] = noise(99, steps)
    return found


def found_in(
    term: Floats, *rows: Mapping[str, Any], pair: Pair = PAIR, piece_rows: int = 97, **more: Any
) -> list[MovedWith]:
    world = {
        "stages": stages(term.tolist(), pair),
        "counters": as_table("counters", rows) if rows else TABLES["counters"].empty_table(),
        **more,
    }
    made = MemoryTables(world, piece_rows)
    return moved_with(made, [pair], START, tick(LAST), 15.0).get(pair.pair_id, [])


def test_flushes_that_grew_first_are_reported_with_how_much_earlier() -> None:
    flush = noise(1)
    (one,) = found_in(
        later(flush, 2), *counted(FLUSH, flush.tolist()), *counted(PUT, noise(2).tolist())
    )
    assert (one.what, one.earlier_s) == ("flush", 30.0)
    assert one.correlation > 0.95
    assert 190 < one.looks <= LAST


def test_what_follows_the_blamed_stage_is_later() -> None:
    term = noise(3)
    (one,) = found_in(term, *counted(PUT, later(term, 4).tolist(), labels='ack="replicated"'))
    assert (one.what, one.earlier_s) == ("put", -60.0)


def test_without_counters_the_waits_of_sends_are_used() -> None:
    waits = noise(4)
    logs = as_table(
        "logs",
        [
            {
                "ts": tick(number),
                "tick": tick(number),
                "cluster": PAIR.cluster,
                "broker": PAIR.broker,
                "replica": replica,
                "put_wait_seconds": waits[number] if replica == "n0" else 0.0,
            }
            for number in range(LAST + 1)
            for replica in ("n0", "n1")
        ],
    )
    (one,) = found_in(waits, logs=logs)
    assert (one.what, one.earlier_s, one.correlation) == ("put_wait", 0.0, 1.0)
    both = found_in(waits, *counted(PUT, noise(5).tolist()), logs=logs)
    assert both == [], "the times of sends are known, and did not move with it"


def test_the_slowest_replica_is_the_network_time() -> None:
    slow, quick = 5.0 + noise(6), noise(7)
    rows = [
        *counted(ACK, slow.tolist(), labels='peer="n1"', each=3),
        *counted(ACK, quick.tolist(), labels='peer="n2"', each=900),
    ]
    (one,) = found_in(slow, *rows)
    assert (one.what, one.earlier_s) == ("network", 0.0)
    assert one.correlation == pytest.approx(1.0)


def test_a_restart_and_ticks_without_a_sample_leave_the_rest() -> None:
    flush = noise(8)
    term = later(flush, 1)
    term[60:75] = math.nan
    whole = found_in(term, *counted(FLUSH, flush.tolist(), restart_at=120))
    assert [(each.what, each.earlier_s) for each in whole] == [("flush", 15.0)]
    assert whole[0].looks <= LAST - 1 - 16
    assert whole == found_in(
        term, *counted(FLUSH, flush.tolist(), restart_at=120), piece_rows=10_000
    ), "however the table is cut"


def test_tables_on_disk_give_the_same(tmp_path: Path) -> None:
    flush = noise(13)
    term = later(flush, 3)
    rows = as_table("counters", counted(FLUSH, flush.tolist()))
    root = TableRoot.create(tmp_path)
    for name, table in (("stages", stages(term.tolist())), ("counters", rows)):
        root.commit(name, batch="w", files=root.write(name, table), watermark=END)
    found = moved_with(root, [PAIR], START, tick(LAST), 15.0)
    assert found == {PAIR.pair_id: found_in(term, *counted(FLUSH, flush.tolist()))}
    assert found[PAIR.pair_id][0].earlier_s == 45.0


def test_another_broker_sets_times_are_no_evidence() -> None:
    flush = noise(9)
    assert found_in(flush, *counted(FLUSH, flush.tolist(), broker="elsewhere")) == []


def test_a_few_samples_are_no_evidence() -> None:
    flush = noise(10)
    term = np.full(LAST + 1, math.nan)
    term[-18:] = flush[-18:]
    assert found_in(term, *counted(FLUSH, flush.tolist())) == []


@pytest.mark.parametrize("blamed", [None, "mixed", "append"])
def test_without_a_stage_that_has_a_time_nothing_is_read(blamed: str | None) -> None:
    class Untouched(MemoryTables):
        def scan(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("nothing to read")

    pair = replace(PAIR, blamed=blamed)
    assert moved_with(Untouched({}), [pair], START, tick(LAST), 15.0) == {}


def test_only_the_blamed_stages_time_is_read() -> None:
    flush = noise(11)
    rows = counted(FLUSH, flush.tolist())
    assert found_in(flush, *rows)
    assert found_in(flush, *rows, pair=replace(PAIR, blamed="delivery")) == []


def test_two_hours_at_most_are_read() -> None:
    steps = steps_of(START - timedelta(days=30), tick(LAST), 15.0)
    assert (steps.size, steps.width_us) == (481, 15_000_000)
    assert steps_of(START, tick(LAST), 1.0).width_us == 15_000_000


def test_a_sentence_has_what_moved_and_when() -> None:
    flush = MovedWith("flush", 30.0, 0.8214, 40)
    put = MovedWith("put", -15.0, -0.7, 44)
    now = MovedWith("network", 0.0, 0.9, 61)
    assert moved_words([flush]) == (
        "Flush times moved with it, 30 s before (rank correlation 0.82 over 40 samples)."
    )
    assert moved_words([now, put]) == (
        "Network times moved with it, at the same time (rank correlation 0.9 over 61 samples); "
        "times of sends moved against it, 15 s after (−0.7 over 44 samples)."
    )
    assert moved_words([]) == ""


def test_the_report_shows_it_and_blames_as_before() -> None:
    """Of the made world's pair that dispatch holds back: its flushes, half a minute before."""
    world = dict(tables())
    plain = gather(MemoryTables(world), start=START, end=END, made_at=END)
    row = pair_row("ledger", 0)
    hidden = [each for each in world["stages"].to_pylist() if each["pair_id"] == row["pair_id"]]
    term = {each["tick"]: noise(12, 480)[number] for number, each in enumerate(hidden)}
    world["stages"] = as_table(
        "stages",
        [
            {**each, "dispatch_seconds": float(term.get(each["tick"], 0.0))}
            if each["pair_id"] == row["pair_id"]
            else each
            for each in world["stages"].to_pylist()
        ],
    )
    means = [float(term.get(tick(number + 2), 0.2)) for number in range(480)]
    world["counters"] = as_table("counters", counted(FLUSH, means, broker=row["broker"]))
    found = gather(MemoryTables(world), start=START, end=END, made_at=END)
    (one,) = (each for each in found.attention if each.pair.group == "ledger")
    assert [(each.what, each.earlier_s) for each in one.moved_with] == [("flush", 30.0)]
    assert "Flush times moved with it, 30 s before (rank correlation " in page(found)
    assert "moved with it" not in page(plain)
    blamed = [each.pair.blamed for each in plain.attention]
    assert [each.pair.blamed for each in found.attention] == blamed
    attention = json.loads(to_json(found))["attention"]
    assert sum(len(each["moved_with"]) for each in attention) == 1
