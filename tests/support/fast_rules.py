"""The alert rules at a multiple of their speed: all times are divided, no threshold is."""

from __future__ import annotations

from typing import Any

import yaml

from deploy.prometheus.rules import groups
from tests.support.promql_tokens import faster, run_faster


def rule_file(factor: float) -> str:
    """The text of one rule file with all groups."""
    return str(yaml.safe_dump({"groups": [_group(group, factor) for group in groups()]}))


def _group(group: dict[str, Any], factor: float) -> dict[str, Any]:
    fast = {**group, "rules": [_rule(rule, factor) for rule in group["rules"]]}
    if "interval" in group:
        fast["interval"] = faster(group["interval"], factor)
    return fast


def _rule(rule: dict[str, Any], factor: float) -> dict[str, Any]:
    times = {name: rule[name] for name in ("for", "keep_firing_for") if name in rule}
    fast: dict[str, Any] = {name: faster(time, factor) for name, time in times.items()}
    return {**rule, "expr": run_faster(rule["expr"], factor), **fast}
