"""Which queues have series of their own: within the bound, the most wanted first, and steadily."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.series_budget import (
    LATE_S,
    PER_GROUP,
    PER_QUEUE,
    Lagging,
    Rank,
    SeriesBudget,
)

OFFERS = st.lists(
    st.tuples(
        st.tuples(st.sampled_from(["", "g", "h", "i"]), st.sampled_from("tuvw")),
        st.sampled_from(Rank),
    ),
    max_size=12,
    unique_by=lambda offer: offer[0],
)
QUEUES = {"t": 1, "u": 4, "v": 9, "w": 16}

Offer = tuple[tuple[str, str], Rank]


def fill(
    offers: Sequence[Offer], series_max: int, before: SeriesBudget | None = None
) -> SeriesBudget:
    room = SeriesBudget(series_max, before)
    for pair, rank in offers:
        room.offer(pair, QUEUES[pair[1]], rank)
    for _ in room.fill():
        pass
    return room


def series(room: SeriesBudget) -> int:
    """Return the number of series that are written: two per queue, and up to three per group and
    queue."""
    by_group = sum(count for (group, _), count in room.pairs.items() if group)
    return PER_QUEUE * sum(room.topics.values()) + PER_GROUP * by_group


@given(OFFERS, st.integers(0, 200))
def test_the_bound_holds_and_nothing_is_left_out_while_there_is_room(
    offers: list[Offer], series_max: int
) -> None:
    room = fill(offers, series_max)
    assert series(room) <= series_max
    for pair, count in room.pairs.items():
        assert 0 < count <= QUEUES[pair[1]]
        assert room.topics[pair[1]] >= count
    missing = [pair for pair, _ in offers if room.pairs.get(pair, 0) < QUEUES[pair[1]]]
    if missing:
        assert series_max - series(room) < PER_QUEUE + PER_GROUP, "no queue of any pair had room"
    everything = fill(offers, 10_000)
    assert everything.pairs == {pair: QUEUES[pair[1]] for pair, _ in offers}


@given(OFFERS, st.integers(0, 200))
def test_pairs_of_a_higher_rank_come_first(offers: list[Offer], series_max: int) -> None:
    room = fill(offers, series_max)
    left_out = [rank for pair, rank in offers if room.pairs.get(pair, 0) < QUEUES[pair[1]]]
    if left_out:
        first_out = min(left_out)
        for pair, rank in offers:
            if rank < first_out:
                assert room.pairs[pair] == QUEUES[pair[1]]


def test_a_shown_pair_stays_before_its_equals_and_yields_to_a_higher_rank() -> None:
    a, b = ("a", "u"), ("b", "u")
    room = fill([(b, Rank.READ)], 20)
    room = fill([(a, Rank.READ), (b, Rank.READ)], 20, room)
    assert room.pairs == {b: 4}
    room = fill([(a, Rank.READ_AND_LAGGING), (b, Rank.READ)], 20, room)
    assert room.pairs == {a: 4}
    room = fill([(a, Rank.READ), (b, Rank.READ)], 20, room)
    assert room.pairs == {a: 4}, "it does not go again when its lag has gone"


def test_a_lag_that_has_gone_counts_for_ten_minutes() -> None:
    lagging, pair = Lagging(), ("g", "t")

    def rank(has_lag: bool, now_s: float, *, subscribed: bool = True) -> Rank:
        return lagging.rank(pair, has_lag=has_lag, subscribed=subscribed, now_s=now_s)

    assert rank(False, 0.0) is Rank.READ
    assert rank(True, 1.0) is Rank.READ_AND_LAGGING
    assert rank(False, LATE_S) is Rank.READ_AND_LAGGING
    assert rank(False, LATE_S, subscribed=False) is Rank.LAGGING
    assert rank(False, 1.0 + LATE_S) is Rank.READ
    assert rank(False, 1.0 + LATE_S, subscribed=False) is Rank.IDLE
    assert rank(True, 2000.0, subscribed=False) is Rank.LAGGING
    assert len(list(lagging.forget_gone(2000.0 + LATE_S))) == 1
    assert rank(False, 2000.0 + LATE_S - 1) is Rank.READ
