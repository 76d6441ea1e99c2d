"""Samples become the collected tables: what is known, what is not, and why."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest

from analytics import schema
from analytics.kernel.sampled import label_value
from analytics.kernel.shape import shape
from analytics.kernel.shape_positions import kind

BEGIN: Final = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
PERIOD_S: Final = 15.0


def sample(metric: str, value: float, **of: Any) -> dict[str, Any]:
    """One sample, by default of the broker's target."""
    return {
        "ts": BEGIN,
        "source": "scrape",
        "target": "127.0.0.1:8081",
        "metric": f"tidemark_{metric}",
        "cluster": "c",
        "broker": "g0",
        "replica": "n0",
        "service": "broker",
        "labels": "",
        "value": float(value),
        **of,
    }


def snapshot(
    *, at: datetime = BEGIN, behind_s: float = 0.25, topic: str = "t"
) -> list[dict[str, Any]]:
    """A scrape of a broker with one group on two queues, the second of which it never read."""
    sampled_at = at - timedelta(seconds=behind_s)
    of: dict[str, Any] = {"ts": at}
    pair = {**of, "group": "g", "topic": topic}
    return [
        sample("broker_look_timestamp_seconds", sampled_at.timestamp(), **of),
        sample("up_since_timestamp_seconds", BEGIN.timestamp() - 1000, **of),
        sample("queue_max_offset_messages", 100, **of, topic=topic, queue=0),
        sample("queue_min_offset_messages", 10, **of, topic=topic, queue=0),
        sample("queue_max_offset_messages", 50, **of, topic=topic, queue=1),
        sample("queue_min_offset_messages", 0, **of, topic=topic, queue=1),
        sample("group_queue_offset_messages", 90, **pair, queue=0),
        sample(
            "group_queue_oldest_timestamp_seconds", sampled_at.timestamp() - 3.5, **pair, queue=0
        ),
        sample("group_queue_member_number", 2, **pair, queue=0),
        sample("group_queue_member_number", 0, **pair, queue=1),
        sample("group_subscribed", 1, **pair),
        sample("group_unknown_queues", 1, **pair),
        sample("group_inflight_messages", 7, **pair),
        sample("group_oldest_undelivered_timestamp_seconds", sampled_at.timestamp() - 2, **pair),
        sample("group_oldest_uncommitted_timestamp_seconds", sampled_at.timestamp() - 3, **pair),
        sample("group_consumed_messages_total", 1234, **pair),
        sample("group_redelivered_messages_total", 5, **pair),
        sample("group_skipped_messages_total", 3, **pair, labels='reason="expired"'),
        sample("group_skipped_messages_total", 4, **pair, labels='reason="reset_forward"'),
        sample("group_offset_resets_total", 2, **pair, labels='direction="backward"'),
        sample("group_offset_resets_total", 9, **pair, labels='direction="forward"'),
        sample("group_members", 2, **of, group="g"),
        sample("group_lag_objective_seconds", 60, **of, group="g"),
        sample("group_consume_enabled", 0, **of, group="g"),
        sample("group_broadcasting", 0, **of, group="g"),
        sample("log_min_offset_bytes", 0, **of),
        sample("log_max_offset_bytes", 4096, **of),
        sample("log_flushed_offset_bytes", 4096, **of),
        sample("log_confirm_offset_bytes", 4000, **of),
        sample("log_dispatched_offset_bytes", 3000, **of),
        sample("log_newest_message_timestamp_seconds", sampled_at.timestamp(), **of),
        sample("log_confirm_message_timestamp_seconds", sampled_at.timestamp() - 1, **of),
        sample("log_dispatched_message_timestamp_seconds", sampled_at.timestamp() - 2, **of),
        sample("broker_messages_in_total", 140, **of, topic=topic, labels='kind="normal"'),
        sample("broker_messages_in_total", 10, **of, topic=topic, labels='kind="retry"'),
        sample("broker_received_bytes_total", 64000, **of, topic=topic),
        sample("broker_requests_queued", 3, **of, labels='pool="pull"'),
        sample("broker_requests_queued", 4, **of, labels='pool="put"'),
        sample("broker_oldest_queued_request_seconds", 0.5, **of, labels='pool="put"'),
        sample("broker_long_polls", 6, **of),
        sample("store_free_bytes", 5e9, **of, labels='volume="log"'),
        sample("store_free_bytes", 1e9, **of, labels='volume="queue"'),
        sample("store_capacity_bytes", 9e9, **of, labels='volume="log"'),
    ]


def replication(at: datetime = BEGIN, epoch: int = 7) -> list[dict[str, Any]]:
    of: dict[str, Any] = {"ts": at, "target": "127.0.0.1:8083", "service": "ha"}
    peer = {**of, "labels": 'peer="n1"'}
    return [
        sample("ha_epoch", epoch, **of),
        sample("ha_role", 1, **{**of, "labels": 'role="master"'}),
        sample("ha_role", 0, **{**of, "labels": 'role="slave"'}),
        sample("ha_replica_in_sync", 1, **peer),
        sample("ha_replica_lag_bytes", 512, **peer),
        sample("ha_replica_lag_seconds", 0.25, **peer),
        sample("ha_clock_skew_seconds", -0.004, **peer),
        sample("ha_transferred_bytes_total", 8192, **peer),
    ]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.SAMPLES.names} for row in rows],
        schema=schema.SAMPLES,
    )


def shaped(rows: list[dict[str, Any]]) -> dict[str, pa.Table]:
    found = shape(table(rows), PERIOD_S)
    for name, each in found.items():
        assert each.schema.equals(schema.TABLES[name]), name
        each.validate(full=True)
    return found


def by(rows: pa.Table, column: str) -> dict[Any, dict[str, Any]]:
    return {row[column]: row for row in rows.to_pylist()}


def without(rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["metric"] != f"tidemark_{metric}"]


def test_nothing_makes_all_tables_with_no_row() -> None:
    assert {name: found.num_rows for name, found in shaped([]).items()} == {
        "series": 0, "positions": 0, "logs": 0, "pairs": 0, "replicas": 0, "counters": 0,
    }  # fmt: skip


def test_a_queue_that_a_group_never_read_has_a_position_without_a_commit() -> None:
    """``test_renderings`` checks all columns of these tables against the workloads."""
    found = shaped([*snapshot(), *replication()])
    series = by(found["series"], "queue")
    never = by(found["positions"], "series_id")[series[1]["series_id"]]
    assert series[1]["series_id"] == schema.series_id("c", "g0", "g", "t", 1)
    assert (never["commit_offset"], never["reason"]) == (None, "never_committed")
    assert never["member"] == 0
    assert (never["min_offset"], never["max_offset"]) == (0, 50)
    assert (never["head_method"], never["head_error_seconds"]) == ("none", None)


def test_messages_of_all_kinds_come_into_a_topic() -> None:
    (pair,) = shaped(snapshot())["pairs"].to_pylist()
    assert (pair["topic_messages_in_total"], pair["topic_received_bytes_total"]) == (150, 64000)


def test_a_log_has_what_waits_in_the_pools_and_the_space_of_its_own_volume() -> None:
    (log,) = shaped([*snapshot(), *replication(BEGIN - timedelta(seconds=4))])["logs"].to_pylist()
    waiting = (log["put_wait_seconds"], log["pulls_queued"], log["long_polls"])
    assert waiting == (0.5, 3, 6)
    assert (log["free_bytes"], log["capacity_bytes"]) == (5_000_000_000, 9_000_000_000)
    assert (log["clock_seconds"], log["t_min"]) == (-0.25, None)


def test_a_peer_is_a_row_of_its_own() -> None:
    (peer,) = shaped(replication())["replicas"].to_pylist()
    assert peer == {
        "ts": BEGIN,
        "tick": datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC),
        "cluster": "c",
        "broker": "g0",
        "replica": "n0",
        "peer": "n1",
        "in_sync": True,
        "lag_bytes": 512,
        "lag_seconds": 0.25,
        "skew_seconds": -0.004,
    }


def test_counters_keep_their_labels_and_when_their_process_began() -> None:
    found = shaped([*snapshot(), *replication()])["counters"].to_pylist()
    assert len(found) == 10
    resets = [row for row in found if row["labels"] == 'direction="forward"']
    assert [(row["value"], row["group"], row["topic"]) for row in resets] == [(9.0, "g", "t")]
    assert resets[0]["started_at"] == BEGIN - timedelta(seconds=1000)
    (sent,) = [row for row in found if row["metric"] == "tidemark_ha_transferred_bytes_total"]
    assert (sent["started_at"], sent["service"], sent["group"]) == (None, "ha", None)


def test_only_named_counters_are_kept_if_names_are_given() -> None:
    kept = "tidemark_group_consumed_messages_total"
    found = shape(table(snapshot()), PERIOD_S, counters={kept})["counters"]
    assert found.column("metric").to_pylist() == [kept]
    assert shape(table(snapshot()), PERIOD_S, counters=())["counters"].num_rows == 0


@pytest.mark.parametrize(
    ("distance_s", "epoch"),
    [(-31, None), (-29, 7), (0, 7), (29, 7), (31, None)],
)
def test_the_epoch_is_the_one_of_ha_within_two_periods(distance_s: int, epoch: int | None) -> None:
    found = shaped([*snapshot(), *replication(BEGIN + timedelta(seconds=distance_s))])
    assert set(found["positions"].column("epoch").to_pylist()) == {epoch}


def test_the_epoch_before_a_scrape_counts_more_than_a_nearer_one_after_it() -> None:
    found = shaped(
        [
            *snapshot(),
            *replication(BEGIN - timedelta(seconds=20), epoch=7),
            *replication(BEGIN + timedelta(seconds=1), epoch=8),
        ]
    )
    assert set(found["positions"].column("epoch").to_pylist()) == {7}


def test_an_old_snapshot_is_a_gap_and_not_a_group_that_stands_still() -> None:
    """A snapshot that stood still at the second scrape, and one that a clock far behind has
    stamped."""
    later = BEGIN + timedelta(seconds=15)
    found = shaped([*snapshot(), *snapshot(at=later, behind_s=15.25)])
    sampled_at = BEGIN - timedelta(seconds=0.25)
    assert found["positions"].column("ts").to_pylist() == [sampled_at] * 2
    assert found["pairs"].num_rows == 1
    first, log = found["logs"].to_pylist()
    assert first["t_max"] is not None
    assert (log["ts"], log["max_physical_offset"], log["t_max"]) == (later, 4096, None)


@pytest.mark.parametrize("behind_s", [15, 600, -600])
def test_a_node_is_judged_by_its_own_clock_however_far_it_is_off(behind_s: float) -> None:
    later = BEGIN + timedelta(seconds=15)
    found = shaped([*snapshot(behind_s=behind_s), *snapshot(at=later, behind_s=behind_s)])
    off = timedelta(seconds=behind_s)
    rows = found["positions"].to_pylist()
    assert [row["ts"] for row in rows] == [BEGIN - off, later - off] * 2
    assert sorted({row["tick"].second for row in rows}) == [0, 15]
    assert found["logs"].column("clock_seconds").to_pylist() == [-behind_s] * 2


def test_snapshots_at_both_sides_of_a_tick_stay_in_the_ticks_of_their_scrapes() -> None:
    """Scrapes 0.1 s after a tick; a snapshot that a second scraper began is 0.4 s older."""
    ticks = [datetime(2026, 3, 1, 12, 0, second, tzinfo=UTC) for second in (0, 15, 30)]
    scrapes = [tick + timedelta(seconds=0.1) for tick in ticks]
    found = shaped(
        [
            *snapshot(at=scrapes[0], behind_s=0.01),
            *snapshot(at=scrapes[1], behind_s=0.4),
            *snapshot(at=scrapes[2], behind_s=0.01),
        ]
    )
    own = found["positions"].to_pylist()
    assert sorted({row["tick"] for row in own}) == ticks
    assert len(own) == 6


def test_a_foreign_process_without_snapshots_has_the_time_of_its_scrape() -> None:
    found = shaped(without(snapshot(), "broker_look_timestamp_seconds"))
    assert set(found["positions"].column("ts").to_pylist()) == {BEGIN}


def test_queues_without_room_for_a_series_are_not_taken_for_never_read() -> None:
    """Two commits are absent, and of one queue only is the lag unknown."""
    rows = [*without(snapshot(), "group_queue_offset_messages")]
    found = shaped(without(rows, "group_queue_oldest_timestamp_seconds"))
    assert found["positions"].column("reason").to_pylist() == ["not_exported"] * 2


def test_an_owner_that_is_not_exported_is_unknown_and_not_none() -> None:
    found = shaped(without(snapshot(), "group_queue_member_number"))
    assert found["positions"].column("member").to_pylist() == [None, None]


def test_a_queue_that_is_not_exported_leaves_the_commit() -> None:
    rows = without(snapshot(), "queue_max_offset_messages")
    (position,) = shaped(without(rows, "queue_min_offset_messages"))["positions"].to_pylist()
    assert position["commit_offset"] == 90
    assert (position["max_offset"], position["reason"]) == (None, "not_exported")


def test_unread_messages_of_unknown_age_have_a_reason() -> None:
    rows = without(snapshot(), "group_queue_oldest_timestamp_seconds")
    reasons = shaped(rows)["positions"].column("reason").to_pylist()
    assert sorted(reasons) == ["head_unknown", "never_committed"]


def test_a_group_that_has_read_all_lacks_nothing() -> None:
    rows = without(snapshot(), "group_queue_oldest_timestamp_seconds")
    for row in rows:
        if row["metric"] == "tidemark_group_queue_offset_messages":
            row["value"] = 100.0
    (read,) = [row for row in shaped(rows)["positions"].to_pylist() if row["commit_offset"]]
    assert (read["reason"], read["head_method"], read["head_store_ts"]) == (None, "none", None)


def test_a_slave_has_a_log_and_no_position() -> None:
    rows = [row for row in snapshot() if row.get("topic") is None and row.get("group") is None]
    found = shaped(rows)
    assert found["logs"].num_rows == 1
    assert found["positions"].num_rows == found["pairs"].num_rows == 0


def test_folded_topics_are_counted_and_are_no_pair() -> None:
    found = shaped(snapshot(topic="_other"))
    assert found["positions"].num_rows == found["pairs"].num_rows == found["series"].num_rows == 0
    assert found["counters"].num_rows == 9


def test_context_is_known_and_written_by_another_partition() -> None:
    """A partition of one share of the queues: what has no queue is there to join with."""
    rows = [*snapshot(), *replication()]
    for row in rows:
        if row.get("queue") is None:
            row["source"] = "context"
    found = shaped(rows)
    assert found["positions"].equals(shaped([*snapshot(), *replication()])["positions"])
    assert {name for name, each in found.items() if each.num_rows} == {"series", "positions"}


def test_two_nodes_that_both_claim_a_queue_are_two_rows() -> None:
    other = [{**row, "replica": "n1", "target": "127.0.0.1:8091"} for row in snapshot()]
    found = shaped([*snapshot(), *other])
    assert found["series"].num_rows == 2
    assert sorted(found["positions"].column("replica").to_pylist()) == ["n0", "n0", "n1", "n1"]


def test_samples_in_any_order_and_twice_make_the_same_tables() -> None:
    later = BEGIN + timedelta(seconds=15)
    rows = [*snapshot(), *replication(), *snapshot(at=later), *replication(later)]
    expected = shaped(rows)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    shuffled = rows * 2
    random.Random(seed).shuffle(shuffled)
    found = shaped(shuffled)
    for name in ("series", "positions", "pairs", "counters"):
        assert found[name].equals(expected[name]), name
    for name in ("logs", "replicas"):
        assert sorted(found[name].to_pylist(), key=str) == sorted(
            expected[name].to_pylist(), key=str
        )


def test_a_row_about_a_gap_is_no_sample() -> None:
    gap = {**sample("x", 0), "metric": "_gap", "labels": 'reason="torn"'}
    assert shaped([*snapshot(), gap])["positions"].num_rows == 2
    assert all(found.num_rows == 0 for found in shaped([gap]).values())


def test_kinds_are_recognised_by_names() -> None:
    kinds = {name: kind(name) for name in ("orders", "%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer")}
    assert kinds == {
        "orders": "main", "%RETRY%g": "retry", "%DLQ%g": "dlq", "rmq_sys_wheel_timer": "system",
    }  # fmt: skip
    assert kind("SCHEDULE_TOPIC_XXXX") == "system"


def test_a_label_is_found_by_its_whole_name_and_unescaped() -> None:
    labels = r'a="x,peer=\"no\"",peer="n\\1"'
    assert label_value(labels, "peer") == "n\\1"
    assert label_value(labels, "a") == 'x,peer="no"'
    assert label_value(labels, "eer") == ""


def test_labels_that_a_target_brings_along_change_no_table_but_counters() -> None:
    # Under Kubernetes every series has these: what expired, who asked for a rewind, the free space
    # and what waits in the pools were all unknown there.
    rows = [*snapshot(), *replication()]
    target = {"container": "broker", "endpoint": "admin", "namespace": "x", "pod": "n0", "zz": "z"}

    def among(labels: str) -> str:
        own = [pair for pair in labels.split(",") if pair]
        return ",".join(sorted([*own, *(f'{name}="{value}"' for name, value in target.items())]))

    plain = shaped(rows)
    beside = shaped([{**row, "labels": among(row["labels"])} for row in rows])
    for name in ("series", "positions", "logs", "pairs", "replicas"):
        assert beside[name].equals(plain[name]), name
    (pair,) = beside["pairs"].to_pylist()
    assert (pair["expired_total"], pair["reset_backward_total"]) == (3, 2)
