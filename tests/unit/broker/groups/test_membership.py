"""Membership: random histories of a group, and the stories behind its rules."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.broker.groups.broadcasting import Broadcasting
from services.broker.groups.group_membership import Change
from services.broker.groups.membership import Membership
from services.broker.groups.restored_claims import WAIT_MS, RestoredClaims
from tidemark.offsets import Queue

SESSION_MS = 1000
NAMES = st.sampled_from(("m1", "m2", "m3", "m4"))
TOPICS = st.frozensets(st.sampled_from(("a", "b")), min_size=1)


class GroupHistory(RuleBasedStateMachine):
    """Members join, leave, die and have outdated assignments, topics get other queues, and the
    broker restarts without its members.

    The model is the state of each member: what it works on, as its heartbeats report.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.group = Membership(lambda: next(self.numbers))
        self.now_ms = 0
        self.counts = {"a": 4, "b": 3}
        self.owned_in: dict[tuple[Queue, int], str] = {}
        """Owner of a queue in a generation."""
        self.works_on: dict[str, set[Queue]] = {}
        """Queues of which a member has messages in hand; also of members that died."""
        self.lost_at_ms: dict[tuple[Queue, str], int] = {}
        self.seen: set[Queue] = set()
        """Queues with an offset: those that ever had an owner."""
        self.before: dict[str, tuple[set[Queue], int]] = {}
        """Members from before a restart: their queues, and when their sessions end."""
        self.started_ms = -SESSION_MS

    @rule()
    def broker_starts_again(self) -> None:
        for name, member in self.group.members.items():
            self.before[name] = set(self.group.assignment(name)), member.deadline_ms
        inherited = RestoredClaims(self.seen, self.now_ms, ordered=True)
        self.group = Membership(lambda: next(self.numbers), inherited)
        self.started_ms = self.now_ms

    def joins_again(self, name: str) -> None:
        """A member has learned of the restart, and claims what is certainly its own."""
        had, lease_ms = self.before.pop(name)
        works_on = self.works_on[name]
        claims = works_on & had if self.now_ms < lease_ms else set()
        before = self.group.generation
        topics = {topic: range(count) for topic, count in self.counts.items()}
        change = self.group.heartbeat(self.now_ms, name, topics, SESSION_MS, holding=claims)
        self.took(change, before)
        assigned = set(self.group.assignment(name))
        if self.now_ms < lease_ms:
            there = {queue for queue in claims if queue[1] < self.counts[queue[0]]}
            assert there <= assigned, "a claim is granted"
        works_on &= assigned & claims

    def beat(self, name: str, topics: frozenset[str], *, lets_go: bool) -> None:
        if name in self.before:
            self.joins_again(name)
            return
        works_on = self.works_on.setdefault(name, set())
        if lets_go:
            works_on &= set(self.group.assignment(name))
        before = self.group.generation
        self.took(
            self.group.heartbeat(
                self.now_ms,
                name,
                {topic: range(self.counts[topic]) for topic in topics},
                SESSION_MS,
                holding=frozenset(works_on),
                knows=before,
            ),
            before,
        )

    def took(self, change: Change, before: int) -> None:
        changed = bool(change.granted or change.revoked)
        assert (self.group.generation != before) == changed
        assert self.group.generation >= before
        for queue, name in change.revoked:
            self.lost_at_ms[queue, name] = self.now_ms
        self.seen |= {queue for queue, _ in change.granted}

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def fetches(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.members)))
        self.works_on[name] |= set(self.group.assignment(name))

    @rule(name=NAMES, topics=TOPICS, lets_go=st.booleans())
    def joins_or_beats(self, name: str, topics: frozenset[str], lets_go: bool) -> None:
        member = self.group.members.get(name)
        self.beat(name, member.topics if member else topics, lets_go=lets_go)

    @rule(name=NAMES, topics=TOPICS)
    def wants_other_topics(self, name: str, topics: frozenset[str]) -> None:
        self.beat(name, topics, lets_go=False)

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.members)))
        before = self.group.generation
        self.took(self.group.leave(self.now_ms, name), before)
        self.works_on.pop(name)

    @rule(passed_ms=st.sampled_from((1, SESSION_MS // 2, SESSION_MS)))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        before = self.group.generation
        due = self.group.next_deadline_ms
        change = self.group.expire(self.now_ms)
        self.took(change, before)
        if due is None or due > self.now_ms:
            assert change == Change()
        for name, (_, lease_ms) in list(self.before.items()):
            if lease_ms <= self.now_ms and self.now_ms % 2:
                del self.before[name]  # it is dead; others come back late
        for name in self.works_on.keys() - self.group.members.keys() - self.before.keys():
            del self.works_on[name]  # dead: whatever it does now, its generation is an old one

    @rule(topic=st.sampled_from(("a", "b")), count=st.integers(0, 6))
    def topic_gets_other_queues(self, topic: str, count: int) -> None:
        self.counts[topic] = count
        before = self.group.generation
        self.took(self.group.set_queues(self.now_ms, {topic: range(count)}), before)

    @invariant()
    def a_queue_has_one_owner_in_a_generation(self) -> None:
        assigned = Counter(q for name in self.group.members for q in self.group.assignment(name))
        assert all(count == 1 for count in assigned.values())
        for name in self.group.members:
            for queue in self.group.assignment(name):
                assert self.group.owner(queue) == name
                key = (queue, self.group.generation)
                assert self.owned_in.setdefault(key, name) == name

    @invariant()
    def every_queue_with_a_subscriber_has_an_owner_or_is_in_transit(self) -> None:
        wanted = frozenset().union(*(each.topics for each in self.group.members.values()))
        assert self.group.queues.keys() == wanted
        for topic in wanted:
            assert self.group.queues[topic] == tuple(range(self.counts[topic]))
            for number in range(self.counts[topic]):
                queue = (topic, number)
                owner, holder = self.group.owner(queue), self.group.holder(queue)
                awaited = self.group.is_awaited(queue)
                assert [owner is not None, holder is not None, awaited].count(True) == 1
                if awaited:
                    assert self.now_ms < self.started_ms + SESSION_MS
                if owner is not None:
                    assert topic in self.group.members[owner].topics
                if holder is not None:
                    assert holder in self.group.members

    @invariant()
    def the_number_of_a_queue_says_who_holds_it(self) -> None:
        assert len({member.number for member in self.group.members.values()}) == len(
            self.group.members
        )
        for topic, count in self.counts.items():
            for queue in ((topic, number) for number in range(count)):
                name = self.group.owner(queue) or self.group.holder(queue)
                number = self.group.holder_number(queue)
                if name is not None:
                    assert number == self.group.members[name].number > 0
                else:
                    assert number == (None if self.group.is_awaited(queue) else 0)

    @invariant()
    def who_gets_a_queue_waits_for_the_living_one_who_works_on_it(self) -> None:
        for name, works_on in self.works_on.items():
            for queue in works_on:
                owner = self.group.owner(queue)
                if name in self.before and self.before[name][1] <= self.now_ms:
                    continue  # its lease is over: it handles nothing until it has joined again
                if owner not in (None, name):
                    # It held on for a whole session, and may not commit any more.
                    assert self.now_ms >= self.lost_at_ms[queue, name] + SESSION_MS
                    assert not self.group.holds(name, queue)


TestGroupHistory = GroupHistory.TestCase


def group_of(*names: str, queues: int = 4) -> Membership:
    numbers = itertools.count(1)
    group = Membership(lambda: next(numbers))
    for name in names:
        group.heartbeat(0, name, {"a": range(queues)}, SESSION_MS, holding=())
    for name in names:
        group.heartbeat(0, name, {"a": range(queues)}, SESSION_MS)
    return group


def beat(
    group: Membership, name: str, at_ms: int = 0, holding: set[Queue] | None = None, queues: int = 4
) -> Change:
    return group.heartbeat(
        at_ms, name, {"a": range(queues)}, SESSION_MS, holding=holding, knows=group.generation
    )


def test_a_member_that_does_not_let_go_loses_the_queue_after_a_session() -> None:
    group = group_of("m1")
    held = set(group.assignment("m1"))
    beat(group, "m2", holding=set())
    for name in ("m1", "m2"):
        beat(group, name, SESSION_MS - 1, held if name == "m1" else set())
    assert group.expire(SESSION_MS - 1) == Change()
    assert {name for _, name in group.expire(SESSION_MS).granted} == {"m2"}


# 1. m1 sends a heartbeat without a list; 2. m2 joins and queues are taken from m1; 3. the heartbeat
# arrives. It has no information on queues that m1 does not know to have lost.
def test_a_heartbeat_sent_before_a_rebalance_releases_nothing() -> None:
    group = group_of("m1")
    known = group.generation
    beat(group, "m2", holding=set())
    topics = {"a": range(4)}
    assert group.heartbeat(0, "m1", topics, SESSION_MS, knows=known) == Change()
    assert group.in_transit == 2
    released = group.heartbeat(0, "m1", topics, SESSION_MS, knows=group.generation)
    assert len(released.granted) == 2


def test_a_members_number_is_never_used_again() -> None:
    group = group_of("m2", "m1")
    numbers = {queue: group.holder_number(queue) for queue in group.assignment("m2")}
    assert set(numbers.values()) == {1}
    assert {group.holder_number(queue) for queue in group.assignment("m1")} == {2}
    assert group.holder_number(("other", 0)) == 0, "no member reads that topic"
    group.leave(5, "m1")
    beat(group, "m3", 6, holding=set())
    assert group.members["m3"].number == 3
    assert group.in_transit == 2
    assert {group.holder_number(("a", queue)) for queue in range(4)} == {1}, "it is not done yet"
    beat(group, "m2", 7, holding=set(group.assignment("m2")))
    assert {group.holder_number(("a", queue)) for queue in range(4)} == {1, 3}


def restarted(*, ordered: bool, queues: int = 4) -> Membership:
    numbers = itertools.count(1)
    had = [("a", number) for number in range(queues)]
    return Membership(lambda: next(numbers), RestoredClaims(had, 0, ordered=ordered))


# 1. m1 and m2 have two queues each; 2. the broker is killed and starts; 3. m1 joins again and is
# given all four, while m2 handles what it has in its hands of two of them.
def test_after_a_restart_a_member_gets_what_it_claims_and_waits_for_the_rest() -> None:
    group = restarted(ordered=True)
    first = beat(group, "m1", 10, holding={("a", 0), ("a", 1), ("a", 3)})
    assert {queue for queue, _ in first.granted} == {("a", 0), ("a", 1), ("a", 3)}
    assert group.in_transit == 1
    assert group.owner(("a", 2)) is None
    assert group.holder_number(("a", 2)) is None, "unknown, which is not 0"
    assert group.next_deadline_ms == SESSION_MS
    # What m3 is to have is in m1's hands: it is asked for it once everybody has been heard.
    assert beat(group, "m3", 20, holding=set()) == Change()
    second = beat(group, "m2", 30, holding={("a", 2)})
    assert second.granted == [(("a", 2), "m2")]
    assert group.in_transit == 0
    assert group.next_deadline_ms == 0
    moved = group.expire(40)
    assert [name for _, name in moved.revoked] == ["m1"]
    assert not moved.granted
    assert group.next_deadline_ms == 10 + SESSION_MS


def test_unclaimed_queues_are_free_when_no_former_session_can_be_alive() -> None:
    group = restarted(ordered=True)
    assert beat(group, "m1", 10, holding=set()) == Change()
    topics = {"a": range(4)}
    assert group.heartbeat(20, "m2", topics, 3 * SESSION_MS, holding=set()) == Change()
    beat(group, "m1", SESSION_MS)
    assert group.expire(2 * SESSION_MS - 1) == Change()  # leases may be as long as m2's
    beat(group, "m1", 2 * SESSION_MS)
    assert group.expire(3 * SESSION_MS - 1) == Change()
    assert len(group.expire(3 * SESSION_MS).granted) == 4


def test_a_group_that_is_not_ordered_waits_a_second() -> None:
    group = restarted(ordered=False)
    topics = {"a": range(4)}
    assert group.heartbeat(10, "m1", topics, 10 * WAIT_MS, holding=set()) == Change()
    assert group.expire(WAIT_MS - 1) == Change()
    assert len(group.expire(WAIT_MS).granted) == 4


def test_a_member_that_joins_later_does_not_wait() -> None:
    for ordered, later_ms in ((True, SESSION_MS), (False, WAIT_MS)):
        group = restarted(ordered=ordered)
        assert len(beat(group, "m1", later_ms, holding=set()).granted) == 4


def test_a_claimed_queue_is_not_given_to_another_member() -> None:
    group = restarted(ordered=True)
    beat(group, "m1", 10, holding={("a", 0)})
    change = beat(group, "m2", 20, holding={("a", 0), ("a", 1), ("b", 0)})
    assert change.granted == [(("a", 1), "m2")]
    assert group.owner(("a", 0)) == "m1"


def test_every_member_of_a_broadcasting_group_has_every_queue_of_its_topics() -> None:
    numbers = itertools.count(1)
    group = Broadcasting(lambda: next(numbers))
    for name in ("m1", "m2"):
        group.heartbeat(0, name, {"a": range(2)}, SESSION_MS)
    assert group.assignment("m1") == group.assignment("m2") == [("a", 0), ("a", 1)]
    generation = group.generation
    assert group.heartbeat(0, "m1", {"a": range(2)}, SESSION_MS) == Change()
    change = group.set_queues(0, {"a": range(3)})
    assert change.granted == [(("a", 2), "m1"), (("a", 2), "m2")]
    assert group.generation > generation
    assert group.owner(("a", 0)) is None
    assert group.holds("m2", ("a", 2))
    assert {name for _, name in group.expire(SESSION_MS).revoked} == {"m1", "m2"}
    assert not group.members
    assert group.next_deadline_ms is None
