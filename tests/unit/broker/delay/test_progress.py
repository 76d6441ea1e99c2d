"""Progress of delayed messages: what may be recorded, and what a start derives from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.delay.progress import Found, Progress
from shared.state.records import DelayRecord
from shared.state.values import DelayState, TimerMark


def after(record: DelayRecord, cancelled: dict[tuple[int, int], int] | None = None) -> DelayState:
    assert record.timer is not None
    return DelayState(record.levels, record.timer, cancelled or {})


def test_a_level_never_goes_back() -> None:
    progress = Progress(DelayState({3: 10}), Found({3: 7, 4: 2}, {}))
    assert progress.levels == {3: 10, 4: 2}
    progress.passed_level(4, 1)
    assert progress.levels[4] == 2


def test_origins_behind_the_record_count_as_done() -> None:
    progress = Progress(DelayState({}, TimerMark(100, 5, 10)), Found({}, {12: 150, 3: None}))
    assert progress.is_done(100, 5)
    assert progress.is_done(150, 12)
    assert progress.is_done(999, 3)
    assert not progress.is_done(100, 6)
    assert not progress.is_done(50, 10), "it had not been read when the mark was made"


def test_no_record_is_made_while_an_earlier_message_waits() -> None:
    progress = Progress(DelayState())
    progress.passed_timer(100, 1)
    assert progress.record(0, first=(90, 2), read_to=3) is None
    assert progress.record(0, first=(100, 0), read_to=3) is None
    record = progress.record(0, first=(100, 2), read_to=3)
    assert record is not None
    assert record.timer == TimerMark(100, 1, 3)


def test_levels_are_recorded_with_the_old_mark_while_the_mark_stands() -> None:
    progress = Progress(DelayState({}, TimerMark(100, 5, 10)))
    progress.passed_level(2, 4)
    # A message that is due before the mark has come in since: nothing was delivered behind it.
    record = progress.record(7, first=(50, 11), read_to=12)
    assert record == DelayRecord(7, {2: 4}, TimerMark(100, 5, 10))


def test_a_queue_that_is_read_anew_is_not_recorded_before_it_is_read_as_far_as_before() -> None:
    progress = Progress(DelayState({}, TimerMark(100, 5, 10)))
    progress.passed_timer(110, 7)
    assert progress.record(0, first=None, read_to=9) is None
    assert progress.record(0, first=None, read_to=10) is not None


def test_a_mark_covers_everything_that_is_done() -> None:
    progress = Progress(DelayState())
    progress.passed_timer(100, 7)
    assert progress.record(0, first=None, read_to=0) is None, "the file was lost"
    assert progress.record(0, first=None, read_to=7) is None, "it is being read again"
    assert progress.record(0, first=None, read_to=8) is not None


def test_a_cancelled_message_is_done_until_progress_has_passed_it() -> None:
    progress = Progress(DelayState({2: 0}, TimerMark(), {(2, 5): 100}))
    progress.cancel({(0, 3): 200})
    assert progress.is_cancelled(2, 5)
    assert progress.is_done(200, 3)
    progress.passed_level(2, 6)
    progress.passed_timer(200, 3)
    record = progress.record(0, None, 4)
    assert record is not None
    progress.recorded(record)
    assert progress.cancelled == {}
    assert not progress.has_moved


def test_levels_without_deliveries_are_not_recorded() -> None:
    progress = Progress(DelayState({2: 4}))
    progress.levels.update({1: 0, 3: 0})
    assert not progress.has_moved
    progress.passed_level(3, 1)
    assert progress.has_moved
    record = progress.record(0, None, 0)
    assert record is not None
    assert record.levels == {2: 4, 3: 1}
    progress.recorded(record)
    assert not progress.has_moved


TIMES = st.lists(st.integers(0, 12), min_size=1, max_size=25)


@given(TIMES, st.data())
def test_each_record_holds_exactly_what_is_delivered(dues: list[int], data: st.DataObject) -> None:
    """Random reads and a random clock of the timer, checked against the record."""
    progress = Progress(DelayState())
    read_to, waiting, delivered = 0, set[tuple[int, int]](), set[int]()
    since: set[int] = set()
    state = DelayState()
    for _ in range(data.draw(st.integers(1, 20))):
        grown = data.draw(st.integers(read_to, len(dues)))
        waiting |= {(dues[at], at) for at in range(read_to, grown)}
        read_to, now = grown, data.draw(st.integers(0, 12))
        batch = sorted(each for each in waiting if each[0] <= now)[: data.draw(st.integers(0, 5))]
        for due, at in batch:
            assert not progress.is_done(due, at), "it is delivered twice"
            progress.passed_timer(due, at)
            waiting.discard((due, at))
            delivered.add(at)
            since.add(at)
        record = progress.record(0, min(waiting, default=None), read_to)
        if record is not None and data.draw(st.booleans()):
            progress.recorded(record)
            state, since = after(record), set()
        # A kill here: the record and the log behind it have exactly what was delivered.
        again = Progress(state, Found({}, {at: dues[at] for at in since}))
        for at, due in enumerate(dues):
            assert again.is_done(due, at) == (at in delivered)
            assert progress.is_done(due, at) == (at in delivered)
