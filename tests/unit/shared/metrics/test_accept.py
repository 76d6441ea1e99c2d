"""Which format a scraper gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.metrics.exposition import OPENMETRICS, TEXT, Format, choose
from tests.support.for_each import for_each

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,"
    "*/*;q=0.1"
)
WITH_PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@for_each(
    ("accept", "form"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("*", TEXT),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        (WITH_PROTOBUF, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("APPLICATION/OpenMetrics-Text; VERSION=1.0.0; Q=0.3", OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"', OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),  # a version that is not ours
        ("text/plain;q=0.5, application/openmetrics-text;q=0.6", OPENMETRICS),
        ("text/plain;q=0.6, application/openmetrics-text;q=0.5", TEXT),
        ("text/plain, application/openmetrics-text", TEXT),  # the same weight: the plainer
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=nan, text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;q=9, text/plain;q=0.1", TEXT),
        ("image/png", TEXT),
    ],
)
def test_the_heaviest_range_that_fits_decides(accept: str | None, form: Format) -> None:
    assert choose(accept) is form


@given(st.text(alphabet='application/openmetrics-text;,=q.019* "', max_size=200))
def test_no_header_is_too_odd_for_an_answer(accept: str) -> None:
    assert choose(accept) in (TEXT, OPENMETRICS)
