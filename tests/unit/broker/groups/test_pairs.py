"""Pairs of group and topic: sums, the bound on series, and when a queue counts as stuck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.lag import Lag, Reason, nothing_known
from services.broker.groups.oldest import Oldest
from services.broker.groups.pairs import OTHER, Movement, Pair, QueueSample, fold, pair


def sample(
    messages: int, seconds: float, age_s: float = 0.0, *, stuck: bool = False
) -> QueueSample:
    return QueueSample(Lag(messages, None, seconds, in_flight=1), age_s, stuck)


def test_a_pair_sums_its_queues_and_takes_the_largest_of_ages() -> None:
    unknown = QueueSample(nothing_known(Reason.AHEAD, ahead=3))
    queues = [sample(5, 61.0, 4.0, stuck=True), sample(9, 2.0, 3.0), unknown]
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
    assert found == Pair("g", "t", "main", 14, 61.0, 9, 2, 4.0, 1, 1, 1, 1, True, Oldest())


def test_the_oldest_messages_of_a_pair_are_known_if_those_of_all_its_queues_are() -> None:
    lag = Lag(5, None, 61.0)
    queues = [QueueSample(lag, oldest=Oldest(9, 7)), QueueSample(lag, oldest=Oldest(None, 8))]
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
    assert found.oldest == Oldest(9, 7)
    queues.append(QueueSample(lag, oldest=None))
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
    assert found.oldest is None, "that of a queue might be older"


def test_a_pair_of_which_nothing_is_known_has_no_lag() -> None:
    queues = [QueueSample(nothing_known(Reason.NEVER_COMMITTED))]
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
    assert (found.messages, found.seconds, found.unknown) == (None, None, 1)


PAIRS = st.builds(
    Pair,
    group=st.sampled_from("abcdef"),
    topic=st.sampled_from("xyz"),
    kind=st.sampled_from(["main", "retry"]),
    messages=st.none() | st.integers(0, 100),
    seconds=st.none() | st.floats(0, 100),
    queue_max=st.integers(0, 100),
    in_flight=st.integers(0, 100),
    commit_age_s=st.floats(0, 100),
    lagging=st.integers(0, 9),
    stuck=st.integers(0, 9),
    ahead=st.integers(0, 9),
    unknown=st.integers(0, 9),
    subscribed=st.booleans(),
)


@given(st.lists(PAIRS, max_size=20), st.integers(0, 8))
def test_folding_bounds_the_series_and_keeps_sums_and_maxima(
    pairs: list[Pair], series_max: int
) -> None:
    found = fold(pairs, series_max)
    assert len(found) <= series_max + 2
    assert sum(each.messages or 0 for each in found) == sum(each.messages or 0 for each in pairs)
    assert sum(each.unknown for each in found) == sum(each.unknown for each in pairs)
    known = [each.seconds for each in pairs if each.seconds is not None]
    shown = [each.seconds for each in found if each.seconds is not None]
    assert max(shown, default=None) == max(known, default=None)


def test_what_members_read_and_what_lags_is_folded_last() -> None:
    def one(group: str, messages: int, *, subscribed: bool) -> Pair:
        queues = [sample(messages, 0.0)]
        return pair(group, "t", "main", queues, objective_s=60.0, subscribed=subscribed)

    idle, lagging = one("a", 0, subscribed=False), one("b", 5, subscribed=False)
    read = one("c", 0, subscribed=True)
    assert [each.group for each in fold([idle, lagging, read], 2)] == ["c", "b", OTHER]


def test_a_commit_that_moves_every_second_is_stuck_after_a_minute() -> None:
    movement = Movement(0, 0.0)
    for second in range(1, 30):
        movement = movement.seen(second, float(second))
    assert not movement.seen(29, 88.0).is_stuck(88.0)
    assert movement.seen(29, 89.0).is_stuck(89.0)


def test_a_commit_that_moves_every_five_minutes_has_twenty() -> None:
    movement = Movement(0, 0.0).seen(1, 300.0)
    assert not movement.is_stuck(300.0 + 1199.0)
    assert movement.is_stuck(300.0 + 1200.0)


def test_a_long_gap_is_forgotten_by_and_by_and_never_grows_the_stall_time_without_bound() -> None:
    movement = Movement(0, 0.0).seen(1, 10_000.0)
    assert movement.is_stuck(10_000.0 + 1800.0)
    for second in range(1, 40):
        movement = movement.seen(1 + second, 10_000.0 + second)
    assert movement.is_stuck(10_039.0 + 60.0)
