"""Pairs of group and topic: sums, how they grow older, and when a queue counts as stuck."""

from __future__ import annotations

from services.broker.groups.lag import Lag, Reason, nothing_known
from services.broker.groups.oldest import Oldest
from services.broker.groups.pairs import Movement, Pair, QueueSample, older, pair


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


def test_a_pair_with_unknown_queues_has_no_lag() -> None:
    queues = [QueueSample(nothing_known(Reason.NEVER_COMMITTED))]
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
    unknown = (None, None, None, None, None, None, None)
    assert found[3:10] == unknown, "nothing is known, which is not 0"
    assert (found.ahead, found.unknown, found.oldest) == (0, 1, None)


def test_a_commit_beyond_what_is_dispatched_so_far_is_not_ahead() -> None:
    """While reput rebuilds the queues, their ends come back, and nothing is skipped."""
    waits = QueueSample(nothing_known(Reason.NOT_DISPATCHED, ahead=3))
    beyond = QueueSample(nothing_known(Reason.AHEAD, ahead=3))
    for queues, ahead in (([waits], 0), ([waits, beyond], 1)):
        found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=True)
        assert (found.ahead, found.unknown) == (ahead, len(queues))


def test_a_pair_that_stands_still_grows_older() -> None:
    queues = [sample(5, 61.0), sample(9, 2.0), sample(0, 0.0)]
    found = pair("g", "t", "main", queues, objective_s=60.0, subscribed=False)
    later = older(found, [161.0, 102.0], 100.0, 60.0)
    assert later == found._replace(seconds=161.0, commit_age_s=100.0, lagging=2)
    unknown = older(found._replace(seconds=None), [], 100.0, 60.0)
    assert (unknown.seconds, unknown.lagging) == (None, 0)


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
