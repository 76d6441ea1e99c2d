from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analytics.ticks.closed import BLIND_US, ByClock, last_closed, tick_of

P = 15_000_000


def test_a_tick_is_closed_when_every_live_node_has_sent_a_later_one() -> None:
    assert last_closed({}, P, None) is None
    assert last_closed({"n0": 10 * P}, P, None) == 9 * P
    assert last_closed({"n0": 10 * P, "n1": 9 * P}, P, None) == 8 * P
    assert last_closed({"n0": 10 * P, "n1": 8 * P}, P, None) == 7 * P


def test_a_node_two_periods_behind_is_not_waited_for() -> None:
    assert last_closed({"n0": 10 * P, "n1": 7 * P}, P, None) == 9 * P


def test_the_clock_closes_ticks_that_no_node_sends_for_a_while() -> None:
    seen = {"n0": 100 * P}
    early = ByClock(now_us=105 * P, grace_us=8 * P, written_us=101 * P, collected_us=None)
    assert last_closed(seen, P, early) == 99 * P
    late = early._replace(now_us=150 * P + 7)
    assert last_closed(seen, P, late) == 142 * P
    much_later = late._replace(now_us=10**6 * P)
    assert last_closed(seen, P, much_later) == 100 * P + BLIND_US


def test_the_clock_closes_nothing_while_samples_of_long_ago_still_come_in() -> None:
    # A collection that catches up brings eight hours at a time: the hour behind them was judged
    # as blind, forever, while the next batch with its samples was on its way.
    seen = {"n0": 100 * P}
    catching_up = ByClock(10**6 * P, 8 * P, written_us=(10**6 - 7) * P, collected_us=None)
    assert last_closed(seen, P, catching_up) == 99 * P
    silent = catching_up._replace(written_us=(10**6 - 8) * P)
    assert last_closed(seen, P, silent) == (100 + 240) * P


def test_the_clock_closes_only_what_was_collected() -> None:
    # The collector was 5.5 minutes late: 13 ticks were judged without the positions that came
    # into the tables a moment later, and the cause was that the broker had sent no snapshot.
    seen = {"n0": 100 * P}
    late = ByClock(now_us=122 * P, grace_us=8 * P, written_us=100 * P, collected_us=100 * P + 9)
    assert last_closed(seen, P, late) == 99 * P
    # It has read on, and found nothing: that is the broker's silence.
    assert last_closed(seen, P, late._replace(collected_us=121 * P)) == 114 * P
    # It catches up: what it has read counts, whatever was written a moment ago.
    catching_up = late._replace(collected_us=110 * P, written_us=122 * P)
    assert last_closed(seen, P, catching_up) == 109 * P


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), min_size=1, max_size=40),
    st.integers(1, 10**8),
)
def test_closed_ticks_stay_closed_and_lie_before_those_of_live_nodes(
    sent: list[tuple[str, int]], period: int
) -> None:
    seen: dict[str, int] = {}
    before = None
    for node, tick in sent:
        seen[node] = max(tick * period, seen.get(node, 0))
        closed = last_closed(seen, period, None)
        assert closed is not None
        assert closed < max(seen.values())
        assert tick_of(closed, period) == closed
        # A node that comes back late must not open again what a stream has judged: the stream
        # never goes back, and takes the larger.
        before = closed if before is None else max(before, closed)
        assert before < max(seen.values())
