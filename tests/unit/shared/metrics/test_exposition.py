"""The exposition, read again by Prometheus' own parsers and by promtool, and compared with the
library's own exposition of the same registry."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Metric, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from shared.metrics.catalogue import BY_NAME, families_of
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.exposition import OPENMETRICS, TEXT, Format, Taken, pieces
from shared.metrics.family import Family, Kind, Number
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.metrics.samples import LINES_AT_ONCE, Buckets, LabelSet, Samples
from shared.metrics.tables import Table
from tests.support.metrics import exposed, missing
from tests.support.prometheus import check

GAUGE, COUNTER = of_groups.GROUP_LAG_MESSAGES, of_groups.GROUP_SKIPPED_MESSAGES_TOTAL
HISTOGRAM, ALONE = of_groups.GROUP_CONSUME_DELAY_SECONDS, of_log.LOG_MAX_OFFSET_BYTES
PARSERS: dict[Format, Callable[[str], Iterable[Metric]]] = {
    TEXT: text_string_to_metric_families,
    OPENMETRICS: openmetrics.text_string_to_metric_families,
}
both = pytest.mark.parametrize("form", [TEXT, OPENMETRICS], ids=["text", "openmetrics"])
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.one_of(
    st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False), st.booleans(), st.none()
)
counts = st.integers(0, 1 << 64)


def read(text: str, form: Format) -> Found:
    """All samples by name and labels; each but once."""
    found: Found = {}
    for family in PARSERS[form](text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def written(taken: Sequence[Taken], form: Format) -> str:
    return b"".join(pieces(taken, form)).decode()


def key(
    name: str, labels: Iterable[str], values: Iterable[str], **more: str
) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted([*zip(labels, values, strict=True), *more.items()]))


@st.composite
def gauges(draw: st.DrawFn) -> tuple[Samples, Found]:
    rows = draw(st.dictionaries(st.tuples(texts, texts, texts), numbers, max_size=6))
    taken = Samples(GAUGE, [LabelSet(GAUGE.labels, row) for row in rows], [*rows.values()])
    shown = {row: value for row, value in rows.items() if value is not None}
    return taken, {key(GAUGE.name, GAUGE.labels, row): v for row, v in shown.items()}


@st.composite
def histograms(draw: st.DrawFn) -> tuple[Buckets, Found]:
    size = len(HISTOGRAM.buckets) + 1
    one = st.tuples(
        st.lists(counts, min_size=size, max_size=size),
        st.floats(0, allow_nan=False, allow_infinity=False) | counts,
    )
    rows = draw(st.dictionaries(st.tuples(texts), one, max_size=4))
    found: Found = {}
    for row, (each, total) in rows.items():
        below = [*itertools.accumulate(each)]
        bounds = [*(repr(float(bound)) for bound in HISTOGRAM.buckets), "+Inf"]
        for bound, count in zip(bounds, below, strict=True):
            found[key(HISTOGRAM.name + "_bucket", HISTOGRAM.labels, row, le=bound)] = count
        found[key(HISTOGRAM.name + "_count", HISTOGRAM.labels, row)] = below[-1]
        found[key(HISTOGRAM.name + "_sum", HISTOGRAM.labels, row)] = total
    labels = [LabelSet(HISTOGRAM.labels, row) for row in rows]
    return Buckets(HISTOGRAM, labels, [[*each, total] for each, total in rows.values()]), found


@st.composite
def counters(draw: st.DrawFn) -> tuple[Samples, Found]:
    rows = draw(st.dictionaries(st.tuples(texts, texts, texts), counts, max_size=6))
    taken = Samples(COUNTER, [LabelSet(COUNTER.labels, row) for row in rows], [*rows.values()])
    return taken, {key(COUNTER.name, COUNTER.labels, row): v for row, v in rows.items()}


@both
@given(parts=st.tuples(gauges(), counters(), histograms()))
def test_prometheus_reads_what_was_put_in(
    form: Format, parts: tuple[tuple[Taken, Found], ...]
) -> None:
    text = written([taken for taken, _ in parts], form)
    wanted = {name: value for _, found in parts for name, value in found.items()}
    assert read(text, form) == wanted


@both
@pytest.mark.parametrize(
    ("value", "line"),
    [
        (0, "0"),
        (True, "1"),
        (-7, "-7"),
        (1 << 63, "9223372036854775808"),
        (10**30, "1" + "0" * 30),
        (0.1, "0.1"),
        (2.5e-07, "2.5e-07"),
        (1e22, "1e+22"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_written_exactly(form: Format, value: Number, line: str) -> None:
    text = written([Samples(ALONE, [LabelSet((), ())], [value])], form)
    assert f"\n{ALONE.name} {line}\n" in text
    assert read(text, form) == {(ALONE.name, ()): value}


@both
def test_an_unknown_value_has_no_line(form: Format) -> None:
    taken = Samples(ALONE, [LabelSet((), ())] * 2, [None, math.nan])
    assert [line for line in written([taken], form).splitlines() if line[0] != "#"] == []


def test_unusual_labels_break_nothing() -> None:
    odd = 'a\\"b\n\0\ud800'
    taken = Samples(COUNTER, [LabelSet(COUNTER.labels, (odd, "t", "expired"))], [1])
    text = written([taken], TEXT)
    ((_, labels),) = read(text, TEXT)
    assert dict(labels)["group"] == 'a\\"b\n ?'
    assert text.encode(), "it is UTF-8"


@both
@pytest.mark.parametrize("service", ["broker", "reput", "ha"])
def test_heads_are_those_of_the_catalogue(service: str, form: Format) -> None:
    found = {family.name: family for family in PARSERS[form](exposed(_filled(service), form))}
    for family in families_of(service):
        name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
        assert found[name].type == family.kind.value
        assert found[name].documentation == family.meaning
        assert found[name].samples
    assert len(found) == len(families_of(service))


@both
def test_the_library_exposes_the_same_and_a_program_adds_metrics_of_its_own(form: Format) -> None:
    registry = _filled("broker")
    Counter("orders_total", "Orders of the program", ["shop"], registry=registry).labels("s").inc(2)
    # The library takes the time of the machine, and idle series are dropped after a day.
    text = exposed(registry, form, now_s=time.monotonic())
    assert 'orders_total{shop="s"} 2.0\n' in text
    found = read(form.encode(registry).decode(), form)
    changing = ("process_", "tidemark_process_")
    assert {name: value for name, value in found.items() if not name[0].startswith(changing)} == {
        name: value for name, value in read(text, form).items() if not name[0].startswith(changing)
    }
    other = CollectorRegistry()
    other.register(registry)
    assert b'orders_total{shop="s"} 2.0\n' in generate_latest(other)


def test_openmetrics_has_an_end_and_units_and_text_has_not() -> None:
    registry = _filled("reput")
    openmetrics_text = exposed(registry, OPENMETRICS)
    assert openmetrics_text.endswith("# EOF\n")
    assert "# UNIT tidemark_dispatch_lag_seconds seconds\n" in openmetrics_text
    assert "# TYPE tidemark_dispatch_records counter\n" in openmetrics_text
    text = exposed(registry)
    assert "# EOF" not in text
    assert "# UNIT" not in text
    assert "# TYPE tidemark_dispatch_records_total counter\n" in text


def test_no_piece_is_longer_than_a_slice_allows() -> None:
    rows = [(f"g{number}", "t", "main") for number in range(10 * LINES_AT_ONCE)]
    taken = Samples(GAUGE, [LabelSet(GAUGE.labels, row) for row in rows], [1] * len(rows))
    many = Buckets(
        HISTOGRAM, [LabelSet(("group",), (row[0],)) for row in rows], [[0] * 18] * len(rows)
    )
    for form in (TEXT, OPENMETRICS):
        assert max(piece.count(b"\n") for piece in pieces([taken, many], form)) <= LINES_AT_ONCE


def _filled(service: str) -> Registry:
    """A registry in which every family of the service has two label sets, or a value."""
    registry = Registry(service)
    add_process_facts(registry, is_ready=lambda: True)
    registry.note_dropped(BY_NAME["tidemark_ready"], 1)
    absent = set(missing(registry))
    for number, family in enumerate(families_of(service)):
        sets = [tuple(f"{name}{each}" for name in family.labels) for each in "ab"]
        match family:
            case Family() if family.name not in absent:
                continue
            case Family(kind=Kind.HISTOGRAM, labels=()):
                registry.histogram(family).observe(number)
            case Family(kind=Kind.HISTOGRAM):
                made = registry.own_histogram(family)
                for labels in sets:
                    made.labels(*labels).observe(number)
            case Family(labels=()):
                registry.read(family, lambda: 1.5)
            case Family(kind=Kind.COUNTER):
                counted = registry.own_counter(family)
                for labels in sets:
                    counted.labels(*labels).inc(number)
            case _:
                registry.read_table((family,), lambda sets=sets: Table(sets, [[1, 2]]))  # type: ignore[misc]
    return registry


@pytest.mark.parametrize("service", ["broker", "reput", "ha"])
def test_promtool_finds_no_fault_with_any_family(service: str) -> None:
    text = exposed(_filled(service))
    assert len(read(text, TEXT)) > len(families_of(service))
    said = check("promtool", "check", "metrics", text=text)
    assert said.strip() == ""


def test_the_names_of_a_histogram_are_not_used_twice() -> None:
    for family in BY_NAME.values():
        if family.kind is Kind.HISTOGRAM:
            for suffix in ("_bucket", "_count", "_sum"):
                assert family.name + suffix not in BY_NAME
    assert of_requests.BROKER_MESSAGE_SIZE_BYTES.buckets == tuple(
        sorted(set(of_requests.BROKER_MESSAGE_SIZE_BYTES.buckets))
    )
