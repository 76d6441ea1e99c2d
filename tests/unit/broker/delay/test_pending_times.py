"""The sorted file of pending times: what it keeps and drops, and when it is made anew."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.delay.pending_times import Pending, PendingTimes
from shared.runtime.clock import BootId

BOOT = BootId(7, 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timer" / "pending.db"


@pytest.fixture
def times(path: Path) -> Iterator[PendingTimes]:
    opened = PendingTimes(path, BOOT)
    yield opened
    opened.close()


def row(due_ms: int, queue_offset: int) -> Pending:
    return Pending(due_ms, queue_offset, 1000 * queue_offset, 200)


def fill(times: PendingTimes, *dues: int, start: int = 0) -> list[Pending]:
    rows = [row(due_ms, start + index) for index, due_ms in enumerate(dues)]
    times.take_in(rows, read_to=start + len(rows), log_end=1000 * (start + len(rows)))
    return rows


def test_after_a_kill_the_file_has_exactly_the_committed_changes(path: Path) -> None:
    killed = PendingTimes(path, BOOT)
    rows = fill(killed, 30, 10, 20)
    killed.remove(rows[1:2])
    killed.commit()
    killed.remove(rows[2:])
    fill(killed, 5, start=3)
    # Not closed: a kill leaves a transaction open. Another connection sees what is committed.
    opened = PendingTimes(path, BOOT)
    assert opened.due(100, 10) == [row(20, 2), row(30, 0)]
    assert (opened.count, opened.read_to, opened.log_end) == (2, 3, 3000)
    opened.close()
    killed.close()


def test_another_boot_makes_it_anew(path: Path) -> None:
    before = PendingTimes(path, BOOT)
    fill(before, 1, 2)
    before.commit()
    before.close()
    after = PendingTimes(path, BootId(7, 10))
    assert (after.count, after.read_to, after.log_end) == (0, 0, 0)
    after.close()


@pytest.mark.parametrize("damage", [b"", b"not a database" * 100])
def test_a_damaged_file_is_made_anew(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    times = PendingTimes(path, BOOT)
    fill(times, 1)
    times.commit()
    assert times.count == 1
    times.close()


@pytest.mark.parametrize("name", ["boot_id", "read_to", "log_end"])
@pytest.mark.parametrize("change", ["DELETE FROM known", "UPDATE known SET value = 'x'"])
def test_a_file_that_lacks_its_facts_is_made_anew(path: Path, name: str, change: str) -> None:
    before = PendingTimes(path, BOOT)
    fill(before, 1, 2)
    before.commit()
    before.close()
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"{change} WHERE name = ?", (name,))
        file.commit()
    after = PendingTimes(path, BOOT)
    assert (after.count, after.read_to, after.log_end) == (0, 0, 0)
    after.close()


def test_a_mark_removes_the_messages_that_it_covers(times: PendingTimes) -> None:
    fill(times, 10, 20, 20, 30, 5)
    times.remove_through(20, 1, 4)
    # (20, 2) is behind the mark, (30, 3) later, (5, 4) was not read when the mark was made.
    assert times.due(100, 10) == [row(5, 4), row(20, 2), row(30, 3)]
    assert times.count == 3


def test_messages_that_could_not_be_delivered_are_put_back(times: PendingTimes) -> None:
    rows = fill(times, 10, 20)
    times.remove(rows)
    assert times.first() is None
    assert times.count == 0
    times.put_back(rows[1:])
    assert times.first() == rows[1]
    assert times.count == 1


def test_one_that_is_gone_is_not_found_and_not_counted_twice(times: PendingTimes) -> None:
    rows = fill(times, 10, 20)
    assert times.find(1) == rows[1]
    times.remove(rows[1:])
    times.remove(rows[1:])
    assert times.find(1) is None
    assert times.count == 1


def test_the_oldest_records_are_found_whatever_their_times(times: PendingTimes) -> None:
    fill(times, 500, 100, 300, 50)
    assert times.below(2000, 10) == [row(500, 0), row(100, 1)]
    assert times.below(2000, 1) == [row(500, 0)]
    assert times.below(0, 10) == []


def test_a_list_goes_on_behind_where_it_ended(times: PendingTimes) -> None:
    fill(times, 30, 10, 20, 10)
    assert times.after(10, 1, 2) == [row(10, 3), row(20, 2)]


def test_a_discarded_file_is_removed_with_its_companions(path: Path) -> None:
    times = PendingTimes(path, BOOT)
    fill(times, 1)
    times.commit()
    times.discard()
    assert list(path.parent.iterdir()) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), st.integers(0, 25), st.integers(1, 70))
def test_due_messages_equal_those_of_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, dues: list[int], now_ms: int, count_max: int
) -> None:
    times = PendingTimes(tmp_path_factory.mktemp("timer") / "pending.db", BOOT)
    rows = fill(times, *dues)
    expected = sorted(each for each in rows if each.due_ms <= now_ms)[:count_max]
    assert times.due(now_ms, count_max) == expected
    times.remove(expected)
    assert times.count == len(rows) - len(expected)
    times.close()
