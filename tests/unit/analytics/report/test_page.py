"""The HTML file: whole, harmless whatever names people give, and honest about what is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Final

import pyarrow as pa
import pytest

from analytics.report.axes import BYTES, COUNT, RATE, SECONDS, Unit, marks_of, times, top_of
from analytics.report.changes import previous
from analytics.report.course import _drawn
from analytics.report.facts import Facts, QueueLag, to_json
from analytics.report.gather import gather
from analytics.report.page import page
from analytics.report.plots import Line, Span, lines, stacked, timeline
from analytics.report.sentences import headline, queues_detail, reason_words
from tests.support.for_each import for_each
from tests.support.lag_world import END, START, MemoryTables, tables

VOID: Final = {"meta", "br", "rect", "line", "path", "link", "img"}
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
EVIL: Final = '<script>alert("x")</script>&\'"'


class Whole(HTMLParser):
    """Every element that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Whole:
    found = Whole()
    found.feed(text)
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def world() -> Mapping[str, pa.Table]:
    return tables()


@pytest.fixture(scope="module")
def facts(world: Mapping[str, pa.Table]) -> Facts:
    half = START + (END - START) * 0.55
    before = gather(MemoryTables(world), start=START, end=half, made_at=half)
    return gather(
        MemoryTables(world),
        start=START,
        end=END,
        made_at=END + timedelta(seconds=20),
        before=previous(to_json(before)),
    )


def test_the_page_is_whole_and_loads_nothing(facts: Facts) -> None:
    found = read(page(facts))
    names = {name for name, _ in found.seen}
    assert names & {"script", "link", "img", "iframe", "object", "embed", "form", "base"} == set()
    for _, attributes in found.seen:
        assert not {name for name in attributes if name.startswith("on")}
        assert "href" not in attributes
        assert "src" not in attributes
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in found.seen
    assert re.findall(r"url\((?!#)", page(facts)) == []


def test_every_section_is_there(facts: Facts) -> None:
    text = page(facts)
    for heading in (
        "Changed since",
        "What needs attention, and why",
        "Status over time",
        "Forecast",
        "Unusual",
        "Gaps, and what is not known",
        "All pairs",
    ):
        assert f"<h2>{heading}" in text


@for_each(
    ("status", "members", "text"),
    [
        ("STOPPED", 1, "no member reads it, 1 member in the group"),
        ("ABANDONED", 3, "no member reads it, 3 members in the group"),
        ("STOPPED", 0, "no member"),
        ("STALLED", 1, "1 member"),
    ],
)
def test_members_that_read_other_topics_of_the_group_are_not_shown_as_readers(
    facts: Facts, status: str, members: int, text: str
) -> None:
    pair = replace(facts.pairs[0], status=status, members=members, stuck=0, unknown=0)
    assert queues_detail(pair) == text


def test_a_card_has_the_cause_the_time_the_age_and_the_drain_time(facts: Facts) -> None:
    text = " ".join(read(page(facts)).text)
    for words in (
        "Stopped on 8 of 8 queues since 11:02 UTC.",
        "Most of the time goes into delivery (97 %): no member is there to ask.",
        "(97 %): one message is delivered again and again.",
        "since 11:02:30",
        "Age",
        "Drain time",
        "never at this pace",
        "objective 60 s, 60 times that",
        "118,500 stored messages cannot be read yet",
        "waiting for dispatch (reput)",
    ):
        assert words in text, words
    assert "lag in seconds" not in text.lower(), "age or drain time"


def test_everything_that_needs_attention_is_named_before_the_first_plot(facts: Facts) -> None:
    first_screen = page(facts).split("<figure")[0]
    for one in facts.attention:
        assert f"<b>{one.pair.group}</b>" in first_screen, one.pair.group
    of = facts.attention[0].pair
    many = [replace(of, group=f"g{number}", pair_id=number) for number in range(100)]
    text = page(replace(facts, pairs=many, counts={"STOPPED": 104}))
    assert "<b>g0</b>" in text.split("<figure")[0]
    assert "<summary>and 44 more</summary>" in text
    # Only 60 were named, however many needed attention.
    assert "<b>g99</b>" in text.split("<figure")[0]
    assert "and 4 beyond the list of pairs" in text
    assert "beyond the list" not in page(replace(facts, pairs=many, counts={"STOPPED": 100}))
    calm = replace(facts, pairs=[], attention=[])
    assert '<ul class="names"' not in page(calm)


def test_pairs_in_time_are_counted_alike_by_the_tile_and_the_legend(
    facts: Facts, world: Mapping[str, pa.Table]
) -> None:
    # The tile had 2 and the legend 3: a pair that is held back before its group was in one alone.
    text = page(facts)
    assert "in time with what can be read" in text.split("<h2")[0]
    calm = gather(MemoryTables(world), start=START, end=START + timedelta(minutes=15), made_at=END)
    assert "in time with what can be read" not in page(calm)


def test_a_queue_that_is_unread_and_unknown_has_a_bar(facts: Facts) -> None:
    (one,) = (one for one in facts.attention if one.pair.group == "mailer")
    queues = [QueueLag(0, 500, None, "UNKNOWN"), QueueLag(1, 1000, 9.0, "STALLED")]
    text = page(replace(facts, attention=[replace(one, queues=queues)]))
    assert '<i class="s-unknown" style="width:50.0%;min-width:2px">' in text
    assert ".bars .s-unknown{background:var(--unknown)}" in text


def test_an_unread_queue_has_a_bar_however_much_the_largest_has(facts: Facts) -> None:
    # It had 0.0 % of the width, as a queue that is read.
    (one,) = (one for one in facts.attention if one.pair.group == "mailer")
    queues = [QueueLag(queue, lag, 9.0, "STALLED") for queue, lag in enumerate((10**7, 1, 0))]
    text = page(replace(facts, attention=[replace(one, queues=queues)]))
    widths = re.findall(r'<i class="s-stalled" style="([^"]+)">', text)
    assert widths == ["width:100.0%;min-width:2px", "width:0.0%;min-width:2px", "width:0.0%"]


def test_a_long_name_breaks_within_the_page(facts: Facts) -> None:
    # Of the list before the first plot: it made the whole page as wide as the name.
    assert ".names li{min-width:0;overflow-wrap:anywhere}" in page(facts)


@pytest.mark.parametrize(
    ("known", "unknown"), [(100, 1), (100, 50), (20, 50), (0, 50), (3, 2), (24, 0)]
)
def test_queues_of_unknown_lag_are_drawn_beside_those_with_most(known: int, unknown: int) -> None:
    # An unknown lag counted as 0: beside 24 queues that lag such a queue was never drawn.
    made = [QueueLag(queue, 1000 - queue, 9.0, "LAGGING") for queue in range(known)]
    made += [QueueLag(known + queue, None, None, "UNKNOWN") for queue in range(unknown)]
    drawn = _drawn(made)
    assert len(drawn) == min(24, known + unknown)
    assert drawn[: min(known, 1)] == made[: min(known, 1)]
    assert sum(queue.lag is None for queue in drawn) >= min(6, unknown)
    assert [queue.queue for queue in drawn] == sorted(queue.queue for queue in drawn)


@pytest.mark.parametrize("skew", [1.0, 1.04, 1.2])
def test_queues_that_lag_alike_are_called_alike(facts: Facts, skew: float) -> None:
    """The card had "the largest is 1 times the mean of the others"."""
    one = facts.attention[0]
    queues = [QueueLag(queue, 500, 9.0, "STOPPED") for queue in range(8)]
    alike = replace(one, queues=queues, pair=replace(one.pair, skew=skew))
    text = page(replace(facts, attention=[alike]))
    assert "times the mean" not in text
    assert "about alike" in text


def test_a_name_that_is_made_like_a_script_stays_a_name(world: Mapping[str, pa.Table]) -> None:
    def evil(table: pa.Table) -> pa.Table:
        for place, field in enumerate(table.schema):
            if field.name in ("group", "topic", "broker", "cluster", "cause", "subject", "detail"):
                column = pa.array([EVIL] * table.num_rows, field.type)
                table = table.set_column(place, field, column)
        return table

    hostile = {name: evil(table) for name, table in world.items()}
    found = gather(MemoryTables(hostile), start=START, end=END, made_at=END)
    text = page(found)
    assert "<script" not in text
    assert EVIL in " ".join(read(text).text)


def test_the_headline_is_the_state_in_one_line(facts: Facts, world: Mapping[str, pa.Table]) -> None:
    assert headline(facts) == "4 of 6 pairs of group and topic need attention, 2 of them now"
    calm = gather(MemoryTables(world), start=START, end=START + timedelta(minutes=15), made_at=END)
    assert headline(calm) == "All 6 pairs of group and topic are in time"
    dark = gather(MemoryTables(world), start=START, end=START + timedelta(minutes=65), made_at=END)
    assert headline(dark).endswith("1 pair not known")
    lag = world["pair_lag"]
    place = lag.column_names.index("status")
    blind = lag.set_column(
        place, lag.schema.field(place), pa.array(["UNKNOWN"] * lag.num_rows, pa.string())
    )
    unknown = gather(MemoryTables({"pair_lag": blind}), start=START, end=END, made_at=END)
    assert headline(unknown) == (
        "Nothing is known of the 6 pairs of group and topic, 3 of them late when last seen"
    )
    nothing = gather(MemoryTables({}), start=START, end=END, made_at=END)
    assert headline(nothing).startswith("Nothing is known of the time from 4 Mar 10:00")
    read(page(nothing))


def test_a_reason_names_the_cause_of_its_gap() -> None:
    assert reason_words("settling") == "seen for too short a time to judge"
    assert reason_words("no_snapshot: timeout") == (
        "its broker sent no snapshot: the source took too long to answer"
    )
    assert reason_words("some_new_one") == "some new one"


def test_unknown_time_is_hatched_and_no_line_crosses_it() -> None:
    values = [1.0, 2.0, None, None, 3.0, None, 5.0, 6.0, 7.0, 8.0]
    plot = lines(SECONDS, [Line("age", "age", values)], 4.0)
    assert plot.unknown == [Span(20.0, 20.0), Span(50.0, 10.0)]
    ((kind, path),) = plot.shapes
    assert kind == "line age"
    assert path.count("M") == 3, "three pieces"
    assert "H" in path, "a value between two gaps is a dash"
    assert plot.limit == 4.0 / top_of(8.0, SECONDS)


def test_a_stack_is_hatched_where_one_of_its_parts_is_unknown() -> None:
    parts = [
        Line("one", "dispatch", [1.0, 1.0, 1.0, 1.0]),
        Line("two", "delivery", [1.0, None, 1.0, 1.0]),
    ]
    plot = stacked(SECONDS, parts)
    assert plot.unknown == [Span(25.0, 25.0)]
    assert [shape.path.count("Z") for shape in plot.shapes] == [2, 2], "two areas in two pieces"


def test_a_timeline_has_a_description_for_readers_who_cannot_see_it(facts: Facts) -> None:
    bar = timeline(["OK", "OK", None, "STOPPED"])
    assert bar.label == "in time, then not known, then stopped"
    assert [(each.status, each.width) for each in bar.stretches] == [("OK", 500), ("STOPPED", 250)]
    assert bar.unknown == [Span(50.0, 25.0)]
    one = facts.attention[0]
    shown = replace(one, course=replace(one.course, status=["OK", "OK", None, "STOPPED"]))
    text = page(replace(facts, attention=[shown], others=[]))
    assert f'aria-label="{bar.label}"' in text
    assert text.count("<rect") == 2
    assert 'style="left:50.00%;width:25.00%"' in text


@for_each("unit", [SECONDS, RATE, COUNT, BYTES])
@for_each("largest", [0.0, 0.003, 0.7, 1.0, 59.0, 61.0, 4000.0, 3e5, 8e9, 2.5e13])
def test_an_axis_holds_its_largest_value_and_has_a_few_marks(unit: Unit, largest: float) -> None:
    top = top_of(largest, unit)
    assert top >= largest
    marks = marks_of(top, unit)
    assert 2 <= len(marks) <= 6
    assert (marks[0].at, marks[-1].at) == (0.0, 1.0)
    assert marks[0].text == "0"
    assert len({mark.text for mark in marks}) == len(marks)


@pytest.mark.parametrize("minutes", [1, 7, 60, 125, 60 * 13, 60 * 24, 60 * 49, 60 * 24 * 30])
def test_a_time_axis_has_different_marks(minutes: int) -> None:
    marks = times(START, START + timedelta(minutes=minutes))
    assert 2 <= len(marks) <= 9
    assert all(0 <= mark.at <= 1 for mark in marks)
    assert len({mark.text for mark in marks}) >= len(marks) - 1
