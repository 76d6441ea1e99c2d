"""Assignment: one member per queue, balanced, and nothing moves without cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.assignment import assign
from tidemark.offsets import Queue

TOPICS = ("a", "b", "c")
MEMBERS = tuple(f"m{number}" for number in range(7))

queues_of = st.dictionaries(
    st.sampled_from(TOPICS), st.integers(0, 9).map(lambda count: list(range(count)))
)
subscriptions_of = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS)), max_size=7
)
owners_of = st.dictionaries(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 11)), st.sampled_from(MEMBERS)
)


def equal_members(subscriptions: Mapping[str, frozenset[str]]) -> Sequence[Sequence[str]]:
    kinds = set(subscriptions.values())
    return [[m for m, topics in subscriptions.items() if topics == kind] for kind in kinds]


@given(queues_of, subscriptions_of, owners_of)
def test_every_queue_with_a_subscriber_has_one_and_members_are_balanced(
    queues: dict[str, list[int]],
    subscriptions: dict[str, frozenset[str]],
    current: dict[Queue, str],
) -> None:
    owners = assign(queues, subscriptions, current)
    wanted = set().union(*subscriptions.values())
    assert owners.keys() == {
        (topic, number)
        for topic, numbers in queues.items()
        if topic in wanted
        for number in numbers
    }
    assert all(topic in subscriptions[member] for (topic, _), member in owners.items())
    counts = Counter(owners.values())
    for members in equal_members(subscriptions):
        has = [counts[member] for member in members]
        assert max(has) - min(has) <= 1
    for (topic, _), owner in owners.items():
        takers = [member for member in subscriptions if topic in subscriptions[member]]
        assert counts[owner] - min(counts[member] for member in takers) <= 1


@given(queues_of, subscriptions_of, owners_of)
def test_what_is_assigned_stays_when_nothing_changes(
    queues: dict[str, list[int]],
    subscriptions: dict[str, frozenset[str]],
    current: dict[Queue, str],
) -> None:
    owners = assign(queues, subscriptions, current)
    assert assign(queues, subscriptions, owners) == owners


@given(st.integers(0, 40), st.sets(st.sampled_from(MEMBERS), min_size=1), st.data())
def test_no_more_queues_move_than_balance_asks_for(
    count: int, members: set[str], data: st.DataObject
) -> None:
    subscriptions = dict.fromkeys(members, frozenset({"a"}))
    before = assign({"a": range(count)}, subscriptions, {})
    now = data.draw(st.sets(st.sampled_from(MEMBERS), min_size=1), label="members now")
    subscriptions = dict.fromkeys(now, frozenset({"a"}))
    after = assign({"a": range(count)}, subscriptions, before)
    moved = sum(before[queue] in now and before[queue] != after[queue] for queue in before)
    # Members with more than their share give the rest away, and no other member gives anything.
    share, over = divmod(count, len(now))
    has = sorted((n for m, n in Counter(before.values()).items() if m in now), reverse=True)
    shares = [share + 1] * over + [share] * (len(now) - over)
    assert moved == sum(max(0, n - most) for n, most in zip(has, shares, strict=False))


def test_broker_groups_with_one_queue_each_give_them_to_different_members() -> None:
    """Sixteen broker groups know nothing of each other; each has one queue of the topic."""
    subscriptions = {f"m{number}": frozenset("a") for number in range(4)}
    owners = Counter(
        assign({"a": [0]}, subscriptions, {}, rotation=f"g{number}/billing")["a", 0]
        for number in range(16)
    )
    assert set(owners) == set(subscriptions)
    assert max(owners.values()) <= 8


@given(queues_of, subscriptions_of, owners_of, st.text(max_size=5), st.text(max_size=5))
def test_another_rotation_moves_nothing_of_a_balanced_assignment(
    queues: Mapping[str, Sequence[int]],
    subscriptions: Mapping[str, frozenset[str]],
    owners: Mapping[Queue, str],
    before: str,
    after: str,
) -> None:
    balanced = assign(queues, subscriptions, owners, rotation=before)
    assert assign(queues, subscriptions, balanced, rotation=after) == balanced
