"""Store times at the stages of the log: rules over random logs, and reads of real records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.log.log_sampler import LogSampler, newest_on_disk
from services.broker.log.log_times import LogTimes, log_times
from shared.files.commit_log import CommitLogReader
from shared.files.log_writer import Mark
from tests.support.small_store import FIRST_MS, SmallStore
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset


@given(st.lists(st.integers(1, 10**6), min_size=1), st.data())
def test_each_stage_is_as_old_as_its_first_record_that_is_outstanding(
    stored: Sequence[int], data: st.DataObject
) -> None:
    """Record n was stored at stored[n]; the first ``dispatched`` records are dispatched."""
    stored = sorted(stored)
    confirmed = data.draw(st.integers(0, len(stored)))
    dispatched = data.draw(st.integers(0, confirmed))
    found = log_times(
        stored[-1],
        stored[confirmed] if confirmed < len(stored) else None,
        stored[dispatched] if dispatched < confirmed else None,
    )
    assert found.newest_ms == stored[-1]
    assert found.confirmed_ms == (stored[confirmed] if confirmed < len(stored) else stored[-1])
    expected = stored[dispatched] if dispatched < confirmed else found.confirmed_ms
    assert found.dispatched_ms == expected


@given(st.integers(1), st.none() | st.integers(1), st.none() | st.integers(1))
def test_no_stage_takes_less_than_nothing_whatever_the_clock_did(
    newest: int, unconfirmed: int | None, undispatched: int | None
) -> None:
    found = log_times(newest, unconfirmed, undispatched)
    assert all(later >= earlier for later, earlier in pairwise(found))


class Made:
    """A small store, and how far it is confirmed and dispatched; the test sets it."""

    def __init__(self, root: Path) -> None:
        self.small = SmallStore(root)
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.confirmed = self.dispatched = PhysicalOffset(0)

    def times(self) -> LogTimes | None:
        return LogSampler(
            self.reader,
            newest=lambda: self.small.appender.newest,
            confirmed=lambda: self.confirmed,
            dispatched=lambda: self.dispatched,
        ).times()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path / "store")
    yield made
    made.reader.close()
    made.small.close()


def test_an_empty_log_has_no_times(made: Made) -> None:
    assert made.times() is None


def test_the_first_record_behind_a_position_is_the_oldest_outstanding_one(made: Made) -> None:
    units = [made.small.put() for _ in range(5)]  # stored 1 to 5 ms after the first time
    made.dispatched = PhysicalOffset(units[1].physical_offset)
    made.confirmed = PhysicalOffset(units[3].physical_offset)
    assert made.times() == LogTimes(FIRST_MS + 5, FIRST_MS + 4, FIRST_MS + 2)
    made.dispatched = made.confirmed
    assert made.times() == LogTimes(FIRST_MS + 5, FIRST_MS + 4, FIRST_MS + 4)
    made.dispatched = made.confirmed = made.small.end
    assert made.times() == LogTimes(FIRST_MS + 5, FIRST_MS + 5, FIRST_MS + 5)


def test_a_record_behind_a_filler_is_the_first_of_the_next_file(made: Made) -> None:
    size = made.small.store.config.commit_log_file_size
    while (unit := made.small.put(body=b"x" * 300)).physical_offset < size:
        before = unit
    at = FIRST_MS + (made.small.now_ms - FIRST_MS)
    made.confirmed = made.dispatched = PhysicalOffset(before.end)
    assert unit.physical_offset == size, "and between the two lies a filler"
    assert before.end < size
    made.small.put()
    assert made.times() == LogTimes(at + 1, at, at)


def test_a_dispatch_that_has_not_begun_is_as_old_as_the_oldest_record(made: Made) -> None:
    made.small.put()
    made.small.put()
    made.confirmed = made.small.end
    assert made.times() == LogTimes(FIRST_MS + 2, FIRST_MS + 2, FIRST_MS + 1)


def test_a_position_amid_a_record_is_not_guessed_at(made: Made) -> None:
    unit = made.small.put()
    made.confirmed = PhysicalOffset(unit.physical_offset + 8)
    assert made.times() is None


def test_a_slave_knows_the_newest_record_that_is_on_its_disk(made: Made) -> None:
    for _ in range(3):
        made.small.put()
    made.small.flush()
    made.small.put()
    positions = made.small.positions
    assert newest_on_disk(positions) == Mark(positions.get(Slot.FLUSHED), FIRST_MS + 3)
