"""Log lines of the master's ha for traced messages."""

from __future__ import annotations

import logging

import pytest

from services.ha.shell.trace_log import log_confirmed
from shared.runtime.traced_ranges import TracedRange, TracedRanges, encode
from tests.unit.ha.group import Group, grown


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(line) for line in caplog.records]


def noted(trace: str, start: int, end: int) -> TracedRanges:
    traced = TracedRanges(lambda: 0.0)
    traced.note(encode(TracedRange(trace, start, end)))
    return traced


def test_a_stretch_is_said_when_the_group_has_confirmed_it_and_who_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    group: Group = grown()
    replica = group["a"].replica
    assert replica is not None
    broker = group["a"].broker
    assert broker is not None
    start = len(group["a"].volume.log)
    end = broker.append(300)
    traced = noted("order-4711", start, end)
    log_confirmed(traced, replica)
    assert said(caplog) == []
    group.run(500)
    log_confirmed(traced, replica)
    log_confirmed(traced, replica)
    (line,) = said(caplog)
    assert line["event"] == "trace-confirmed"
    assert (line["trace"], line["start_offset"], line["end_offset"]) == ("order-4711", start, end)
    assert line["confirm_offset"] == end
    assert line["nodes"] == ["a", "b", "c"]


def test_a_slave_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    group = grown()
    replica = group["b"].replica
    assert replica is not None
    log_confirmed(noted("x", 0, 1), replica)
    assert said(caplog) == []
