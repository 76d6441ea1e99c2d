"""The terminal output during a run, and the table of findings at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analytics.statuses import Level, row_of
from drills.lag.judging import HIDDEN_LEAST, Found, Verdict
from drills.lag.plan import Planted

COLOURS: Final = {
    Level.PAGE: "red",
    Level.TICKET: "yellow",
    Level.INFO: "cyan",
    Level.NONE: "green",
}
REPORT_EVERY_S: Final = 15.0
"""Interval of lines if the output is not a terminal."""


class Board:
    """The current state: a line, a progress bar, and the diagnoses so far."""

    def __init__(self, watch_s: float) -> None:
        self._watch_s = watch_s
        self._doing, self._passed_s, self._reported_s = "", 0.0, 0.0
        self._verdicts: list[Verdict] = []

    def now(self, doing: str, passed_s: float, verdicts: list[Verdict] | None) -> bool:
        """Update the state. verdicts: None if they have not changed.

        Returns whether a line is due without a terminal: the activity has changed or some time has
        passed.
        """
        is_news = doing != self._doing or passed_s - self._reported_s >= REPORT_EVERY_S
        self._doing, self._passed_s = doing, passed_s
        if verdicts is not None:
            self._verdicts = verdicts
        if is_news:
            self._reported_s = passed_s
        return is_news

    def line(self) -> Text:
        parts = [
            f"{each.planted.group} {'–' if each.found is None else each.found.facts['status']}"
            for each in self._verdicts
        ]
        return Text("  ".join([f"{self._passed_s:4.0f} s", self._doing, *parts]))

    def table(self) -> RenderableType:
        # The watch takes most of a run. The steps after it take time too, more on a busy machine,
        # while the clock continues.
        head = Text(f"{self._passed_s:4.0f} s, watching {self._watch_s:.0f} s  {self._doing}")
        # Padding of 0, because a bar alone does not end its line.
        done_s = min(self._passed_s, self._watch_s)
        bar = Padding(ProgressBar(self._watch_s, done_s, width=60), 0)
        return Group(head, bar, _so_far(self._verdicts)) if self._verdicts else Group(head, bar)


def _so_far(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("group", "planted", "status", "messages", "age"):
        table.add_column(name, justify="right" if name in ("messages", "age") else "left")
    for planted, found, _ in verdicts:
        facts = {} if found is None else found.facts
        table.add_row(
            planted.group,
            planted.what,
            _status(facts),
            _number(facts.get("lag_sum"), "{:,d}"),
            _number(facts.get("age_max_seconds"), "{:.1f} s"),
        )
    return table


def findings(verdicts: Sequence[Verdict], more: Sequence[Found]) -> Table:
    table = Table(title="Findings", title_justify="left")
    for name in ("", "group", "planted", "status", "blamed", "cause"):
        table.add_column(name, overflow="fold", no_wrap=name in ("", "group", "status", "blamed"))
    rows: list[tuple[Planted | Found, str, Found | None, Sequence[str] | None]] = [
        *((each.planted, each.planted.what, each.found, each.wrong) for each in verdicts),
        *((each, "nothing", each, None) for each in more),
    ]
    for place, what, found, wrong in rows:
        facts = {} if found is None else found.facts
        table.add_row(
            Text("wrong", "bold red") if wrong or wrong is None else Text("found", "green"),
            f"{place.group}\n{place.topic}",
            what,
            _status(facts),
            Text("" if found is None else str(found.stages.get("blamed") or "–")),
            Text("; ".join(wrong or ()) or _cause(facts)),
        )
    return table


def _cause(facts: dict[str, Any]) -> str:
    parts = [facts["cause"]] if facts.get("cause") else []
    if (facts.get("hidden_lag") or 0) >= HIDDEN_LEAST:
        parts.append(f"about {facts['hidden_lag']:,d} messages are stored and not yet readable")
    return "; ".join(parts) or "–"


def _status(facts: dict[str, Any]) -> Text:
    status = facts.get("status")
    return Text("–") if status is None else Text(str(status), COLOURS.get(row_of(status).level, ""))


def _number(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)
