"""Alert and recording rules as values. Pure; ``rendering`` makes files of them.

Times stay texts of Prometheus' language (``2m``), so that a rule reads as it is written there.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

RUNBOOK: Final = "docs/runbook.md"
"""Where every alert has a heading of its name."""
RUNBOOK_LABEL: Final = "runbook"
"""External label of a Prometheus: where its operators can read the page, as an address. A path of
the project, which has no site, is all that can be said without it."""
TARGET_LABELS: Final = ("cluster", "broker", "replica", "service")
"""Set by scraping, on every series (docs/monitoring.md)."""


class Severity(enum.Enum):
    """Who looks, and when."""

    PAGE = "page"
    """Somebody is woken."""
    TICKET = "ticket"
    """It waits for the day."""
    INFO = "info"
    """It is shown, and nobody is told."""


class Alert(NamedTuple):
    """One alert. Its runbook entry has the meaning, the evidence and what to do."""

    name: str
    expr: str
    severity: Severity
    labels: tuple[str, ...]
    """Of the series that ``expr`` yields: what the texts may name, what inhibition compares."""
    summary: str
    """One sentence with the number."""
    description: str
    """What it means for people, and what comes next if nobody looks."""
    waits: str = "0s"
    """``for``: how long it must hold."""
    keeps: str = "0s"
    """``keep_firing_for``: how long it stays when the expression is over."""

    @property
    def runbook_url(self) -> str:
        """Its entry, as a template of Prometheus."""
        address = f"$externalLabels.{RUNBOOK_LABEL}"
        page = "{{ with " + address + " }}{{ . }}{{ else }}" + RUNBOOK + "{{ end }}"
        return f"{page}#{self.name.lower()}"


class Record(NamedTuple):
    """One recording rule: a series that other rules and the dashboards share."""

    name: str
    expr: str
    labels: tuple[str, ...]
    meaning: str


class Group(NamedTuple):
    """Rules that are evaluated one after another, in order, and the file's name."""

    name: str
    rules: tuple[Alert | Record, ...]
    every: str = ""
    """How often; empty: as the configuration says."""

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Those of its rules that alert."""
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))


def events(counter: str, within: str, by: tuple[str, ...]) -> str:
    """How often a counter moved lately, above 0 only; also where it begins to be exported with 1.

    ``increase`` cannot see the first event of a label set that appears with it: there is no 0
    before. So a series counts as it is when it was not there a minute ago although its process
    was asked then; a process that Prometheus has just found may have counted long before.
    """
    sum_by = f"sum by ({', '.join(by)})"
    return (
        f"{sum_by} (increase({counter}[{within}]) > 0"
        f" or ({counter} unless {counter} offset 1m) > 0"
        f" and on ({', '.join(TARGET_LABELS)}) up offset 1m == 1)"
    )
