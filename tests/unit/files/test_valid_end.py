from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from shared.files.valid_end import (
    AfterEnd,
    Evidence,
    FirstRecord,
    Marks,
    Origin,
    Verdict,
    Witness,
    decide,
    start_of_walk,
    verdict,
)
from tests.support.for_each import for_each

BELOW, AT, ABOVE = 99, 100, 101
FILES = (0, 1000, 2000, 3000)
UNMARKED = [witness for witness in Witness if witness is not Witness.MARK]
TABLE = """
                mark        clean-stop  rocketmq    none
nothing         corruption  clean       clean       clean
bytes           corruption  corruption  torn-tail   torn-tail
later-records   corruption  corruption  corruption  torn-tail
"""


def test_every_pair_of_tail_and_proof_has_the_verdict_of_the_table() -> None:
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    expected = {
        (AfterEnd(after_end), Witness(witness)): Verdict(cell)
        for after_end, *cells in rows
        for witness, cell in zip(head, cells, strict=True)
    }
    pairs = itertools.product(AfterEnd, Witness)
    assert {pair: verdict(*pair) for pair in pairs} == expected


@pytest.mark.parametrize("after_end", AfterEnd)
def test_a_mark_above_the_break_makes_it_corruption_and_no_other_mark_does(
    after_end: AfterEnd,
) -> None:
    for marks in itertools.product((0, BELOW, AT, ABOVE), repeat=5):
        for unmarked in UNMARKED:
            decision = decide(AT, Marks(*marks), after_end, unmarked)
            if ABOVE in marks:
                assert decision.verdict is Verdict.CORRUPTION
                assert str(ABOVE) in decision.reason
            else:
                assert decision.verdict is verdict(after_end, unmarked)


@pytest.mark.parametrize("field", Marks._fields)
def test_the_reason_names_the_mark(field: str) -> None:
    texts = {
        "flushed": "published flushed offset",
        "written_same_boot": "written in this boot",
        "queue_end": "consume queue points to",
        "state_flushed": "later state record",
        "confirm": "confirm offset",
    }
    decision = decide(5, Marks(**{field: 77}), AfterEnd.BYTES, Witness.NONE)
    assert texts[field] in decision.reason
    assert "77" in decision.reason


@pytest.mark.parametrize(
    ("after_end", "unmarked", "sentence"),
    [
        (AfterEnd.BYTES, Witness.NONE, "zeros; no mark says that these bytes were on disk"),
        (
            AfterEnd.BYTES,
            Witness.CLEAN_STOP,
            "zeros; the store was closed in order, so the bytes after it were on disk",
        ),
        (AfterEnd.LATER_RECORDS, Witness.ROCKETMQ, "zeros, and later files hold records"),
    ],
)
def test_the_message_has_the_finding_and_its_meaning(
    after_end: AfterEnd, unmarked: Witness, sentence: str
) -> None:
    assert decide(5, Marks(), after_end, unmarked).sentence("zeros") == sentence


def test_the_written_offset_is_no_durable_mark() -> None:
    assert (
        Marks(flushed=3, written_same_boot=9, queue_end=4, state_flushed=5, confirm=2).durable == 5
    )


def evidence(origin: Origin, **facts: int | None) -> Evidence:
    known: dict[str, int | None] = {
        "log_min": 0,
        "flushed": 0,
        "dispatched_durable": None,
        "queues_end": -1,
        "min_timestamp_ms": 0,
    }
    values = known | facts
    return Evidence(origin, **values)  # type: ignore[arg-type]


def no_record(start: int) -> FirstRecord | None:
    raise AssertionError("our own log needs no look at its files")


@for_each("log_min", [0, 1000])
@for_each("durable", [None, 0, 999, 1000, 2500, 2501])
@for_each("flushed", [0, 999, 2500])
def test_our_log_is_walked_from_the_durable_dispatched_offset_within_the_flushed_log(
    log_min: int, durable: int | None, flushed: int
) -> None:
    facts = evidence(Origin.OURS, log_min=log_min, flushed=flushed, dispatched_durable=durable)
    start = start_of_walk(facts, FILES, no_record)
    if durable is not None and log_min <= durable <= flushed:
        assert start == durable
    elif durable is not None and log_min <= flushed < durable:
        assert start == flushed
    else:
        assert start == log_min


def records(times: Sequence[int | None]) -> dict[int, FirstRecord]:
    """First records of FILES by store time; None: the file's first record is not valid."""
    return {
        start: FirstRecord(start, time)
        for start, time in zip(FILES, times, strict=True)
        if time is not None
    }


@pytest.mark.parametrize(
    ("queues_end", "times", "start"),
    [
        (2999, (1, 2, 3, 4), 2000),
        (3000, (1, 2, 3, 4), 3000),
        (3500, (1, 2, 3, 4), 3000),
        (3500, (1, 2, 3, None), 2000),
        (3500, (1, 2, 3, 0), 2000),
        (3500, (None, None, None, None), 0),
        (-1, (1, 2, 3, 4), 0),
    ],
)
def test_a_closed_rocketmq_log_is_walked_from_the_last_file_its_queues_reach(
    queues_end: int, times: Sequence[int | None], start: int
) -> None:
    facts = evidence(Origin.FOREIGN_CLEAN, queues_end=queues_end)
    assert start_of_walk(facts, FILES, records(times).get) == start


@pytest.mark.parametrize(
    ("min_timestamp_ms", "times", "start"),
    [
        (0, (1, 2, 3, 4), 0),
        (1, (1, 2, 3, 4), 0),
        (3, (1, 2, 3, 4), 2000),
        (9, (1, 2, 3, 4), 3000),
        (9, (1, 2, 3, None), 2000),
        (9, (1, 2, 0, None), 1000),
    ],
)
def test_a_killed_rocketmq_log_is_walked_from_the_last_file_older_than_its_checkpoint(
    min_timestamp_ms: int, times: Sequence[int | None], start: int
) -> None:
    facts = evidence(Origin.FOREIGN_UNCLEAN, queues_end=10_000, min_timestamp_ms=min_timestamp_ms)
    assert start_of_walk(facts, FILES, records(times).get) == start
