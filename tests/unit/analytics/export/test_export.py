"""What is exported: bounded, young, counted once, and taken by Prometheus' own tools."""

from __future__ import annotations

import asyncio
import io
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest

from analytics import runs
from analytics.export.history import write
from analytics.export.metrics import SHOWN_FOR_S, ExportMetrics
from analytics.export.reading import Reading, read
from analytics.export.service import Exporter, ExportOptions
from analytics.tables import TableRoot
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from tests.support.lag_world import END, START, MemoryTables, as_table, tables, tick
from tests.support.metrics import exposed, missing
from tests.support.prometheus import check

NOW = END + timedelta(seconds=10)
PAIR = 'cluster="tidemark",broker="{}",group="{}",topic="{}"'


@pytest.fixture(scope="module")
def world() -> Mapping[str, pa.Table]:
    return tables()


def seen_of(world: Mapping[str, pa.Table]) -> Reading:
    return read(MemoryTables(world), NOW, START)


def shown(seen: Reading, now: datetime = NOW) -> str:
    registry = Registry("analytics")
    add_process_facts(registry, is_ready=lambda: True)
    ExportMetrics(registry, lambda: now.timestamp()).show(seen)
    return exposed(registry)


def lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]


def test_problem_pairs_have_status_age_drain_time_and_bottleneck(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    text = shown(seen_of(world))
    audit = PAIR.format("g0", "audit", "orders")
    assert lines(text, "tidemark_analytics_group_status") == [
        f'tidemark_analytics_group_status{{{audit},status="stopped"}} 1',
        f"tidemark_analytics_group_status{{{PAIR.format('g0', 'mailer', 'orders')},"
        'status="stalled"} 1',
        f"tidemark_analytics_group_status{{{PAIR.format('g0', 'search-index', 'orders')},"
        'status="falling_behind"} 1',
    ]
    assert f"tidemark_analytics_group_drain_seconds{{{audit}}} +Inf" in text
    assert f'tidemark_analytics_group_bottleneck{{{audit},stage="delivery"}} 1' in text
    (age,) = [line for line in lines(text, "tidemark_analytics_group_age_seconds") if audit in line]
    assert float(age.split()[-1]) == pytest.approx(3585.0)


def test_a_pair_that_is_held_back_before_it_is_exported_without_a_status(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    text = shown(seen_of(world))
    ledger = PAIR.format("g1", "ledger", "payments")
    assert f"tidemark_analytics_group_hidden_lag_messages{{{ledger}}} 118500" in text
    assert f'tidemark_analytics_group_bottleneck{{{ledger},stage="dispatch"}} 1' in text
    assert f"tidemark_analytics_group_drain_seconds{{{ledger}}}" not in text, "unknown is absent"


def test_pairs_in_time_have_no_series_of_their_own_but_are_counted(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    text = shown(seen_of(world))
    assert "billing" not in text
    assert 'tidemark_analytics_pairs{cluster="tidemark",status="ok"} 3' in text


def test_what_is_old_is_not_known_any_more(world: Mapping[str, pa.Table], tmp_path: Path) -> None:
    seen = seen_of(world)
    assert seen.newest is not None
    for late, is_shown in ((SHOWN_FOR_S - 1, True), (SHOWN_FOR_S + 1, False)):
        text = shown(seen, seen.newest + timedelta(seconds=late))
        assert bool(lines(text, "tidemark_analytics_group_status")) == is_shown
        assert bool(lines(text, "tidemark_analytics_pairs")) == is_shown
        assert lines(text, "tidemark_analytics_newest_tick_timestamp_seconds")


def test_nothing_evaluated_shows_nothing(tmp_path: Path) -> None:
    text = shown(read(MemoryTables({}), NOW, START))
    assert lines(text, "tidemark_analytics_group_status") == []
    assert lines(text, "tidemark_analytics_newest_tick_timestamp_seconds") == []


def test_forecasts_count_down_and_anomalies_leave_out_what_a_parent_explains(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    text = shown(seen_of(world))
    (full,) = lines(text, "tidemark_analytics_store_full_seconds")
    assert float(full.split()[-1]) == pytest.approx(2.1e5 - 3610.0)
    found = lines(text, "tidemark_analytics_anomaly_score")
    assert len(found) == 2
    assert not any("ledger" in line for line in found)


def noted(root: TableRoot, rows: int, at: float, seconds: float = 3.0) -> None:
    with runs.run(root, "evaluate", clock=lambda: at, monotonic=iter([0, seconds]).__next__) as one:
        one.wrote({"lag": rows})
        one.watermark("scrape", NOW)


def test_each_run_after_the_first_reading_is_counted_once(tmp_path: Path) -> None:
    # A counter of a new exporter that began with the runs of three days made every rate jump.
    registry = Registry("analytics")
    metrics = ExportMetrics(registry, lambda: NOW.timestamp())
    root, since = TableRoot.create(tmp_path), datetime.fromtimestamp(990, UTC)
    noted(root, 3, 980.0)
    noted(root, 4, 1000.0)

    def counted() -> list[float]:
        metrics.show(read(root, NOW, since))
        text = exposed(registry)
        assert 'tidemark_analytics_source_gaps_total{source="scrape"} 0' in text
        names = ("run_duration_seconds_count", "rows_total", "last_success_timestamp_seconds")
        values = [lines(text, f"tidemark_analytics_{name}") for name in names]
        return [float(line.split()[-1]) for (line,) in values]

    assert counted() == [0, 0, 1000]
    noted(root, 6, 1005.0)
    for _ in range(2):
        assert counted() == [1, 6, 1005]
    noted(root, 5, 1003.0)  # it became visible late
    assert counted() == [2, 11, 1005]


def test_each_gap_is_counted_once(world: Mapping[str, pa.Table], tmp_path: Path) -> None:
    registry = Registry("analytics")
    metrics = ExportMetrics(registry, lambda: NOW.timestamp())
    for _ in range(3):
        metrics.show(seen_of(world))
    assert 'tidemark_analytics_source_gaps_total{source="scrape"} 3' in exposed(registry)
    more = {
        **world,
        "gaps": pa.concat_tables(
            [
                world["gaps"],
                as_table(
                    "gaps",
                    [
                        {
                            "source": "scrape",
                            "subject": "10.0.0.7:8083",
                            "from_ts": tick(400),
                            "to_ts": tick(401),
                            "reason": "timeout",
                            "detail": "",
                        }
                    ],
                ),
            ]
        ),
    }
    metrics.show(read(MemoryTables(more), NOW, START))
    assert 'tidemark_analytics_source_gaps_total{source="scrape"} 4' in exposed(registry)


def test_more_pairs_than_the_bound_show_the_worst(
    world: Mapping[str, pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.export.reading.PAIRS_MAX", 2)
    seen = seen_of(world)
    assert [pair.group for pair in seen.pairs] == ["audit", "mailer"]


def test_every_family_has_a_source_and_promtool_finds_no_fault(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    root = TableRoot.create(tmp_path)
    noted(root, 1, NOW.timestamp())
    with_runs = {**world, "runs": root.read("runs")}
    registry = Registry("analytics")
    add_process_facts(registry, is_ready=lambda: True)
    ExportMetrics(registry, lambda: NOW.timestamp()).show(seen_of(with_runs))
    assert missing(registry) == []
    text = exposed(registry)
    assert check("promtool", "check", "metrics", text=text).strip() == ""
    for family in registry.families:
        if family.name.startswith("tidemark_analytics_"):
            assert re.search(rf"^{family.name}[_{{ ]", text, re.MULTILINE), family.name


def stored(world: Mapping[str, pa.Table], path: Path) -> TableRoot:
    root = TableRoot.create(path)
    for name, rows in world.items():
        root.commit(name, batch="w", files=root.write(name, rows), watermark=END)
    return root


async def answer(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as found,
    ):
        return found.status, await found.text()


async def test_runs_that_end_while_tables_cannot_be_read_are_counted_later(tmp_path: Path) -> None:
    root, at = TableRoot.create(tmp_path), NOW
    exporter = Exporter(ExportOptions(tables=tmp_path), asyncio.Event(), now=lambda: at)
    await exporter.refresh()
    with runs.run(root, "rollup", clock=(at + timedelta(minutes=1)).timestamp):
        pass
    facts = tmp_path / "_root.json"
    facts.rename(tmp_path / "away")
    at += timedelta(hours=1)
    await exporter.refresh()
    facts.with_name("away").rename(facts)
    at += timedelta(hours=1)
    await exporter.refresh()
    name = "tidemark_analytics_run_duration_seconds_count"
    assert lines(exposed(exporter.registry), name) == [f'{name}{{task="rollup"}} 1']


async def test_the_service_is_ready_once_it_has_read_tables_and_unready_while_it_cannot(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    stop = asyncio.Event()
    exporter = Exporter(
        ExportOptions(tmp_path / "tables", port=0, every_s=0.05), stop, now=lambda: NOW
    )
    task = asyncio.create_task(exporter.run())

    async def until(is_ready: bool) -> None:
        async with asyncio.timeout(60):
            while exporter.health.ready != is_ready or exporter.admin.port == 0:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)

    try:
        async with asyncio.timeout(60):
            while not any(r.code == "tables-unreadable" for r in exporter.health.reasons):
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
        status, text = await answer(exporter.admin.port, "/ready")
        assert status == 503
        assert "tables-missing" in text
        assert (await answer(exporter.admin.port, "/live"))[0] == 200
        await asyncio.to_thread(stored, world, tmp_path / "tables")
        await until(True)
        async with asyncio.timeout(60):
            while 'status="stopped"' not in (await answer(exporter.admin.port, "/metrics"))[1]:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
        (tmp_path / "tables" / "_root.json").rename(tmp_path / "away")
        await until(False)
        (tmp_path / "away").rename(tmp_path / "tables" / "_root.json")
        await until(True)
    finally:
        stop.set()
        await task


def test_history_becomes_blocks_of_prometheus(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    out = io.StringIO()
    written = write(MemoryTables(world), out, START, END)
    text = out.getvalue()
    assert written.samples == sum(1 for line in text.splitlines() if not line.startswith("#"))
    assert written.families == 7
    file = tmp_path / "history.om"
    file.write_text(text)
    check("promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(tmp_path / "db"))
    (tmp_path / "db" / "wal").mkdir()  # where a Prometheus would write; without it nothing is read
    dumped = check("promtool", "tsdb", "dump", str(tmp_path / "db"))
    assert sum(1 for line in dumped.splitlines() if line.startswith("{")) == written.samples
    stopped = [line for line in dumped.splitlines() if 'status="stopped"' in line]
    first = int(stopped[0].split()[-1])
    assert first == round(tick(249).timestamp() * 1000), "timestamps to the millisecond"


def test_history_has_nothing_where_nothing_is_known(world: Mapping[str, pa.Table]) -> None:
    out = io.StringIO()
    write(MemoryTables(world), out, tick(200), tick(232))
    assert out.getvalue() == "# EOF\n"


def test_a_value_that_is_not_a_number_is_no_sample(
    world: Mapping[str, pa.Table], tmp_path: Path
) -> None:
    seen = seen_of(world)
    odd = seen._replace(pairs=[replace(seen.pairs[0], progress=math.nan)])
    assert lines(shown(odd), "tidemark_analytics_group_progress_ratio") == []
