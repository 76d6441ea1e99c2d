"""Tokens of queries, and times that run faster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.prometheus.rules import ALERTS, RECORDS, Alert, Record
from tests.support.for_each import for_each
from tests.support.promql_tokens import faster, milliseconds, run_faster, tokens, used


@pytest.mark.parametrize(
    ("expr", "metrics", "groupings"),
    [
        ("up", {"up": set()}, set()),
        ('sum by (a, b) (x{c="1",d!~"2"}) > 3', {"x": {"c", "d"}}, {"a", "b"}),
        ("sum(rate(x_total[5m])) by (a)", {"x_total": set()}, {"a"}),
        ("a and on (c) group_left (d) b unless ignoring(e) f", {"a": set(), "b": set(), "f": set()},
         {"c", "d", "e"}),
        ("r:s:max5m offset 1h30m > bool 1e3", {"r:s:max5m": set()}, set()),
        ("max_over_time(x[30m:1m]) == NaN or vector(1) < +Inf", {"x": set()}, set()),
        ('label_replace(x, "a", "b", "c", "d by (e) {")', {"x": set()}, set()),
        ("histogram_quantile(0.99, sum by (le) (x_bucket)) # y", {"x_bucket": set()}, {"le"}),
    ],
)  # fmt: skip
def test_metrics_and_labels_are_found(
    expr: str, metrics: dict[str, set[str]], groupings: set[str]
) -> None:
    found = used(expr)
    assert found.metrics == metrics
    assert found.groupings == groupings


@pytest.mark.parametrize("expr", ["sum by (a", "x{a='1'", "{a='1'}", "x ? y", '"open'])
def test_an_invalid_query_is_refused(expr: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        used(expr)


@for_each("rule", [*ALERTS, *RECORDS])
def test_the_words_of_a_rule_are_the_rule(rule: Alert | Record) -> None:
    assert "".join(token.text for token in tokens(rule.expr)) == rule.expr
    assert used(rule.expr).metrics


def test_ranges_steps_and_offsets_run_faster_and_bounds_stay() -> None:
    assert run_faster("rate(x[5m]) > 10 and y offset 1m > 24 * 3600 # 5m", 10) == (
        "rate(x[30000ms]) > 10 and y offset 6000ms > 24 * 3600 # 5m"
    )
    assert run_faster("max_over_time(x[30m:1m])", 10) == "max_over_time(x[180000ms:6000ms])"
    assert run_faster('x{a="5m"} > 5', 10) == 'x{a="5m"} > 5'
    assert run_faster("tidemark:group_consumed:rate5m", 10) == "tidemark:group_consumed:rate5m"


def test_a_time_that_is_none_stays_none_and_no_other_becomes_it() -> None:
    assert faster("0s", 10) == "0ms"
    assert faster("5ms", 100) == "1ms"
    assert faster("2m", 10) == "12000ms"
    with pytest.raises(ValueError, match="not a duration"):
        faster("2 m", 10)


@given(st.integers(0, 10_000), st.sampled_from(["ms", "s", "m", "h", "d"]), st.integers(1, 60))
def test_faster_divides(count: int, unit: str, factor: int) -> None:
    whole = milliseconds(f"{count}{unit}")
    divided = milliseconds(faster(f"{count}{unit}", factor))
    assert divided == max(1 if whole else 0, round(whole / factor))
