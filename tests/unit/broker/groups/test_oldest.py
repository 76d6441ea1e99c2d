"""The four stages of a group's delay behind the newest record: none negative, and they add up."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.oldest import NOTHING_OUTSTANDING, Oldest, over, shown
from services.broker.log.log_times import LogTimes, log_times

TIMES_MS = st.integers(0, 10**13)
LOGS = st.builds(log_times, TIMES_MS, st.none() | TIMES_MS, st.none() | TIMES_MS)
OLDEST = st.builds(Oldest, st.none() | TIMES_MS, st.none() | TIMES_MS, st.none() | TIMES_MS)


def stages(times: LogTimes, oldest: Oldest) -> tuple[int, int, int, int]:
    """Milliseconds of replication, dispatch, delivery and processing, as lag analytics has them."""
    _, uncommitted_ms, awaiting_ms = shown(times, oldest)
    return (
        times.newest_ms - times.confirmed_ms,
        times.confirmed_ms - times.dispatched_ms,
        times.dispatched_ms - awaiting_ms,
        awaiting_ms - uncommitted_ms,
    )


@given(LOGS, OLDEST)
def test_the_four_stages_are_never_negative_and_add_up_to_the_whole(
    times: LogTimes, oldest: Oldest
) -> None:
    found = stages(times, oldest)
    assert min(found) >= 0
    assert sum(found) == times.newest_ms - shown(times, oldest).uncommitted_ms


@st.composite
def queues_of_a_log(
    draw: st.DrawFn,
) -> tuple[list[int], int, int, list[tuple[list[int], int, int]]]:
    """Store times of a log, how many are confirmed and dispatched, and queues over the dispatched
    ones: the numbers of their records in the log, how many are committed, how many delivered."""
    stored = sorted(draw(st.lists(st.integers(0, 1000), min_size=1, max_size=30)))
    confirmed = draw(st.integers(0, len(stored)))
    dispatched = draw(st.integers(0, confirmed))
    homes = [draw(st.integers(0, 2)) for _ in range(dispatched)]
    queues = []
    for home in range(3):
        records = [number for number in range(dispatched) if homes[number] == home]
        delivered = draw(st.integers(0, len(records)))
        queues.append((records, draw(st.integers(0, delivered)), delivered))
    return stored, confirmed, dispatched, queues


@given(queues_of_a_log())
def test_each_stage_equals_the_age_in_the_records_of_a_log(
    made: tuple[list[int], int, int, list[tuple[list[int], int, int]]],
) -> None:
    stored, confirmed, dispatched, queues = made

    def first(records: Sequence[int], done: int) -> int | None:
        return stored[records[done]] if done < len(records) else None

    everything = range(len(stored))
    times = log_times(
        stored[-1], first(everything, confirmed), first(everything[:confirmed], dispatched)
    )
    each = [
        Oldest(first(records, delivered), first(records, committed), first(records, delivered))
        for records, committed, delivered in queues
    ]
    oldest = over(each)
    found = stages(times, oldest)
    # Without a clamp: in a log whose times do not run backwards none of the rules changes a number.
    heads = [each for each in each if each.uncommitted_ms is not None]
    uncommitted = min((each.uncommitted_ms or 0 for each in heads), default=times.dispatched_ms)
    # Of the queue with the head; of several with one head, the one that waits longest.
    undelivered = min(
        (
            each.awaiting_ms
            for each in heads
            if each.uncommitted_ms == uncommitted and each.awaiting_ms is not None
        ),
        default=times.dispatched_ms,
    )
    assert found == (
        times.newest_ms - times.confirmed_ms,
        times.confirmed_ms - times.dispatched_ms,
        times.dispatched_ms - undelivered,
        undelivered - uncommitted,
    )
    assert min(found) >= 0


def test_messages_after_the_sample_of_the_log_are_not_outstanding() -> None:
    times = LogTimes(100, 90, 80)
    assert shown(times, Oldest(95, 95, 95)) == (80, 80, 80)
    assert shown(times, Oldest(95, 70, 95)) == (80, 70, 80)
    assert shown(times, NOTHING_OUTSTANDING) == (80, 80, 80)
