"""When a Prometheus scraped nothing: reported once, however time is cut into parts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.sources.prometheus.holes import INTERVALS, holes, range_before_us
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.reader import Reader
from tests.support.range_server import RangeServer, Samples

I = 15_000_000  # noqa: E741 - the interval
S = 1_000_000


def found(times: list[int], cuts: list[int]) -> list[tuple[int, int]]:
    """Return the holes of all parts between these cuts, each with the samples that it asks for."""
    rows = []
    for start, end in itertools.pairwise(cuts):
        seen = [at for at in times if start - range_before_us(I) < at <= end]
        rows += [(low, high) for low, high in holes(np.array(seen, np.int64), start, end, I)]
    return rows


def merged(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    whole: list[tuple[int, int]] = []
    for low, high in rows:
        if whole and whole[-1][1] == low:
            whole[-1] = (whole[-1][0], high)
        else:
            whole.append((low, high))
    return whole


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], [(0, 600 * S)]),
        (list(range(-I, 41 * I, I)), []),
        ([at for at in range(-I, 41 * I, I) if not 10 * I < at < 20 * I], [(10 * I, 20 * I)]),
        ([at for at in range(-I, 41 * I, I) if not 10 * I < at < 13 * I], []),
        ([at for at in range(-I, 41 * I, I) if at <= 30 * I], [(30 * I, 40 * I)]),
    ],
    ids=["nothing at all", "whole", "a hole", "two scrapes missing", "ended"],
)
def test_a_time_without_scrapes_is_a_hole_from_the_last_one_to_the_next(
    times: list[int], expected: list[tuple[int, int]]
) -> None:
    assert found(times, [0, 40 * I]) == expected
    assert merged(found(times, list(range(0, 41 * I, I)))) == expected, "a period at a time"


@given(st.sets(st.integers(1, 4000)), st.sets(st.integers(1, 3999), max_size=12))
def test_holes_are_the_same_however_time_is_cut(times: set[int], cuts: set[int]) -> None:
    seconds = sorted(times)
    at = [second * S for second in seconds]
    border = [0, *sorted(cut * S for cut in cuts), 4000 * S]
    expected = [
        (low, high)
        for low, high in itertools.pairwise([-10 * INTERVALS * I, *at, 4000 * S])
        if high - low > INTERVALS * I
    ]
    expected = [(max(low, 0), high) for low, high in expected]
    assert merged(found(at, border)) == merged([row for row in expected if row[1] > row[0]])


def test_a_server_that_keeps_no_up_has_no_holes() -> None:
    labels = (("__name__", "tidemark_group_members"), ("instance", "127.0.0.1:1"))
    samples: Samples = {labels: [(ms, 1.0) for ms in range(0, 600_000, 15_000)]}
    with RangeServer(samples, left_open=True) as server:
        reader = Reader(parse({"url": server.url, "interval": "15s"}))
        (part,) = reader.plan(0, 600 * S)
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows
    assert not [row for row in rows if row["metric"] == "_gap"]


def test_a_server_that_was_down_has_a_gap_and_not_only_no_samples() -> None:
    """Backfill once printed "2 hours filled from 0 samples", and left no row in the table gaps."""
    labels = (("__name__", "up"), ("instance", "127.0.0.1:1"), ("service", "broker"))
    samples: Samples = {labels: [(ms, 1.0) for ms in range(0, 3_600_000, 15_000) if ms < 600_000]}
    with RangeServer(samples, left_open=True) as server:
        options = parse({"url": server.url, "interval": "15s", "slice": "10m", "context": "true",
                         "shards": "2"})  # fmt: skip
        reader = Reader(options)
        rows = []
        for part in reader.plan(0, 3600 * S):
            for batch in reader.read(part):
                rows += [row for row in batch.to_pylist() if row["metric"] == "_gap"]
    assert len(rows) == 5, "one for each slice that it has nothing of"
    assert all('reason="unscraped"' in row["labels"] for row in rows)
    # The last scrape before the hole is that of 585 s, which the first slice could not yet miss.
    assert 'from="585000000"' in rows[0]["labels"]
    assert rows[-1]["ts"].timestamp() == 3600


def test_a_server_that_scrapes_only_others_has_a_gap() -> None:
    """Nearly every Prometheus scrapes itself. As long as it had no target of ours for a whole
    slice, its own `up` counted as a sample without `up` of a node, and there was no gap."""
    ours = (("__name__", "up"), ("instance", "127.0.0.1:1"), ("service", "broker"))
    own = (("__name__", "up"), ("instance", "localhost:9090"), ("job", "prometheus"))
    whole = range(0, 3_600_000, 15_000)
    samples: Samples = {
        own: [(ms, 1.0) for ms in whole],
        ours: [(ms, 1.0) for ms in whole if not 600_000 <= ms < 3_000_000],
    }
    with RangeServer(samples, left_open=True) as server:
        for more in ({}, {"context": "true", "shards": "2"}):
            reader = Reader(parse({"url": server.url, "interval": "15s", "slice": "10m", **more}))
            rows = []
            for part in reader.plan(0, 3600 * S):
                for batch in reader.read(part):
                    rows += [row for row in batch.to_pylist() if row["metric"] == "_gap"]
            ends = [row["ts"].timestamp() for row in rows]
            assert ends == [1200, 1800, 2400, 3000]
            assert 'from="585000000"' in rows[0]["labels"]
