"""What the registry refuses, how it shows unknown values, and when it reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from prometheus_client import Gauge

from shared.metrics.catalogue import SECTIONS
from shared.metrics.catalogue import dispatch as of_dispatch
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import ha as of_ha
from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.catalogue.analytics import ANALYTICS
from shared.metrics.family import NAMESPACE, Family, Fold, Kind
from shared.metrics.instruments import BUFFERED_MAX, Histogram
from shared.metrics.registry import Readings, Registry
from shared.metrics.samples import Buckets, Samples
from shared.metrics.tables import Table
from tests.support.metrics import samples


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda made: made.counter(of_dispatch.DISPATCH_RECORDS_TOTAL), "not in the catalogue"),
        (lambda made: made.read(of_ha.HA_EPOCH, lambda: 1), "not in the catalogue"),
        (
            lambda made: made.counter(
                Family("tidemark_x_total", Kind.COUNTER, (), "–", "Made up here")
            ),
            "not in the catalogue",
        ),
        (lambda made: made.counter(of_requests.BROKER_LONG_POLLS), "is a gauge"),
        (lambda made: made.read(of_log.LOG_FLUSH_DURATION_SECONDS, lambda: 1), "is a histogram"),
        (lambda made: made.gauge(of_log.LOG_MAX_OFFSET_BYTES), "Duplicated"),
        (lambda made: made.read(of_log.STORE_FREE_BYTES, dict), "Duplicated"),
        (lambda made: made.own_counter(of_requests.BROKER_CLOCK_STEPS_TOTAL), "Duplicated"),
        (
            lambda made: Gauge("tidemark_log_max_offset_bytes", "Of a program", registry=made),
            "Duplicated",
        ),
    ],
)
def test_a_family_outside_the_catalogue_is_refused(
    make: Callable[[Registry], object], why: str
) -> None:
    registry = Registry("broker")
    registry.read(of_log.LOG_MAX_OFFSET_BYTES, lambda: 1)
    registry.read_pass((of_log.STORE_FREE_BYTES, of_log.STORE_CAPACITY_BYTES), dict)
    registry.counter(of_requests.BROKER_CLOCK_STEPS_TOTAL)
    with pytest.raises(ValueError, match=why):
        make(registry)


def test_an_unknown_value_has_no_sample() -> None:
    registry = Registry("broker")
    registry.read(of_log.STORE_USED_RATIO, lambda: None)
    registry.read(of_log.STORE_FREE_BYTES, lambda: {"log": 5, "index": None})
    registry.read_pass((of_log.RECOVERY_DONE_BYTES, of_log.RECOVERY_TOTAL_BYTES), dict)
    assert samples(registry) == {'tidemark_store_free_bytes{volume="log"}': 5}


def test_another_function_takes_the_place_of_the_one_before() -> None:
    registry = Registry("broker")
    for number in (1, 2):
        registry.read(of_log.LOG_MAX_OFFSET_BYTES, lambda number=number: number)  # type: ignore[misc]
        registry.read(of_log.STORE_FREE_BYTES, lambda number=number: {"log": number})  # type: ignore[misc]
        registry.read_table(
            (of_groups.GROUP_MEMBERS,),
            lambda number=number: Table([("g",)], [[number]]),  # type: ignore[misc]
        )
    assert set(samples(registry).values()) == {2}


def test_all_functions_are_called_once_and_before_anybody_else_has_a_turn() -> None:
    registry = Registry("broker")
    called: list[str] = []

    def note(name: str) -> int:
        called.append(name)
        return 1

    registry.read(of_log.LOG_MAX_OFFSET_BYTES, lambda: note("read"))
    registry.read(of_log.STORE_FREE_BYTES, lambda: {"log": note("each")})
    registry.read_table((of_groups.GROUP_MEMBERS,), lambda: Table([("g",)], [[note("table")]]))
    steps = registry.take(0.0)
    family = of_log.STORE_CAPACITY_BYTES
    registry.register(Readings((family,), lambda: {family: {"log": note("apart")}}))
    while next(steps) is not None:
        pass
    assert sorted(called) == ["each", "read", "table"]
    list(steps)
    assert called[3:] == ["apart"]


def test_a_function_that_fails_fails_the_scrape_and_the_next_one_is_as_before() -> None:
    registry = Registry("broker")
    counters = registry.own_counter(of_requests.BROKER_RECEIVED_BYTES_TOTAL)
    counters.labels("t").inc(4)
    broken = [True]

    def read() -> int:
        if broken[0]:
            raise OSError("gone")
        return 1

    registry.read(of_log.LOG_MAX_OFFSET_BYTES, read)
    with pytest.raises(OSError, match="gone"):
        samples(registry)
    broken.clear()
    broken.append(False)
    assert samples(registry) == {
        'tidemark_broker_received_bytes_total{topic="t"}': 4,
        "tidemark_log_max_offset_bytes": 1,
    }


def test_a_histogram_is_of_one_instant_and_counts_before_are_not_changed_by_counts_after() -> None:
    registry = Registry("broker")
    histogram = registry.own_histogram(of_requests.BROKER_MESSAGE_SIZE_BYTES).labels()
    histogram.observe(100)
    found = [each for each in registry.take(0.0) if isinstance(each, Buckets)]
    histogram.observe(100)
    ((counts,),) = [each.counts for each in found]
    assert sum(counts[:-1]) == 1
    assert counts[-1] == 100


def test_values_one_by_one_and_many_at_once_count_the_same() -> None:
    one, many = Histogram((1, 2.5, 64)), Histogram((1, 2.5, 64))
    for value in (0, 1, 2.5, 3, 64, 65, 1e9):
        one.observe(value)
    many.observe_counts([2, 1, 2, 2], sum((0, 1, 2.5, 3, 64, 65, 1e9)))
    assert one.counts == many.counts == [2, 1, 2, 2, 1000000135.5]
    with pytest.raises(ValueError, match="1 counts for 4 buckets"):
        many.observe_counts([1], 1)
    assert one.counts == many.counts
    often, few = 2 * BUFFERED_MAX + 1, Histogram((1,), buffered_max=2)
    for _ in range(often):
        few.observe_counts([2, 1], 7)
    assert few.counts == [2 * often, often, 7 * often]


def test_label_sets_of_a_table_are_written_anew_only_when_they_are_new() -> None:
    registry = Registry("broker")
    rows = [(f"g{number}",) for number in range(3)]
    registry.read_table((of_groups.GROUP_MEMBERS,), lambda: Table(rows, [[1] * len(rows)]))

    def texts() -> list[str]:
        (found,) = [each for each in registry.take(0.0) if isinstance(each, Samples)]
        return [each.text for each in found.label_sets]

    before = texts()
    del rows[1]
    rows.append(("g9",))
    after = texts()
    assert [after[0], after[1]] == [before[0], before[2]]
    assert after[0] is before[0]


# -- the catalogue -----------------------------------------------------------------------------


def test_names_units_and_kinds_agree() -> None:
    for section in SECTIONS:
        for family in section.families:
            name, kind = family.name, family.kind
            assert name.startswith((NAMESPACE, "process_", "python_")), name
            assert name.endswith("_total") == (kind is Kind.COUNTER), name
            assert bool(family.buckets) == (kind is Kind.HISTOGRAM), name
            assert list(family.buckets) == sorted(set(family.buckets)), name
            assert family.meaning, name
            if family.unit == "s":
                assert "seconds" in name, name
            if family.unit == "bytes":
                assert "_bytes" in name, name
            if family.fold is not Fold.SUM:
                assert kind is Kind.GAUGE, name
                assert {"group", "topic"} & set(family.labels), name


def test_no_family_is_there_twice_but_those_of_every_process() -> None:
    names = [family.name for section in SECTIONS for family in section.families]
    assert len(names) == len(set(names))
    # OpenMetrics takes the _total away: then the names must still be different.
    bare = [name.removesuffix("_total") for name in names]
    assert len(bare) == len(set(bare))


def test_reserved_labels_of_the_target_are_not_used() -> None:
    for first, second in itertools.product(
        (family for section in SECTIONS for family in section.families),
        ("cluster", "broker", "replica", "service", "job", "instance", "le"),
    ):
        # Series of analytics are about other nodes: a scrape must keep these two labels.
        about = ("cluster", "broker") if first in ANALYTICS else ()
        assert second not in first.labels or second in about, first.name
