"""Which requests are traced, and with which facts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.broker.api import api_document
from services.broker.api.messages import Rules
from services.broker.api.traces import HEADER, MESSAGES_NAMED_MAX, TRACED_PER_S, Trace, Traces
from services.broker.log.ack_levels import AckLevel
from services.broker.log.append import Appended
from services.broker.send.send_result import SendResult
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.pull import PullResult, PullStatus, get_message
from shared.runtime.traced_ranges import TracedRange, decode
from tests.support.small_store import CONFIG, SmallStore
from tests.support.still_clock import StillClock
from tidemark.errors import AckTimeout, UnknownTopic
from tidemark.formats.batch import WireMessage
from tidemark.formats.queue_unit import encode
from tidemark.offsets import PhysicalOffset, QueueOffset


@pytest.fixture(autouse=True)
def _every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store", replace(CONFIG, commit_log_file_size=1 << 16))
    yield store
    store.close()


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(line) for line in caplog.records]


def traced(traces: Traces, trace: str = "order-4711") -> Trace:
    found = traces.of({HEADER: trace})
    assert found is not None
    return found


def test_a_line_names_the_messages_of_a_batch_that_were_asked_for(
    small: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [WireMessage(b"%d" % each, b"UNIQ_KEY\x01U%d\x02" % each) for each in range(3)]
    small.put_batch(entries)
    small.flush()
    with (
        closing(CommitLogReader(small.store, small.positions)) as log,
        closing(ConsumeQueueReader(small.store, "batches", 0, log)) as queue,
    ):
        result = get_message(queue, log, offset=1, dispatched=small.end)
        traced(Traces(StillClock())).delivered("batches", 0, result)
        del result
    (line,) = said(caplog)
    assert line["count"] == 2
    assert [(each["queue_offset"], each["unique_id"]) for each in line["messages"]] == [
        (1, "U1"),
        (2, "U2"),
    ]


def test_without_the_header_nothing_is_traced() -> None:
    assert Traces(StillClock()).of({"Accept": "x"}) is None


@pytest.mark.parametrize("trace", ["a", "A.b_c-9", "x" * 64, "-", "0"])
def test_an_id_is_taken_as_it_is(trace: str) -> None:
    assert traced(Traces(StillClock()), trace).trace == trace


@pytest.mark.parametrize("odd", ["", " ", "a b", "x" * 65, "größe", 'a"b', "a\n", "../x", "a,b"])
def test_a_header_that_is_no_id_is_passed_over_and_not_written(
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    traces = Traces(StillClock())
    for _ in range(1000):
        assert traces.of({HEADER: odd}) is None
    (line,) = said(caplog)
    assert (line["event"], line["size_bytes"]) == ("trace-ignored", len(odd))
    assert len(odd) < 2 or odd not in caplog.text


def test_traces_are_limited_per_second_and_the_others_counted_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = StillClock()
    traces = Traces(clock)
    for second in range(60):
        found = [traces.of({HEADER: "t"}) is not None for _ in range(3 * TRACED_PER_S)]
        assert sum(found) == TRACED_PER_S, second
        clock.advance(1000)
    assert [line["event"] for line in said(caplog)] == ["trace-limit"]
    for _ in range(TRACED_PER_S + 1):
        traces.of({HEADER: "t"})
    assert said(caplog)[-1]["held_back"] == 60 * 2 * TRACED_PER_S - 1


def test_an_error_is_traced_with_its_code_and_the_stored_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trace = traced(Traces(StillClock()))
    trace.refused("orders", UnknownTopic("there is none.", "Make it."))
    results = [{"message_id": str(number)} for number in range(100)]
    trace.refused("orders", AckTimeout("too late.", "Look.", results=results))
    first, second = said(caplog)
    assert (first["event"], first["code"], first["count"]) == ("trace-refused", "unknown-topic", 0)
    assert (second["code"], second["count"]) == ("ack-timeout", 100)
    assert second["messages"] == results[:MESSAGES_NAMED_MAX]


def test_appended_messages_are_reported_to_the_other_services() -> None:
    rung: list[tuple[str, TracedRange | None]] = []
    traces = Traces(StillClock())
    traces.connect(lambda service, note: rung.append((service, decode(note))))

    class Nothing(SendResult):
        def results(self) -> list[dict[str, Any]]:
            return []

    appended = Appended([], PhysicalOffset(100), b"", 0, PhysicalOffset(250))
    traced(traces).appended("orders", Nothing(AckLevel.DISK, b"", [], appended), 100, 250)
    expected = TracedRange("order-4711", 100, 250)
    assert rung == [("reput", expected), ("ha", expected)]


def test_deliveries_are_traced_by_ids_and_places_only(
    small: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(40):
        small.put("orders", body=b"private text", keys="secret-key", unique_id=f"{number:032X}")
    small.flush()
    log = CommitLogReader(small.store, small.positions)
    result = PullResult(
        status=PullStatus.FOUND,
        next_offset=QueueOffset(40),
        min_offset=QueueOffset(0),
        max_offset=QueueOffset(40),
        stretches=[log.window(PhysicalOffset(0), small.end)],
        message_count=40,
        bytes_total=int(small.end),
        filtered=0,
        looked_from=QueueOffset(0),
        units=b"".join(encode(unit) for _, _, _, unit in small.units),
    )
    traced(Traces(StillClock())).delivered("orders", 0, result, "billing")
    (line,) = said(caplog)
    assert (line["count"], len(line["messages"])) == (result.message_count, MESSAGES_NAMED_MAX)
    assert line["messages"][7]["unique_id"] == f"{7:032X}"
    assert line["messages"][7]["queue_offset"] == 7
    assert line["next_queue_offset"] == result.next_offset
    text = json.dumps(line["messages"])
    assert "business" not in text
    assert "secret-key" not in text


def test_every_call_that_reads_the_header_is_described_with_it() -> None:
    document = api_document.document(version="0", rules=Rules(1 << 20, True), request_size_max=1)
    described = {
        call["operationId"]
        for calls in document["paths"].values()
        for call in calls.values()
        if any(each.get("name") == HEADER for each in call.get("parameters", ()))
    }
    assert described == {"send", "sendBatch", "pull", "fetch", "commit", "nack"}
