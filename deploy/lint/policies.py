"""Runs Checkov on rendered manifests; reports findings without an exception, and exceptions without
a finding."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

TIMEOUT_S: Final = 300


class PolicyCheckFailed(Exception):
    """Checkov did not finish."""


def findings(tools: Path, config: Path, files: Sequence[Path]) -> Iterator[str]:
    """Yield one line per finding. Raises PolicyCheckFailed.

    tools: directory of the program. config: its settings, of which only exceptions and frameworks
    are used. Exceptions are applied here, to find those that are no longer needed.
    """
    settings = yaml.safe_load(config.read_text())
    excepted = set(settings["skip-check"])
    met: set[str] = set()
    for report in _reports(tools, settings["framework"], files):
        for failed in report["results"]["failed_checks"]:
            met.add(failed["check_id"])
            if failed["check_id"] not in excepted:
                file = Path(failed["file_path"]).name
                yield (
                    f"policy: {file}: {failed['resource']}: {failed['check_id']} "
                    f"{failed['check_name']}"
                )
    for check in sorted(excepted - met):
        yield f"policy: {config.name} excepts {check}, which finds nothing: take it out"


def _reports(
    tools: Path, frameworks: Sequence[str], files: Sequence[Path]
) -> Sequence[dict[str, Any]]:
    arguments: list[str | Path] = [tools / "checkov", "--skip-download", "--output", "json"]
    for file in files:
        arguments += ["--file", file]
    arguments += ["--framework", *frameworks]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise PolicyCheckFailed(f"checkov: {done.stdout[-500:]} {done.stderr[-500:]}") from error
    reports: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    if sorted(report.get("check_type", "") for report in reports) != sorted(frameworks):
        raise PolicyCheckFailed(f"checkov checked {[r.get('check_type') for r in reports]}")
    return reports
