"""Gaps travel among samples and come out as they went in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from analytics.schema import GAPS, SAMPLES, Gap
from analytics.sources.gaps import DETAIL_MAX, Missing, batch, split
from tests.support.for_each import for_each

US = 1_000_000


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def up(target: str, second: int, value: float, source: str = "prometheus") -> dict[str, Any]:
    return {
        "ts": at(second), "source": source, "target": target, "metric": "up", "service": "broker",
        "labels": "", "value": value,
    }  # fmt: skip


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SAMPLES)


@for_each("reason", Gap)
@for_each("lost", [None, 0, 12])
def test_a_gap_comes_out_as_it_went_in(reason: Gap, lost: int | None) -> None:
    detail = 'he said "no",\nand \\ left; from="7"'
    missing = Missing('{job="a",x=~"b|c"}', 5 * US + 1, 9 * US, reason, detail, lost)
    rows = pa.Table.from_batches([batch([missing], "scrape")])
    samples, gaps = split(pa.concat_tables([table(up("h", 1, 1)), rows]))
    assert samples.column("metric").to_pylist() == ["up"]
    assert gaps.schema.equals(GAPS)
    assert gaps.to_pylist() == [
        {
            "source": "scrape", "subject": missing.subject,
            "from_ts": at(5).replace(microsecond=1), "to_ts": at(9),
            "reason": str(reason), "detail": detail, "rows_lost": lost,
        }
    ]  # fmt: skip


def test_a_long_story_is_cut_short() -> None:
    missing = Missing("h", 0, 1, Gap.TORN, '"' * 10_000)
    _, gaps = split(pa.Table.from_batches([batch([missing], "scrape")]))
    assert gaps.column("detail").to_pylist() == ['"' * DETAIL_MAX]


def test_without_gaps_the_samples_stay() -> None:
    rows = table(up("h", 1, 1))
    samples, gaps = split(rows)
    assert samples.equals(rows)
    assert (gaps.num_rows, gaps.schema) == (0, GAPS)
    assert split(table())[1].num_rows == 0


def test_a_target_that_prometheus_could_not_scrape_is_a_gap_since_the_scrape_before() -> None:
    samples, gaps = split(
        table(
            up("h", 45, 0), up("h", 15, 1), up("h", 30, 0), up("k", 16, 0), up("k", 31, 1),
            up("l", 16, 0, source="context"),
        )
    )  # fmt: skip
    assert samples.num_rows == 6
    found = [(row["subject"], row["from_ts"], row["to_ts"]) for row in gaps.to_pylist()]
    assert found == [("h", at(15), at(30)), ("h", at(30), at(45)), ("k", at(16), at(16))]
    assert {(row["source"], row["reason"]) for row in gaps.to_pylist()} == {("prometheus", "down")}


@pytest.mark.parametrize("service", [None, "kube-dns", "analytics"])
def test_a_foreign_target_that_is_down_is_no_gap_of_ours(service: str | None) -> None:
    # A Prometheus that is shared has `up` of everything that a company runs.
    assert split(table({**up("node:9100", 15, 0), "service": service}))[1].num_rows == 0
