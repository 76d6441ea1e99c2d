"""Which series are shown, and that every count is in exactly one series that never decreases."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shared.metrics.bounds import IDLE_S, SWAPS_MAX, Limits
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.family import Family, Number
from shared.metrics.registry import Registry
from shared.metrics.tables import Table
from tests.support.metrics import exposed, samples

IN, BYTES = of_requests.BROKER_MESSAGES_IN_TOTAL, of_requests.BROKER_RECEIVED_BYTES_TOTAL
DELAY = of_groups.GROUP_DELIVERY_DELAY_SECONDS
DROPPED = "tidemark_telemetry_series_dropped_total"


class Scraper:
    """Prometheus, as far as ``increase`` goes: it adds up the rise of each series between scrapes.

    A series that appears, new or after an absence, began at 0, so that the rules detect events. One
    that decreases counts as reset.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.now_s = 1000.0
        self.risen: dict[str, float] = {}
        """By name of the sample, over all label sets."""
        self.shown: dict[str, float] = {}

    def scrape(self, after_s: float = 15.0) -> dict[str, float]:
        self.now_s += after_s
        before, self.shown = self.shown, {}
        text = exposed(self._registry, now_s=self.now_s)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if family.type == "gauge":
                    continue
                series = f"{sample.name} {sorted(sample.labels.items())}"
                assert series not in self.shown, f"{series} twice"
                rise = sample.value - before.get(series, 0)
                assert rise >= 0, f"{series} fell: Prometheus would see a reset"
                self.risen[sample.name] = self.risen.get(sample.name, 0) + rise
                self.shown[series] = sample.value
        return self.shown

    def topics(self, family: Family = IN) -> set[str]:
        """Topics with a series of the family in the last scrape."""
        return {
            series.partition("('topic', '")[2].partition("'")[0]
            for series in self.shown
            if series.startswith(family.name + " ")
        }


@pytest.fixture
def registry() -> Registry:
    return Registry("broker", Limits(topics=3, pairs=3, groups=3))


def test_up_to_the_bound_all_are_shown_and_beyond_the_rest_is_other(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    for number in range(5):
        counters.labels(f"t{number}").inc(10)
    scraper.scrape()
    assert scraper.topics(BYTES) == {"t0", "t1", "t2", "_other"}
    assert samples(registry)[BYTES.name + '{topic="_other"}'] == 20
    assert samples(registry)[f'{DROPPED}{{family="{BYTES.name}"}}'] == 2


def test_the_more_active_takes_the_place_of_the_least_active(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    for number in range(3):
        counters.labels(f"t{number}").inc(100)
    scraper.scrape()
    late = counters.labels("late")
    counters.labels("t0").inc(500)
    counters.labels("t2").inc(500)
    late.inc(300)
    scraper.scrape()  # t1 is shown for the last time
    late.inc(300)
    scraper.scrape()
    assert scraper.topics(BYTES) == {"t0", "t2", "_other", "late"}
    late.inc(7)
    scraper.scrape()
    assert scraper.topics(BYTES) == {"t0", "t2", "_other", "late"}
    assert samples(registry, now_s=scraper.now_s)[BYTES.name + '{topic="late"}'] == 7
    assert scraper.risen[BYTES.name] == 3 * 100 + 1000 + 607


def test_equals_do_not_push_each_other_out(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    for number in range(6):
        counters.labels(f"t{number}")
    for _ in range(10):
        for number in range(6):
            counters.labels(f"t{number}").inc(100)
        scraper.scrape()
        assert scraper.topics(BYTES) == {"t0", "t1", "t2", "_other"}


def test_one_that_comes_back_begins_at_0_and_what_was_folded_stays_with_the_others(
    registry: Registry,
) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    first = counters.labels("first")
    first.inc(1000)
    for number in range(3):
        counters.labels(f"t{number}").inc(1)
    scraper.scrape()
    assert BYTES.name + " [('topic', 'first')]" in scraper.shown
    for _ in range(3):
        for number in range(3):
            counters.labels(f"t{number}").inc(10_000)
        scraper.scrape(600)
    assert scraper.topics(BYTES) == {"t0", "t1", "t2", "_other"}
    for _ in range(3):
        first.inc(100_000)
        scraper.scrape(600)
    shown = scraper.shown[BYTES.name + " [('topic', 'first')]"]
    assert 0 <= shown < 300_000, "what was counted under _other stays there"
    assert scraper.risen[BYTES.name] == 1003 + 90_000 + 300_000


def test_never_more_than_the_bound_is_shown_while_many_change_places() -> None:
    registry = Registry("broker", Limits(topics=300))
    counters, scraper, rng = registry.own_counter(BYTES), Scraper(registry), random.Random(7)
    total = 0
    for _ in range(12):
        for _ in range(900):
            amount = rng.randrange(1, 10_000)
            counters.labels(f"t{rng.randrange(1000)}").inc(amount)
            total += amount
        before = scraper.topics(BYTES)
        scraper.scrape(60)
        assert len(scraper.topics(BYTES) - {"_other"}) <= 300
        if before:
            assert len(before - scraper.topics(BYTES)) <= SWAPS_MAX
    assert scraper.risen[BYTES.name] == total


STEP = st.one_of(
    st.tuples(st.just("count"), st.integers(0, 7), st.integers(1, 1000)),
    st.tuples(st.just("scrape"), st.sampled_from([1.0, 15.0, 600.0, IDLE_S + 1]), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 7), st.just(0)),
)


@given(st.lists(STEP, max_size=80), st.integers(1, 4))
# While "t0" was idle it got a child of another kind, and then there was no capacity for its return:
# that child counted as one that had been shown, and was shown beyond the bound.
@example(
    [
        ("count", 0, 2),
        ("scrape", 1.0, 0),
        ("scrape", IDLE_S + 1, 0),
        ("count", 0, 1),
        ("count", 1, 1),
        ("scrape", 1.0, 0),
    ],
    1,
)
# "t0" became active, found no capacity, and got the place that "t1" left by becoming idle: all in
# one round.
@example(
    [
        ("count", 0, 1),
        ("count", 1, 1),
        ("scrape", 1.0, 0),
        ("scrape", IDLE_S + 1, 0),
        ("count", 0, 1),
    ],
    1,
)
def test_every_count_is_in_exactly_one_series_and_no_series_decreases(
    steps: Sequence[tuple[str, float, int]], most: int
) -> None:
    registry = Registry("broker", Limits(topics=most, groups=most))
    counters, delays = registry.own_counter(IN), registry.own_histogram(DELAY)
    scraper = Scraper(registry)
    there = {f"t{number}" for number in range(8)}
    registry.bounds.connect(there.__contains__, there.__contains__)
    counted = 0
    for what, number, amount in steps:
        match what:
            case "scrape":
                scraper.scrape(number)
                assert len(scraper.topics() - {"_other"}) <= most
            case "count":
                there.add(f"t{number}")  # made again if it was deleted
                counters.labels(f"t{number}", "normal" if amount % 2 else "delay").inc(amount)
                delays.labels(f"t{number}").observe_counts([amount, *[0] * len(DELAY.buckets)], 0.5)
                counted += amount
            case _:
                # Deleted topics have their own rule: what is not scraped before is lost with them.
                scraper.scrape()
                there.discard(f"t{number}")
                scraper.scrape()
                assert f"t{number}" not in scraper.topics()
    scraper.scrape()
    assert scraper.risen.get(IN.name, 0) == counted
    assert scraper.risen.get(DELAY.name + "_count", 0) == counted


def test_series_unused_for_a_day_disappear_and_return_with_new_counts(
    registry: Registry,
) -> None:
    """Otherwise a rule would treat an old count as something that just happened."""
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    quiet, busy = counters.labels("quiet"), counters.labels("busy")
    quiet.inc(5)
    for _ in range(3):
        busy.inc()
        scraper.scrape(IDLE_S / 3)
    assert scraper.topics(BYTES) == {"quiet", "busy"}
    busy.inc()
    scraper.scrape(IDLE_S / 3)
    assert scraper.topics(BYTES) == {"busy"}
    quiet.inc(2)
    scraper.scrape()
    assert scraper.shown[BYTES.name + " [('topic', 'quiet')]"] == 2
    assert "_other" not in scraper.topics(BYTES), "there was room all the time"


def test_a_day_without_scrapes_makes_no_used_series_idle(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    used = counters.labels("used")
    scraper.scrape()
    used.inc()
    scraper.scrape(2 * IDLE_S)
    assert scraper.topics(BYTES) == {"used"}


def test_an_idle_one_that_finds_no_room_is_folded(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    quiet = counters.labels("quiet")
    quiet.inc(5)
    scraper.scrape()
    for number in range(3):
        counters.labels(f"t{number}").inc(1)
    scraper.scrape(IDLE_S + 1)
    for number in range(3):
        counters.labels(f"t{number}").inc(1000)
    scraper.scrape(IDLE_S / 2)
    assert "quiet" not in scraper.topics(BYTES)
    quiet.inc()
    scraper.scrape()
    assert scraper.shown[BYTES.name + " [('topic', '_other')]"] >= 1
    assert scraper.risen[BYTES.name] == 5 + 3 + 3000 + 1


def test_a_deleted_name_disappears_with_all_its_state(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    there = {"a", "b"}
    registry.bounds.connect(there.__contains__, lambda _: True)
    kept: dict[str, object] = registry.kept()
    for name in ("a", "b"):
        kept[name] = counters.labels(name).inc
        counters.labels(name).inc(3)
    scraper.scrape()
    assert kept.keys() == {"a", "b"}
    there.discard("a")
    scraper.scrape()
    assert scraper.topics(BYTES) == {"b"}
    assert not kept, "a child that was kept would count unseen"
    there.add("a")
    counters.labels("a").inc(2)  # one of the same name begins anew
    scraper.scrape()
    assert scraper.shown[BYTES.name + " [('topic', 'a')]"] == 2


def test_a_pair_goes_with_its_group_or_its_topic_and_plain_pulls_have_no_group() -> None:
    registry = Registry("broker")
    out = registry.own_counter(of_requests.BROKER_MESSAGES_OUT_TOTAL)
    for topic, group in (("t", ""), ("t", "g"), ("t", "gone"), ("gone", "g")):
        out.labels(topic, group).inc()
    registry.bounds.connect(lambda topic: topic == "t", lambda group: group == "g")
    assert [name for name in samples(registry) if name.startswith(out.family.name)] == [
        out.family.name + '{topic="t",group=""}',
        out.family.name + '{topic="t",group="g"}',
    ]


def test_while_it_is_unknown_what_exists_nothing_is_forgotten(registry: Registry) -> None:
    counters = registry.own_counter(BYTES)
    counters.labels("t").inc()
    registry.bounds.connect(lambda _: False, lambda _: False)
    registry.bounds.connect(None, None)
    assert samples(registry)[BYTES.name + '{topic="t"}'] == 1


def test_a_topic_that_is_named_like_the_rest_is_part_of_it(registry: Registry) -> None:
    counters, scraper = registry.own_counter(BYTES), Scraper(registry)
    counters.labels("_other").inc(4)
    for number in range(4):
        counters.labels(f"t{number}").inc(1)
    scraper.scrape()
    scraper.scrape()
    assert scraper.shown[BYTES.name + " [('topic', '_other')]"] == 5


def test_labels_without_a_bound_of_their_own_are_bounded_too() -> None:
    registry = Registry("broker")
    rejected = registry.own_counter(of_requests.BROKER_REQUESTS_REJECTED_TOTAL)
    for number in range(1000):
        rejected.labels("put", f"code-{number}").inc()
    found = [name for name in samples(registry) if name.startswith(rejected.family.name)]
    assert len(found) == 257
    assert samples(registry)[rejected.family.name + '{pool="_other",code="_other"}'] == 744


# -- tables ------------------------------------------------------------------------------------

LAGS = (
    of_groups.GROUP_INFLIGHT_MESSAGES,
    of_groups.GROUP_COMMIT_AGE_SECONDS,
    of_groups.GROUP_OLDEST_UNCOMMITTED_TIMESTAMP_SECONDS,
)


class Pairs:
    """A table that the test sets."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.rows: dict[tuple[str, str], tuple[Number | None, ...]] = {}
        self.weights: dict[tuple[str, str], float] = {}
        self.used: dict[tuple[str, str], float] = {}
        self.now_s = 1000.0
        registry.read_table(LAGS, self._table)

    def _table(self) -> Table:
        columns = [[row[place] for row in self.rows.values()] for place in range(len(LAGS))]
        return Table(
            [*self.rows],
            columns,
            [self.weights.get(row, 0.0) for row in self.rows],
            [self.used.get(row, 0.0) for row in self.rows],
        )

    def scrape(self, after_s: float = 15.0) -> dict[str, Number]:
        self.now_s += after_s
        found = samples(self.registry, now_s=self.now_s)
        return {
            f"{name.removeprefix('tidemark_group_').partition('{')[0]} {name.split(chr(34))[1]}": (
                value
            )
            for name, value in found.items()
            if name.startswith("tidemark_group_")
        }


def test_rows_beyond_the_bound_are_folded_by_each_familys_rule(registry: Registry) -> None:
    pairs = Pairs(registry)
    for number in range(6):
        pairs.rows[f"g{number}", "t"] = (number, 10.5 * number, 500 - number)
    pairs.rows["g5", "t"] = (None, None, None)
    found = pairs.scrape()
    assert found["inflight_messages g2"] == 2
    assert found["inflight_messages _other"] == 3 + 4
    assert found["commit_age_seconds _other"] == 42
    assert found["oldest_uncommitted_timestamp_seconds _other"] == 496
    assert len(found) == 4 * len(LAGS)


def test_subscribed_pairs_are_shown_first(registry: Registry) -> None:
    pairs = Pairs(registry)
    for number in range(6):
        pairs.rows[f"g{number}", "t"] = (number, 0, None)
    pairs.weights["g4", "t"] = 1.0
    pairs.weights["g5", "t"] = 3.0
    for _ in range(3):
        # Busy, but without members.
        pairs.used["g0", "t"] = pairs.used.get(("g0", "t"), 0) + 10**9
        found = pairs.scrape()
    assert {"inflight_messages g4", "inflight_messages g5", "inflight_messages g0"} < found.keys()
    assert found["inflight_messages _other"] == 1 + 2 + 3


def test_a_row_is_idle_after_a_day_but_not_while_it_has_weight(registry: Registry) -> None:
    pairs = Pairs(registry)
    pairs.rows = {("idle", "t"): (1, 1, 1), ("lags", "t"): (2, 2, 2), ("used", "t"): (3, 3, 3)}
    pairs.weights["lags", "t"] = 1.0
    for step in range(5):
        pairs.used["used", "t"] = float(step)
        found = pairs.scrape(IDLE_S / 3)
    assert sorted(name for name in found if "inflight" in name) == [
        "inflight_messages lags",
        "inflight_messages used",
    ]
    pairs.used["idle", "t"] = 1.0
    assert pairs.scrape()["inflight_messages idle"] == 1


def test_rows_that_are_gone_make_room(registry: Registry) -> None:
    pairs = Pairs(registry)
    pairs.rows = {(f"g{number}", "t"): (1, 1, 1) for number in range(6)}
    pairs.scrape()
    pairs.rows = {(f"g{number}", "t"): (1, 1, 1) for number in range(3, 6)}
    for _ in range(3):
        found = pairs.scrape()
    assert sorted(name for name in found if "inflight" in name) == [
        f"inflight_messages g{number}" for number in range(3, 6)
    ]
    assert len(registry.bounds.pairs) == 3


def test_counters_and_tables_of_a_pair_are_shown_or_folded_together(registry: Registry) -> None:
    consumed = registry.own_counter(of_groups.GROUP_CONSUMED_MESSAGES_TOTAL)
    pairs = Pairs(registry)
    for number in range(5):
        consumed.labels(f"g{number}", "t").inc(number)
        pairs.rows[f"g{number}", "t"] = (number, 0, 0)
    for _ in range(3):
        found = pairs.scrape()
    shown = {name.split()[1] for name in found if name.startswith("inflight")}
    assert shown == {name.split()[1] for name in found if name.startswith("consumed")}
    assert len(shown) == 4
