"""Groups as the API shows them, over a store of real files: numbers and reasons."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from services.broker.groups import views as views_module
from services.broker.groups.lag import Lag, Reason
from services.broker.groups.queue_stats import Budget, QueueStats
from services.broker.groups.views import Aside, GroupViews
from shared.runtime.pauses import SLICE_S
from tests.unit.broker.groups.rig import GROUP, SESSION_MS, Rig
from tidemark.formats.queue_unit import Unit


class Shown:
    """A view of the group over topic ``orders``, of whose queues 0 has 4 messages and 1 has one."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.first_ms = rig.small.now_ms
        for queue in (0, 0, 1, 0, 0):
            rig.put(1, queue)
        rig.group(lag_objective_ms=500)
        self.views = GroupViews(
            rig.configs,
            rig.offsets,
            rig.coordinator,
            QueueStats(
                rig.topics,
                rig.queues,
                rig.reader,
                next_of=rig.next_offsets.next_of,
                floor=rig.topics.min_offset,
                dispatched=lambda: rig.dispatched,
            ),
            rig.clock,
            expiring=lambda _: {("orders", 0): 2},
        )

    @property
    def units(self) -> list[Unit]:
        """Units of all messages, in the order in which they were put."""
        return [unit for *_, unit in self.rig.small.units]

    def commit(self, *offsets: int, topic: str = "orders") -> None:
        """Commit these offsets of queues 0, 1, and so on."""
        moves = {(topic, queue): offset for queue, offset in enumerate(offsets)}
        self.rig.offsets.accept(GROUP, moves)

    async def queue(self, number: int) -> dict[str, Any]:
        topic = next(each for each in (await self.views.one(GROUP))["topics"])
        found: dict[str, Any] = topic["queues"][number]
        return found


@pytest.fixture
def made(rig: Rig) -> Shown:
    return Shown(rig)


async def test_a_queue_shows_messages_bytes_and_the_age_of_the_oldest_unread(made: Shown) -> None:
    made.commit(1, 1, 0)
    found = await made.queue(0)
    # The message at queue offset 1 is the second of the store, stored 2 ms after its beginning.
    age_ms = made.rig.clock.wall_ms() - made.first_ms - 2
    assert (found["messages"], found["seconds"]) == (3, age_ms / 1000)
    assert found["bytes"] == sum(made.units[number].size for number in (1, 3, 4))
    assert (found["committed"], found["min_offset"], found["max_offset"]) == (1, 0, 4)
    assert found["expiring_messages"] == 2
    for number in (1, 2):
        read = await made.queue(number)
        assert (read["messages"], read["seconds"], read["bytes"]) == (0, 0.0, 0)


async def test_a_group_is_shown_with_its_members_topics_and_totals(made: Shown) -> None:
    made.commit(1, 0)
    joined = await made.rig.join(tags="*")
    made.rig.clock.now_ms += 12
    found = await made.views.one(GROUP)
    assert (found["group"], found["state"], found["generation"]) == (
        *(GROUP, "stable", joined.generation),
    )
    assert found["members"] == [
        {
            "member": "m1",
            "subscriptions": [
                {"topic": "orders", "tags": "*"},
                {"topic": "%RETRY%billing", "tags": "*"},
            ],
            "assignment": [list(queue) for queue in joined.assignment],
            "session_ms": SESSION_MS,
            "last_seen_ms": 12,
        }
    ]
    retry, topic = found["topics"]
    assert (retry["topic"], retry["kind"]) == ("%RETRY%billing", "retry")
    assert (topic["topic"], topic["kind"], topic["subscribed"]) == ("orders", "main", True)
    assert [queue["member"] for queue in topic["queues"]] == ["m1"] * 4
    lag = found["lag"]
    assert (lag["messages"], lag["queues"], lag["unknown_queues"]) == (4, 5, 0)
    assert lag["lagging_queues"] == 2, "both are older than the objective"


async def test_a_queue_without_a_commit_is_unknown(made: Shown) -> None:
    made.commit(1, 0)
    assert (await made.views.one(GROUP))["lag"]["unknown_queues"] == 2
    found = await made.queue(2)
    assert (found["messages"], found["reasons"]["messages"]) == (None, Reason.NEVER_COMMITTED)


async def test_without_members_there_is_no_generation_and_nothing_in_flight(made: Shown) -> None:
    made.commit(4)
    found = await made.views.one(GROUP)
    assert (found["state"], found["generation"]) == ("empty", None)
    queue = await made.queue(0)
    assert (queue["in_flight"], queue["reasons"]) == (None, {"in_flight": Reason.NOT_TRACKED})


async def test_no_more_is_in_flight_or_about_to_expire_than_is_unread(
    made: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit(4)  # after the counts were taken
    monkeypatch.setattr(made.rig.coordinator, "in_flight", lambda group: {("orders", 0): 1})
    found = await made.queue(0)
    assert (found["messages"], found["in_flight"], found["expiring_messages"]) == (0, 0, 0)


def test_what_expired_before_it_was_handed_out_is_not_in_flight() -> None:
    aside = Aside(Budget(0), {("orders", 0): 5}, {})
    assert aside.added_to(Lag(3, None, 1.0, lost=4), ("orders", 0)).in_flight == 1


async def test_a_commit_beyond_the_end_is_no_lag_of_zero(made: Shown) -> None:
    made.commit(6)
    found = await made.queue(0)
    assert (found["messages"], found["ahead"]) == (None, 2)
    assert found["reasons"]["messages"] == Reason.AHEAD


async def test_offsets_in_a_topic_that_is_gone_are_shown(made: Shown) -> None:
    made.commit(6, topic="gone")
    found = await made.queue(0)
    assert (found["queue"], found["committed"], found["max_offset"]) == (0, 6, None)
    assert found["reasons"]["seconds"] == Reason.UNKNOWN_TOPIC


async def test_a_broadcasting_group_has_no_common_lag(made: Shown) -> None:
    made.rig.group(broadcast=True)
    await made.rig.join()
    found = await made.views.one(GROUP)
    assert found["lag"]["messages"] is None
    assert found["lag"]["reasons"]["messages"] == Reason.BROADCASTING
    assert (await made.queue(0))["max_offset"] == 4


async def test_queues_are_shown_in_slices(made: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 queues at a time, of each topic anew, took the loop for some milliseconds."""
    ticks = itertools.count()
    monkeypatch.setattr(made.rig.clock, "monotonic", lambda: next(ticks) * SLICE_S)
    made.commit(0, 0, 0)
    shown, turns = asyncio.create_task(made.views.one(GROUP)), 0
    while not shown.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2 * 3


async def test_bytes_of_more_messages_than_are_looked_at_are_not_known(
    made: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "UNITS_MAX", 3)
    made.commit(0, 0)
    found = await made.queue(0)
    assert (found["messages"], found["bytes"]) == (4, None)
    assert found["reasons"]["bytes"] == Reason.TOO_MANY_UNREAD
    assert (await made.queue(1))["bytes"] == made.units[2].size


async def test_bytes_are_added_up_over_all_files_of_a_queue(made: Shown) -> None:
    made.rig.put(1500, 2)  # a thousand units to a file
    made.commit(4, 1, 3)
    assert (await made.queue(2))["bytes"] == sum(unit.size for unit in made.units[5 + 3 :])
