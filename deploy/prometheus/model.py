"""Alert and recording rules as values. Pure; ``rendering`` generates files from them.

Times are texts in Prometheus' syntax (``2m``), so that a rule reads as in Prometheus.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

RUNBOOK: Final = "docs/runbook.md"
"""The page that has a heading for every alert."""
RUNBOOK_LABEL: Final = "runbook"
"""External label of a Prometheus: URL under which its operators can read the page. Without the
label, the path in the project is shown, because the project has no site."""
TARGET_LABELS: Final = ("cluster", "broker", "replica", "service")
"""Labels that scraping sets on every series (docs/monitoring.md)."""


class Severity(enum.Enum):
    """Urgency of an alert."""

    PAGE = "page"
    """An operator is paged at any time."""
    TICKET = "ticket"
    """An operator handles it during working hours."""
    INFO = "info"
    """It is only displayed; no notification is sent."""


class Alert(NamedTuple):
    """One alert. Its runbook entry describes meaning, evidence and reaction."""

    name: str
    expr: str
    severity: Severity
    labels: tuple[str, ...]
    """Labels of ``expr``'s series, for use in texts and in inhibition."""
    summary: str
    """One sentence including the value."""
    description: str
    """Effect on users, and the consequence if there is no reaction."""
    waits: str = "0s"
    """``for``: how long the condition must hold."""
    keeps: str = "0s"
    """``keep_firing_for``: how long the alert keeps firing after the condition has ended."""

    @property
    def runbook_url(self) -> str:
        """URL of its runbook entry, as a template of Prometheus."""
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
    """Rules that are evaluated in order; also determines the file's name."""

    name: str
    rules: tuple[Alert | Record, ...]
    every: str = ""
    """Evaluation interval; empty: that of the configuration."""

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Return its alerts."""
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))


def events(counter: str, within: str, by: tuple[str, ...]) -> str:
    """Return an expression for a counter's recent increase, above 0 only, including a first event.

    ``increase`` misses the first event of a label set whose series begins with it, because there is
    no 0 before. So a series counts with its value if it did not exist a minute ago although its
    process was scraped then. A process that was discovered later may have counted long before.
    """
    sum_by = f"sum by ({', '.join(by)})"
    return (
        f"{sum_by} (increase({counter}[{within}]) > 0"
        f" or ({counter} unless {counter} offset 1m) > 0"
        f" and on ({', '.join(TARGET_LABELS)}) up offset 1m == 1)"
    )
