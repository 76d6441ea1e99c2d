"""Every line that can be written is described in docs/logs.md, and no other."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from services.ha.core import outbox, replica_context
from tests.support.for_each import for_each
from tests.support.log_events import MORE, ROOT, Said, said

pytestmark = pytest.mark.xdist_group("log-events")

SECTIONS: Final = {
    "Every service": "all",
    "Broker": "broker",
    "Reput": "reput",
    "Ha": "ha",
    "Names": "names",
    "Client": "client",
}
BARE_OFFSETS: Final = {"at", "end", "start", "position", "dispatched", "durable", "confirm", "size"}
"""Names that leave open what is counted, and in what."""

OF_THE_LINE: Final = {"time", "level", "service", "event", "message", "logger", "error", "stack"}


class Described(NamedTuple):
    """A row of the page."""

    levels: frozenset[str]
    when: str
    facts: frozenset[str]
    to_do: str


def page() -> Iterator[tuple[tuple[str, str], Described]]:
    section = ""
    for line in (ROOT / "docs/logs.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif section in SECTIONS and line.startswith("| `"):
            event, level, when, facts, to_do = (cell.strip() for cell in line.strip("|").split("|"))
            names = re.findall(r"`([a-z_]+)`", facts) + ([MORE] if MORE in facts else [])
            described = Described(frozenset(level.split("/")), when, frozenset(names), to_do)
            yield (SECTIONS[section], event.strip("`")), described


ROWS: Final = list(page())
PAGE: Final = dict(ROWS)


@functools.cache
def written() -> dict[tuple[str, str], list[Said]]:
    """The lines of the code by service and event."""
    found: dict[tuple[str, str], list[Said]] = {}
    for each in said():
        found.setdefault((each.service, each.event), []).append(each)
    return found


def test_every_event_is_described_once_and_every_described_one_is_written() -> None:
    assert len(ROWS) == len(PAGE) > 100
    assert written().keys() - PAGE.keys() == set(), "written, and not in docs/logs.md"
    assert PAGE.keys() - written().keys() == set(), "in docs/logs.md, and not written"


@for_each("key", sorted(PAGE))
def test_an_event_has_the_level_and_the_facts_that_the_page_says(key: tuple[str, str]) -> None:
    lines, row = written()[key], PAGE[key]
    levels = {line.level for line in lines} - {"any"}
    assert levels <= row.levels
    assert row.levels == levels or any(line.level == "any" for line in lines)
    facts = frozenset().union(*(line.facts for line in lines))
    assert facts - row.facts - {MORE} == set(), "facts that the page does not name"
    if MORE not in facts:
        assert row.facts - facts == set(), "facts that no code writes"
    assert row.when
    assert row.to_do


def test_names_of_events_and_facts_are_of_one_kind() -> None:
    for (_, event), lines in written().items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", event)
        for line in lines:
            assert not line.facts & BARE_OFFSETS, f"{line.where}: {event}"
            assert not line.facts & OF_THE_LINE, f"{line.where}: {event} would not be written"
            assert all(re.fullmatch(r"[a-z_]+|…", fact) for fact in line.facts), line


def test_what_is_paced_says_how_often_it_happened() -> None:
    paced = {event for (_, event), lines in written().items() if "held_back" in lines[0].facts}
    assert {"link-refused", "connect-failed", "internal-error", "trace-limit"} <= paced


def test_codes_that_are_events_head_an_entry_of_the_runbook() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    headings = set(re.findall(r"^##+ `([a-z-]+)`$", runbook, re.MULTILINE))
    text = (ROOT / "docs/logs.md").read_text()
    linked = set(re.findall(r"runbook\.md#([a-z-]+)", text))
    assert linked
    assert linked <= headings
    for code in replica_context.RETRIED_FAULTS | outbox.NO_ROOM:
        assert f"`{code}`" in text, "an alarm of ha that the page does not name"
        assert code in headings
