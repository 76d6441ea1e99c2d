"""Commits and resets: who may make them, up to where, and what they promise."""

from __future__ import annotations

import pytest

from services.broker.schema.offsets import CommitLevel, ResetPlace
from tests.support.metrics import sample
from tests.unit.broker.groups.rig import GROUP, Rig, got
from tidemark.errors import (
    BroadcastGroup,
    GroupInUse,
    MemberRequired,
    NotAssigned,
    OffsetBeyondEnd,
    StaleGeneration,
    UnknownGroup,
    UnknownMember,
    UnknownQueue,
    UnknownTopic,
)

Q0, Q1 = ("orders", 0), ("orders", 1)


async def test_a_commit_is_served_at_once_and_waits_for_the_disk_if_asked(rig: Rig) -> None:
    rig.put(3)
    await rig.join()
    await rig.fetch()
    assert await rig.commit({Q0: 2}) is CommitLevel.ACCEPTED
    assert rig.commits.committed(GROUP)[Q0] == 2
    assert rig.committed(1) == 0, "the start was committed when the group met the topic"
    assert await rig.commit({Q0: 3}, level=CommitLevel.DISK) is CommitLevel.DISK


async def test_a_commit_of_an_old_generation_is_refused(rig: Rig) -> None:
    rig.put(3)
    old = await rig.join("m1")
    await rig.fetch("m1")
    await rig.join("m2", holding=set())
    with pytest.raises(StaleGeneration):
        await rig.commit({Q0: 1}, generation=old.generation)
    rig.coordinator.leave(GROUP, "m2")
    rig.coordinator.leave(GROUP, "m1")
    with pytest.raises(StaleGeneration):
        await rig.commit({Q0: 1}, generation=old.generation)
    assert rig.committed() == 0


async def test_members_commit_only_queues_assigned_to_them(rig: Rig) -> None:
    rig.put(1, 0)
    rig.put(1, 1)
    await rig.join("m1")
    await rig.join("m2", holding=set())
    await rig.join("m1", holding=set(), generation=rig.coordinator.generation(GROUP))
    theirs = next(
        queue for queue in range(4) if rig.coordinator.owner(GROUP, "orders", queue) == "m2"
    )
    with pytest.raises(NotAssigned):
        await rig.commit({("orders", theirs): 0}, member="m1")
    with pytest.raises(MemberRequired):
        await rig.commit({Q0: 1}, member=None)
    with pytest.raises(MemberRequired):
        await rig.commit({Q0: 1}, member=None, generation=rig.coordinator.generation(GROUP))
    with pytest.raises(UnknownMember):
        await rig.commit({Q0: 1}, member="m3")


async def test_all_offsets_of_a_commit_are_taken_or_none(rig: Rig) -> None:
    rig.put(2, 0)
    rig.put(2, 1)
    await rig.join()
    await rig.fetch()
    with pytest.raises(OffsetBeyondEnd) as refused:
        await rig.commit({Q0: 1, Q1: 3})
    assert (refused.value.offset, refused.value.max_offset) == (3, 2)
    assert rig.committed(0) == rig.committed(1) == 0


async def test_a_commit_that_comes_late_takes_nothing_back(rig: Rig) -> None:
    rig.put(3)
    await rig.join()
    await rig.fetch()
    await rig.commit({Q0: 3})
    await rig.commit({Q0: 1})
    assert rig.committed() == 3


async def test_commits_are_counted_with_the_age_of_what_they_cover(rig: Rig) -> None:
    rig.put(3)
    await rig.join()
    await rig.fetch()
    await rig.commit({Q0: 3})
    labels = {"group": GROUP, "topic": "orders"}
    assert sample(rig.registry, "tidemark_group_consumed_messages_total", labels) == 3
    delays = "tidemark_group_consume_delay_seconds_count"
    assert sample(rig.registry, delays, {"group": GROUP}) == 1


async def test_without_members_any_caller_commits_in_both_directions(rig: Rig) -> None:
    rig.put(3)
    await rig.commit({Q0: 3}, member=None)
    await rig.commit({Q0: 1}, member=None)
    assert rig.committed() == 1
    with pytest.raises(OffsetBeyondEnd):
        await rig.commit({Q0: 4}, member=None)
    with pytest.raises(UnknownTopic):
        await rig.commit({("missing", 0): 0}, member=None)
    with pytest.raises(UnknownQueue):
        await rig.commit({("orders", 99): 0}, member=None)


async def test_only_the_holder_commits_a_queue_in_transit(rig: Rig) -> None:
    for queue in range(4):
        rig.put(1, queue)
    first = await rig.join("m1")
    await rig.fetch("m1")
    await rig.join("m2", holding=set())
    heard = await rig.join("m1", generation=first.generation, holding=set(first.assignment))
    moving = next(q for q in first.assignment if q not in heard.assignment and q[0] == "orders")
    with pytest.raises(NotAssigned):
        await rig.commit({moving: 1}, member="m2")
    await rig.commit({moving: 1}, member="m1")
    assert rig.committed(moving[1]) == 1
    await rig.join("m1", generation=heard.generation, holding=set(heard.assignment))
    with pytest.raises(NotAssigned):
        await rig.commit({moving: 1}, member="m1")
    assert moving[1] not in got(await rig.fetch("m2"))


async def test_a_broadcasting_group_has_nothing_to_commit(rig: Rig) -> None:
    rig.group(broadcast=True)
    with pytest.raises(BroadcastGroup):
        await rig.commit({Q0: 0}, member=None)
    with pytest.raises(BroadcastGroup):
        await rig.reset("first")


async def test_a_reset_moves_a_group_to_any_message_of_a_topic(rig: Rig) -> None:
    first_ms = rig.small.now_ms
    rig.put(4, 0)
    rig.group()
    rig.offsets.accept(GROUP, {Q0: 2})
    assert await rig.reset("first", queue=0, dry_run=True) == [(0, 2, 0)]
    assert rig.committed() == 2
    assert await rig.reset("last") == [(0, 2, 4), (1, None, 0), (2, None, 0), (3, None, 0)]
    assert rig.committed() == 4
    assert await rig.reset(ResetPlace(timestamp_ms=first_ms + 3), queue=0) == [(0, 4, 2)]
    assert await rig.reset(ResetPlace(offset=3), queue=0) == [(0, 2, 3)]
    with pytest.raises(OffsetBeyondEnd):
        await rig.reset(ResetPlace(offset=5), queue=0)
    with pytest.raises(UnknownQueue):
        await rig.reset("first", queue=9)
    with pytest.raises(UnknownTopic):
        await rig.reset("first", topic="missing")
    labels = {"group": GROUP, "topic": "orders", "direction": "forward"}
    name = "tidemark_group_offset_resets_total"
    assert sample(rig.registry, name, labels) == 2
    topic = rig.state.topics["orders"]
    rig.state.topics["orders"] = topic._replace(min_offsets={0: 2})
    assert await rig.reset(ResetPlace(offset=0), queue=0) == [(0, 3, 2)]


async def test_a_group_with_members_is_not_reset(rig: Rig) -> None:
    await rig.join()
    with pytest.raises(GroupInUse):
        await rig.reset("first")
    assert (await rig.reset("first", dry_run=True))[0] == (0, 0, 0)
    with pytest.raises(UnknownGroup):
        rig.commits.committed("never")


# 1. A member of an ordered group claims a position far behind the end: until it commits, the queue
# is not read; 2. its commit up to there was accepted, and hid all messages to come.
async def test_a_member_that_lies_about_its_position_commits_nothing_beyond_the_end(
    rig: Rig,
) -> None:
    rig.group(order=True)
    rig.put(2)
    await rig.join()
    await rig.fetch()
    await rig.fetch(positions=[(("orders", 0), 50)])
    with pytest.raises(OffsetBeyondEnd):
        await rig.commit({("orders", 0): 50})
    assert rig.committed() == 0
    await rig.commit({("orders", 0): 2})
    assert rig.committed() == 2


async def test_a_commit_that_cannot_be_taken_makes_no_group(rig: Rig) -> None:
    with pytest.raises(UnknownTopic):
        await rig.commit({("misspelt", 0): 0}, member=None)
    with pytest.raises(OffsetBeyondEnd):
        await rig.commit({Q0: 1}, member=None)
    assert rig.configs.find(GROUP) is None
    await rig.commit({Q0: 0}, member=None)
    assert rig.committed() == 0
