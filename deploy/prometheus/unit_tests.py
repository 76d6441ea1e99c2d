"""Converts cases to a file of ``promtool test rules``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from deploy.prometheus.cases.healthy import HEALTHY, STEP_S, STEPS, Case
from deploy.prometheus.promql import milliseconds
from deploy.prometheus.rendering import HEAD, as_yaml

FIRING: Final = 'group by (alertname) (ALERTS{alertstate="firing"})'


def unit_test_file(cases: Sequence[Case], rule_files: Sequence[str]) -> str:
    """Return the input of ``promtool test rules``. rule_files: paths."""
    return HEAD.replace("areas", "cases").replace("the rules are", "the cases are") + as_yaml(
        {
            "rule_files": list(rule_files),
            "evaluation_interval": f"{STEP_S}s",
            "group_eval_order": ["tidemark-recording", "tidemark-memory"],
            "tests": [_test(case) for case in cases],
        }
    )


def _test(case: Case) -> dict[str, Any]:
    series = {**HEALTHY, **case.changes}
    last_ms = max(milliseconds(time) for time, _ in case.fires)
    steps = last_ms // (STEP_S * 1000) + 1  # later steps are not evaluated
    return {
        "name": case.name,
        "interval": f"{STEP_S}s",
        "input_series": [
            {"series": name, "values": values.replace(f"x{STEPS}", f"x{steps}")}
            for name, values in series.items()
            if values is not None
        ],
        "promql_expr_test": [
            {
                "expr": FIRING,
                "eval_time": time,
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)
                ],
            }
            for time, alerts in case.fires
        ],
    }
