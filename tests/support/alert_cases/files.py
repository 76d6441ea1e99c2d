"""Cases as files of ``promtool test rules``, for the rules in this tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.prometheus.rules import RULES
from tests.support.alert_cases import CASES
from tests.support.alert_cases.healthy import HEALTHY, STEP_S, STEPS, Case
from tests.support.promql_tokens import milliseconds

FIRING: Final = 'group by (alertname) (ALERTS{alertstate="firing"})'


def write_cases(directory: Path, area: str) -> Path:
    """Write the cases of an area; return the path of the file."""
    path = directory / f"{area}.yml"
    path.write_text(unit_test_file(CASES[area]))
    return path


def unit_test_file(cases: Sequence[Case]) -> str:
    """Return the input of ``promtool test rules``."""
    content = {
        "rule_files": sorted(map(str, RULES.glob("*.yml"))),
        "evaluation_interval": f"{STEP_S}s",
        "group_eval_order": ["tidemark-recording", "tidemark-memory"],
        "tests": [_test(case) for case in cases],
    }
    return str(yaml.safe_dump(content, sort_keys=False))


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
