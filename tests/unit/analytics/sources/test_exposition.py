"""Lines of expositions become samples; none is passed over in silence."""

from __future__ import annotations

import math
import time
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.sources.exposition import KNOWN_MAX, Parsed, Parser
from analytics.sources.labelled import Series, batches, series
from shared.metrics.catalogue import BY_NAME
from shared.metrics.samples import LabelSet
from tests.support.for_each import for_each

TARGET: Final = {
    "instance": "127.0.0.1:8081", "cluster": "c", "broker": "g0", "replica": "n0",
    "service": "broker",
}  # fmt: skip


def parse(text: str, *, openmetrics: bool = False) -> Parsed:
    return Parser(TARGET).parse(text, openmetrics=openmetrics)


def read(text: str) -> list[tuple[str, str | None, str | None, int | None, str, float]]:
    found = parse(text)
    assert (found.unreadable, found.is_whole) == (0, True)
    of = [found.series[place] for place in found.at]
    return [
        (each.metric, each.group, each.topic, each.queue, each.labels, float(value))
        for each, value in zip(of, found.values, strict=True)
    ]


@for_each(
    ("line", "found"),
    [
        ("up 1", ("up", None, None, None, "", 1.0)),
        ("up{} 1", ("up", None, None, None, "", 1.0)),
        ("up\t 1.5e3", ("up", None, None, None, "", 1500.0)),
        ('a:b{group="g",topic="t",queue="3"} 7', ("a:b", "g", "t", 3, "", 7.0)),
        ('m{queue="3",topic="t"} 7', ("m", None, "t", 3, "", 7.0)),
        ('m{ topic = "t" , queue="3", } -7', ("m", None, "t", 3, "", -7.0)),
        ('m{group=""} 7', ("m", None, None, None, "", 7.0)),
        ('m{queue="x"} 7', ("m", None, None, None, 'queue="x"', 7.0)),
        ('m{queue="٣"} 7', ("m", None, None, None, 'queue="٣"', 7.0)),
        ('m{z="1",a="2"} 7', ("m", None, None, None, 'a="2",z="1"', 7.0)),
        (r'm{topic="a\"b\\c\nd"} 1', ("m", None, 'a"b\\c\nd', None, "", 1.0)),
        (r'm{a="}{,=\""} 1', ("m", None, None, None, r'a="}{,=\""', 1.0)),
        ('m{le="+Inf"} +Inf', ("m", None, None, None, 'le="+Inf"', math.inf)),
        ("m -Inf", ("m", None, None, None, "", -math.inf)),
        ('m{le="1"} 3 # {trace_id="x"} 0.5 1.0', ("m", None, None, None, 'le="1"', 3.0)),
    ],
)
def test_a_line_is_read(line: str, found: object) -> None:
    assert read(line + "\n") == [found]
    # Once more, by the text of the series that is known by now.
    assert read(f"{line}\n{line}\n") == [found, found]


def test_labels_of_the_target_win_over_a_line_s_own() -> None:
    found = parse('m{cluster="forged",instance="other",a="b"} 1\n')
    assert found.series == [
        Series("127.0.0.1:8081", "m", "c", "g0", "n0", "broker", None, None, None, 'a="b"')
    ]


def test_a_target_s_further_labels_are_on_every_series() -> None:
    parser = Parser({**TARGET, "zone": "west"})
    found = parser.parse('m{queue="1"} 1\nn 2\n', openmetrics=False)
    assert [(each.queue, each.labels) for each in found.series] == [
        (1, 'zone="west"'), (None, 'zone="west"'),
    ]  # fmt: skip


def test_the_service_is_taken_from_the_job_as_a_last_resort() -> None:
    assert series({"__name__": "m", "job": "tidemark-ha"}).service == "ha"
    assert series({"__name__": "m", "job": "node"}).service is None
    assert series({"job": "tidemark-ha", "service": "x"}).service == "x"


@for_each(
    "line",
    [
        "m",
        "m ",
        "m one",
        "m 1_000",
        "m ٣",
        "{} 1",
        "1m 1",
        'm{a="b} 1',
        "m{a=b} 1",
        'm{a="b"',
        'm{a="b"}1 2 3',
        "m 1 x",
        "m 1 1-2",
        "m1",
        '{"m"} 1',
        "m 0x10",
    ],
)
def test_a_line_that_cannot_be_read_is_counted_and_shown(line: str) -> None:
    found = parse(f"a 1\n{line}\nb 2\n")
    assert (found.unreadable, found.shown) == (1, [line])
    assert found.values.tolist() == [1.0, 2.0]


def test_a_known_series_with_an_unreadable_value_is_counted() -> None:
    found = parse("m 1\nm 1_000\nm 2\n")
    assert (found.values.tolist(), found.shown) == ([1.0, 2.0], ["m 1_000"])


def test_comments_and_empty_lines_are_no_samples() -> None:
    text = "# HELP m what\\nit is\n# TYPE m gauge\n\nm 1\n#\n"
    assert len(read(text)) == 1


def test_times_of_lines_are_milliseconds_in_text_and_seconds_in_openmetrics() -> None:
    text = parse("m 1 1772366407123\nn 2\n")
    assert text.ts_us is not None
    assert text.ts_us.tolist() == [1772366407123000, 0]
    openmetrics = parse("m 1 1772366407.123\n# EOF\n", openmetrics=True)
    assert openmetrics.ts_us is not None
    assert openmetrics.ts_us.tolist() == [1772366407123000]
    assert parse("m 1\n").ts_us is None


def test_nothing_counts_behind_the_end() -> None:
    found = parse("m 1\n# EOF\nm 2\n", openmetrics=True)
    assert (found.values.tolist(), found.unreadable, found.shown) == ([1.0], 1, ["m 2"])


@given(st.data())
def test_what_the_registry_writes_comes_back(data: st.DataObject) -> None:
    family = BY_NAME[data.draw(st.sampled_from(sorted(BY_NAME)))]
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
    values = [data.draw(text) for _ in family.labels]
    number = data.draw(st.floats(allow_nan=False))
    found = parse(f"{family.name}{LabelSet(family.labels, tuple(values)).text} {number!r}\n")
    assert found.unreadable == 0
    expected = series({**dict(zip(family.labels, values, strict=True)), **TARGET,
                       "__name__": family.name})  # fmt: skip
    assert found.series == [expected]
    assert found.values.tolist() == [number]


WHOLE: Final = 'm{queue="1"} 10\nm{queue="2"} 20\nn{group="g"} 30\n'


def test_a_text_cut_anywhere_is_whole_only_at_the_end_of_a_line() -> None:
    for cut in range(len(WHOLE)):
        found = parse(WHOLE[:cut])
        assert found.is_whole == (WHOLE[:cut].endswith("\n")), cut


def test_openmetrics_cut_anywhere_is_never_whole() -> None:
    text = WHOLE + "# EOF\n"
    for cut in range(len(text)):
        assert not parse(text[:cut], openmetrics=True).is_whole, cut
    assert parse(text, openmetrics=True).is_whole


def test_a_parser_knows_its_series_again() -> None:
    parser = Parser(TARGET)
    first = parser.parse(WHOLE, openmetrics=False)
    again = parser.parse(WHOLE.replace("10", "11"), openmetrics=False)
    assert (again.at.tolist(), len(again.series)) == (first.at.tolist(), 3)
    assert again.values.tolist() == [11.0, 20.0, 30.0]


def test_a_parser_forgets_series_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KNOWN_MAX >= 100_000
    monkeypatch.setattr("analytics.sources.exposition.KNOWN_MAX", 2)
    parser = Parser(TARGET)
    parser.parse(WHOLE, openmetrics=False)
    found = parser.parse("other 1\n", openmetrics=False)
    assert [each.metric for each in found.series] == ["other"]


def test_an_odd_line_takes_no_time_that_grows_out_of_bounds() -> None:
    lines = ["m{" + 'a="' * 5000, 'm{a="b",' * 2000, "m{" + " " * 20_000, 'm{a="' + "\\" * 20_001]
    began = time.monotonic()
    assert parse("\n".join(lines) + "\n").unreadable == len(lines)
    assert time.monotonic() - began < 5


def test_batches_have_the_schema_and_bounded_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics.sources.labelled.BATCH_ROWS", 2)
    found = parse(WHOLE)
    made = list(batches(found.series, found.at, found.at * 1000, found.values, "scrape"))
    assert [batch.num_rows for batch in made] == [2, 1]
    for batch in made:
        batch.validate(full=True)
    rows = [row for batch in made for row in batch.to_pylist()]
    assert [(row["metric"], row["queue"], row["group"], row["value"]) for row in rows] == [
        ("m", 1, None, 10.0), ("m", 2, None, 20.0), ("n", None, "g", 30.0),
    ]  # fmt: skip
