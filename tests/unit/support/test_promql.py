"""The referee of queries refuses what makes no sense, and names what a sensible one yields."""

from __future__ import annotations

import pytest

from tests.support.for_each import for_each
from tests.support.promql import Nonsense, Series, metrics, numbers, yields

LAG = "tidemark_group_lag_seconds"
IN = "tidemark_broker_messages_in_total"
PUT = "tidemark_broker_put_duration_seconds"


@for_each(
    ("expr", "unit", "labels"),
    [
        (f"max by (group) ({LAG})", "s", {"group"}),
        (f"sum by (topic) (rate({IN}[1m]))", "messages/s", {"topic"}),
        (f"sum(increase({IN}[5m]))", "messages", set()),
        (f"histogram_quantile(0.9, sum by (le, ack) (rate({PUT}_bucket[1m])))", "s", {"ack"}),
        (f"sum(rate({PUT}_count[1m]))", "observations/s", set()),
        (f"count({LAG} > 5)", "count", set()),
        (f"count(up == 0) or 0 * count({LAG})", "count", set()),
        ("time() - max(tidemark_up_since_timestamp_seconds)", "s", set()),
        ("max(tidemark_log_max_offset_bytes - tidemark_log_min_offset_bytes)", "bytes", set()),
        ("sum(rate(process_cpu_seconds_total[1m]))", "ratio", set()),
        ("max(tidemark_up_since_timestamp_seconds) * 1000", "ms", set()),
        (
            f"max by (group, topic) ({LAG}) / on (group) group_left () "
            "max by (group) (tidemark_group_lag_objective_seconds)",
            "ratio",
            {"group", "topic"},
        ),
        (f"max by (group) ({LAG}) > bool 3", "–", {"group"}),
        (f"topk(5, max by (group) ({LAG})) ^ 0", "s", {"group"}),
        (f"max by (group) (deriv({LAG}[5m]))", "ratio", {"group"}),
        ("recorded:x * 2", "bytes", {"peer"}),
    ],
)
def test_unit_and_labels_of_a_result(expr: str, unit: str, labels: set[str]) -> None:
    found = yields(expr, {"recorded:x": Series("gauge", "bytes", frozenset({"peer"}))})
    assert (found.unit, set(found.labels)) == (unit, labels)


@for_each(
    ("expr", "why"),
    [
        ("tidemark_nothing", "is no metric"),
        (PUT, "is no metric"),
        (f'{LAG}{{queue="1"}}', "has no label queue"),
        (f"sum({IN})", "of a counter itself"),
        (f"rate({LAG}[1m])", "of what is no counter"),
        (f"deriv({IN}[1m])", "of a counter"),
        (f"sum by (peer) ({LAG})", "no label peer"),
        (f"histogram_quantile(0.9, sum by (ack) (rate({PUT}_bucket[1m])))", "no buckets with le"),
        (f"histogram_quantile(0.9, sum by (le) ({PUT}_bucket))", "of a counter itself|no buckets"),
        (f"max({LAG}) + max(tidemark_log_max_offset_bytes)", "s . bytes"),
        (f"max({LAG}) > max(tidemark_group_lag_messages)", "s > messages"),
        (f"max by (group) ({LAG}) / max by (topic) ({LAG})", "never match for group, topic"),
        (f"{LAG} and on (peer) {LAG}", "no label peer"),
        (f"{LAG} / ignoring (kind) {LAG}", "ignoring"),
        (f"max({LAG}) * max(tidemark_log_max_offset_bytes)", "s times bytes"),
        (f"max({LAG}) / max(tidemark_log_max_offset_bytes)", "s by bytes"),
        ('{job="x"}', "without a name"),
        (f"label_replace({LAG}, 'a', 'b', 'c', 'd')", "no rule for the function"),
    ],
)
def test_nonsense_is_refused(expr: str, why: str) -> None:
    with pytest.raises(Nonsense, match=why):
        yields(expr)


def test_names_and_numbers_of_an_expression() -> None:
    expr = f"max({LAG} > 3) unless rate({IN}[5m]) * 0.5"
    assert metrics(expr) == {LAG, IN}
    assert numbers(expr) == {3, 0.5}
