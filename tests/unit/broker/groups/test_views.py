"""Groups as the API shows them, over a store of real files: numbers and reasons."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.broker.groups import views as views_module
from services.broker.groups.lag import Lag, Reason
from services.broker.groups.queue_stats import Budget, QueueStats
from services.broker.groups.views import Aside, GroupViews
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.topics import Topics
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.runtime.pauses import SLICE_S
from shared.state.records import TopicRecord
from shared.state.state import BrokerState
from shared.state.values import GroupConfig, TopicConfig
from tests.support.small_store import FIRST_MS, SmallStore
from tidemark.errors import UnknownGroup
from tidemark.offsets import PhysicalOffset, QueueOffset

NOW_MS = FIRST_MS + 10_000


class NoLog:
    """Nothing is changed here."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        raise AssertionError("a look changes nothing")


class Subscription(NamedTuple):
    topic: str
    tags: str = "*"


class OneMember(NamedTuple):
    member: str
    subscriptions: tuple[Subscription, ...]
    assignment: tuple[tuple[str, int], ...] = ()
    session_ms: int = 30_000
    last_seen_ms: int = 12


class Group:
    """The values of the parts around a view; the test sets them."""

    def __init__(self) -> None:
        self.configs = {"billing": GroupConfig("billing", lag_objective_ms=5000)}
        self.offsets: dict[tuple[str, int], int] = {}
        self.members_now: list[OneMember] = []
        self.now_s = 100.0

    # configurations
    def get_config(self, name: str) -> GroupConfig:
        if name not in self.configs:
            raise UnknownGroup(f"there is no group {name!r}.")
        return self.configs[name]

    # committed offsets
    def get(self, group: str, topic: str, queue: int) -> int | None:
        return self.offsets.get((topic, queue))

    def of_group(self, group: str) -> Mapping[tuple[str, int], int]:
        return dict(self.offsets)

    # members
    def members(self, group: str) -> list[OneMember]:
        return self.members_now

    def owner(self, group: str, topic: str, queue: int) -> str | None:
        owners = [each.member for each in self.members_now if (topic, queue) in each.assignment]
        return owners[0] if owners else None

    def member_count(self, group: str) -> int:
        return len(self.members_now)

    def state(self, group: str) -> str:
        return "stable" if self.members_now else "empty"

    def generation(self, group: str) -> int | None:
        return 1 << 32 | 7 if self.members_now else None

    def in_flight(self, group: str) -> Mapping[tuple[str, int], int]:
        return {queue: 1 for each in self.members_now for queue in each.assignment}

    # the clock
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self.now_s

    def boot_ms(self) -> int:
        return 0


class Configs:
    """The configurations of a ``Group``."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def get(self, name: str) -> GroupConfig:
        return self._group.get_config(name)


class Made:
    """Topic ``orders`` of three queues with 4, 1 and 0 messages, and a view of a group."""

    def __init__(self, root: Path) -> None:
        self.small = SmallStore(root)
        self.units = [self.small.put("orders", queue) for queue in (0, 0, 1, 0, 0)]
        self.small.flush()
        self.small.dispatch()
        state = BrokerState()
        state.apply(TopicRecord(0, TopicConfig("orders", 3, 3)))
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.queues = ConsumeQueues(self.small.store, self.reader)
        next_offsets = QueueOffsets({("orders", 0): QueueOffset(4), ("orders", 1): QueueOffset(1)})
        topics = Topics(state, NoLog(), next_offsets, flushed=lambda: 0)
        self.sampler = QueueStats(
            topics,
            self.queues,
            self.reader,
            next_of=next_offsets.next_of,
            floor=topics.min_offset,
            dispatched=lambda: self.small.end,
        )
        self.group = Group()
        self.configs = Configs(self.group)
        self.views = GroupViews(
            self.configs,
            self.group,
            self.group,
            self.sampler,
            self.group,
            expiring=lambda _: {("orders", 0): 2},
        )

    def one(self) -> dict[str, Any]:
        return asyncio.run(self.views.one("billing"))

    def queue(self, number: int) -> dict[str, Any]:
        (topic,) = self.one()["topics"]
        found: dict[str, Any] = topic["queues"][number]
        return found


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path / "store")
    yield made
    made.queues.forget()
    made.reader.close()
    made.small.close()


def test_a_queue_shows_messages_bytes_and_the_age_of_the_oldest_unread(made: Made) -> None:
    made.group.offsets = {("orders", 0): 1, ("orders", 1): 1, ("orders", 2): 0}
    found = made.queue(0)
    # The message at queue offset 1 is the store's second, stored 2 ms after the first time.
    assert (found["messages"], found["seconds"]) == (3, (10_000 - 2) / 1000)
    assert found["bytes"] == sum(made.units[number].size for number in (1, 3, 4))
    assert (found["committed"], found["min_offset"], found["max_offset"]) == (1, 0, 4)
    assert found["expiring_messages"] == 2
    assert made.queue(1)["messages"] == made.queue(2)["messages"] == 0
    assert made.queue(2)["seconds"] == 0.0
    assert made.queue(2)["bytes"] == 0


def test_a_group_is_shown_with_its_members_topics_and_totals(made: Made) -> None:
    made.group.members_now = [OneMember("m1", (Subscription("orders"),), (("orders", 0),))]
    made.group.offsets = {("orders", 0): 1, ("orders", 1): 0}
    found = made.one()
    assert (found["group"], found["state"], found["generation"]) == (
        "billing",
        "stable",
        1 << 32 | 7,
    )
    assert found["members"] == [
        {
            "member": "m1",
            "subscriptions": [{"topic": "orders", "tags": "*"}],
            "assignment": [["orders", 0]],
            "session_ms": 30_000,
            "last_seen_ms": 12,
        }
    ]
    (topic,) = found["topics"]
    assert (topic["topic"], topic["kind"], topic["subscribed"]) == ("orders", "main", True)
    assert [queue["member"] for queue in topic["queues"]] == ["m1", None, None]
    lag = found["lag"]
    assert (lag["messages"], lag["queues"], lag["unknown_queues"]) == (4, 3, 1)
    assert lag["lagging_queues"] == 2, "both are older than the objective of 5 s"
    assert topic["queues"][2]["reasons"]["messages"] == Reason.NEVER_COMMITTED


def test_an_unknown_group_has_its_own_error(made: Made) -> None:
    with pytest.raises(UnknownGroup):
        asyncio.run(made.views.one("missing"))


def test_without_members_there_is_no_generation_and_nothing_in_flight(made: Made) -> None:
    made.group.offsets = {("orders", 0): 4}
    found = made.one()
    assert (found["state"], found["generation"]) == ("empty", None)
    assert made.queue(0)["in_flight"] is None
    assert made.queue(0)["reasons"] == {"in_flight": Reason.NOT_TRACKED}


def test_no_more_is_in_flight_or_about_to_expire_than_is_unread(made: Made) -> None:
    made.group.members_now = [OneMember("m1", (Subscription("orders"),), (("orders", 0),))]
    made.group.offsets = {("orders", 0): 4}  # the fakes still say 1 in flight, 2 to expire
    found = made.queue(0)
    assert (found["messages"], found["in_flight"], found["expiring_messages"]) == (0, 0, 0)


def test_what_expired_before_it_was_handed_out_is_not_in_flight() -> None:
    aside = Aside(Budget(0), {("orders", 0): 5}, {})
    assert aside.added_to(Lag(3, None, 1.0, lost=4), ("orders", 0)).in_flight == 1


def test_a_commit_beyond_the_end_is_no_lag_of_zero(made: Made) -> None:
    made.group.offsets = {("orders", 0): 6}
    found = made.queue(0)
    assert (found["messages"], found["ahead"]) == (None, 2)
    assert found["reasons"]["messages"] == Reason.AHEAD


def test_offsets_in_a_topic_that_is_gone_are_shown(made: Made) -> None:
    made.group.offsets = {("gone", 3): 6}
    found = made.queue(0)
    assert (found["queue"], found["committed"], found["max_offset"]) == (3, 6, None)
    assert found["reasons"]["seconds"] == Reason.UNKNOWN_TOPIC


def test_a_broadcasting_group_has_no_common_lag(made: Made) -> None:
    made.group.configs = {"billing": GroupConfig("billing", broadcast=True)}
    made.group.members_now = [OneMember("m1", (Subscription("orders"),))]
    found = made.one()
    assert found["lag"]["messages"] is None
    assert found["lag"]["reasons"]["messages"] == Reason.BROADCASTING
    assert made.queue(0)["max_offset"] == 4


def test_queues_are_shown_in_slices(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 queues at a time, of each topic anew, took the loop for some milliseconds."""
    ticks = itertools.count()
    monkeypatch.setattr(made.group, "monotonic", lambda: next(ticks) * SLICE_S)
    made.group.offsets = {("orders", queue): 0 for queue in range(3)}

    async def turns() -> int:
        shown, count = asyncio.create_task(made.views.one("billing")), 0
        while not shown.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) >= 2 * 3


def test_bytes_of_more_messages_than_are_looked_at_are_not_known(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "UNITS_MAX", 3)
    made.group.offsets = {("orders", 0): 0, ("orders", 1): 0}
    assert made.queue(0)["bytes"] is None
    assert made.queue(0)["reasons"]["bytes"] == Reason.TOO_MANY_UNREAD
    assert made.queue(0)["messages"] == 4
    assert made.queue(1)["bytes"] == made.units[2].size


def test_bytes_are_added_up_over_all_files_of_a_queue(made: Made) -> None:
    units = [made.small.put("orders", 2) for _ in range(25)]  # ten units to a file
    made.small.flush()
    made.small.dispatch()
    made.group.offsets = {("orders", 2): 3}
    found = made.queue(2)
    assert found["bytes"] == sum(unit.size for unit in units[3:])
