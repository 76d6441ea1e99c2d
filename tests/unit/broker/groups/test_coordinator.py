"""The coordinator: who may join, where members begin, effects of time and topics on a group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.broker.groups.joining import Bounds, Joined
from services.broker.schema.groups import GroupConfig as GroupChanges
from services.broker.schema.members import SESSION_MS_MAX, Join, Subscription
from services.broker.schema.offsets import ResetPlace
from services.broker.schema.parsing import parsed
from shared.state.records import TopicConfig
from tests.support.metrics import sample
from tests.unit.broker.groups.rig import GROUP, SESSION_MS, Rig, got
from tidemark.errors import (
    BadTags,
    ConsumeDisabled,
    GroupInUse,
    MemberFenced,
    MemberRequired,
    NotPermitted,
    Overloaded,
    StaleGeneration,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)

ALL = [("orders", queue) for queue in range(4)]


@pytest.mark.parametrize(
    ("topic", "tags", "error"),
    [
        ("missing", "*", UnknownTopic),
        ("orders", "a || ", BadTags),
        ("orders", "a && b", BadTags),  # one tag, which no message has: nothing ever came
        ("orders", "* || a", BadTags),
        ("closed", "*", NotPermitted),
        ("SCHEDULE_TOPIC_XXXX", "*", NotPermitted),
        ("rmq_sys_tidemark_state", "*", NotPermitted),
    ],
)
async def test_a_member_with_an_invalid_subscription_cannot_join(
    rig: Rig, topic: str, tags: str, error: type[Exception]
) -> None:
    rig.state.topics["closed"] = rig.state.topics["orders"]._replace(name="closed", perm=2)
    with pytest.raises(error):
        await rig.join(topic=topic, tags=tags)
    assert rig.coordinator.member_count(GROUP) == 0
    # A misspelt topic once left a group and its retry topic behind, forever.
    assert rig.configs.find(GROUP) is None
    assert rig.topics.find("%RETRY%billing") is None


async def test_a_disabled_group_accepts_no_members(rig: Rig) -> None:
    await rig.join("m1")
    await rig.coordinator.put(GROUP, parsed({"consume_enabled": False}, GroupChanges))
    with pytest.raises(ConsumeDisabled):
        await rig.join("m2")
    with pytest.raises(ConsumeDisabled):
        await rig.fetch("m1")


async def test_a_heartbeat_of_a_dead_member_fails_and_it_joins_again(rig: Rig) -> None:
    joined = await rig.join()
    rig.clock.now_ms += SESSION_MS - 1
    await rig.join(generation=joined.generation)
    rig.clock.now_ms += SESSION_MS - 1
    assert (await rig.join(generation=joined.generation)).generation == joined.generation
    rig.clock.now_ms += SESSION_MS
    with pytest.raises(UnknownMember):
        await rig.join(generation=joined.generation)
    assert (await rig.join()).generation > joined.generation


async def test_a_heartbeat_does_not_bring_back_a_deleted_group(rig: Rig) -> None:
    joined = await rig.join()
    rig.clock.now_ms += SESSION_MS
    rig.look()
    await rig.configs.delete(GROUP)
    with pytest.raises(UnknownMember):
        await rig.join(generation=joined.generation)
    assert rig.configs.find(GROUP) is None


async def test_a_place_shows_handed_out_messages_while_the_queue_has_an_owner(rig: Rig) -> None:
    rig.put(4)
    assert rig.coordinator.place_of(GROUP, ALL[0]) is None
    assert set(rig.coordinator.topics_read(GROUP)) == set()
    await rig.join("m1")
    assert "orders" in rig.coordinator.topics_read(GROUP)
    assert rig.coordinator.place_of(GROUP, ALL[0]) == (0, 0)
    await rig.fetch("m1")
    assert rig.coordinator.place_of(GROUP, ALL[0]) == (4, 4)
    await rig.commit({ALL[0]: 1})
    assert rig.coordinator.place_of(GROUP, ALL[0]) == (4, 4)
    rig.clock.now_ms += SESSION_MS
    rig.look()
    assert rig.coordinator.place_of(GROUP, ALL[0]) is None


async def test_a_member_with_messages_in_hand_that_does_not_fetch_is_busy(rig: Rig) -> None:
    rig.put(4)

    def is_busy(queue: int = 0) -> bool:
        return rig.coordinator.busy_holders(GROUP, rig.clock.monotonic())(ALL[queue])

    assert not is_busy(), "the queue has no owner"
    await rig.join("m1", session_ms=600_000)
    await rig.fetch("m1")
    rig.clock.now_ms += 30_000
    assert is_busy()
    assert is_busy(1), "all of its queues wait for it"
    await rig.commit({ALL[0]: 4})
    assert not is_busy(), "it has nothing in hand and does not fetch: that is delivery"


async def test_a_message_that_crashes_its_member_repeatedly_waits_for_processing(rig: Rig) -> None:
    # A program that crashes at one message: between its join and its first fetch it has nothing in
    # hand, and a sample at that moment once showed the message as waiting for delivery.
    rig.put(4)

    def is_busy() -> bool:
        return rig.coordinator.busy_holders(GROUP, rig.clock.monotonic())(ALL[0])

    for _ in range(2):
        await rig.join("m1")
        assert not is_busy()
        await rig.fetch("m1")
        rig.clock.now_ms += SESSION_MS
        rig.look()
    await rig.join("m1")
    assert is_busy()
    await rig.fetch("m1")
    session = rig.coordinator.session_of(GROUP, ALL[0])
    assert session is not None
    # On a slow machine the first fetches of the next member are open for long. The backlog behind
    # the message was once shown as waiting for delivery for that time.
    session.asking.begins(rig.clock.monotonic())
    rig.clock.now_ms += 5000
    assert session.asking.is_frequent(rig.clock.monotonic())
    assert is_busy()
    await rig.commit({ALL[0]: 4})
    assert not is_busy()


@pytest.mark.parametrize(("times", "processing"), [(0, False), (1, False), (2, True), (3, True)])
async def test_without_a_member_a_message_that_was_handed_out_often_waits_for_processing(
    rig: Rig, times: int, processing: bool
) -> None:
    # A crash loop on a loaded machine: most scrapes find no member, and all of them showed the
    # poison message as waiting for delivery. In a group that stopped normally, the oldest message
    # was in hand once at most.
    rig.put(4)
    await rig.commit({ALL[0]: 0}, member=None)
    for _ in range(times):
        await rig.join("m1")
        await rig.fetch("m1")
        rig.clock.now_ms += SESSION_MS
        rig.look()
    assert rig.coordinator.member_count(GROUP) == 0
    is_busy = rig.coordinator.busy_holders(GROUP, rig.clock.monotonic())
    assert is_busy(ALL[0]) is processing
    await rig.commit({ALL[0]: 4}, member=None)
    assert not is_busy(ALL[0])


async def test_in_an_ordered_group_a_queue_waits_for_its_last_batch(rig: Rig) -> None:
    rig.put(4)
    await rig.coordinator.put(GROUP, parsed({"order": True}, GroupChanges))
    await rig.join("m1")
    await rig.fetch("m1", count_max=2)
    busy = rig.coordinator.busy_holders(GROUP, rig.clock.monotonic())
    assert busy(ALL[0])
    await rig.commit({ALL[0]: 2})
    assert not rig.coordinator.busy_holders(GROUP, rig.clock.monotonic())(ALL[0])


async def test_queues_have_their_holders_numbers_while_the_group_has_members(rig: Rig) -> None:
    assert rig.coordinator.holder_numbers(GROUP) is None
    await rig.commit({ALL[0]: 0}, member=None)
    assert rig.coordinator.holder_numbers(GROUP) is None, "a commit does not make a member"
    await rig.join("m1")
    number_of = rig.coordinator.holder_numbers(GROUP)
    assert number_of is not None
    assert {number_of(queue) for queue in ALL} == {1}
    assert number_of(("payments", 0)) == 0
    rig.coordinator.leave(GROUP, "m1")
    assert rig.coordinator.holder_numbers(GROUP) is None


async def test_queues_of_a_broadcasting_group_have_no_holder(rig: Rig) -> None:
    rig.group(broadcast=True)
    await rig.join("m1")
    number_of = rig.coordinator.holder_numbers(GROUP)
    assert number_of is not None
    assert {number_of(queue) for queue in ALL} == {None}


async def test_a_queue_gets_a_new_owner_when_the_old_one_has_released_it(rig: Rig) -> None:
    rig.put(2, 3)
    first = await rig.join("m1")
    await rig.fetch("m1")
    second = await rig.join("m2", holding=set())
    assert second.assignment == []
    assert rig.coordinator.state(GROUP) == "rebalancing"
    heard = await rig.join("m1", generation=first.generation, holding=set(first.assignment))
    moving = set(first.assignment) - set(heard.assignment)
    assert len(moving) == 2
    for queue in moving:
        assert rig.coordinator.owner(GROUP, *queue) is None
        assert rig.coordinator.holder(GROUP, *queue) == "m1"
    if ALL[3] in moving:
        await rig.commit({ALL[3]: 2}, generation=heard.generation)  # it may still finish
    await rig.join("m1", generation=heard.generation, holding=set(heard.assignment))
    third = await rig.join("m2", generation=second.generation)
    assert set(third.assignment) == moving
    assert {rig.coordinator.holder(GROUP, *queue) for queue in moving} == {"m2"}
    assert rig.coordinator.holder("missing", "orders", 0) is None
    assert rig.coordinator.state(GROUP) == "stable"


async def test_a_join_without_a_generation_begins_at_what_is_committed(rig: Rig) -> None:
    rig.put(4)
    joined = await rig.join()
    await rig.fetch()
    await rig.commit({ALL[0]: 2})
    await rig.join(generation=joined.generation)
    assert (await rig.fetch()).pieces == []
    await rig.join()
    assert got(await rig.fetch()) == {0: [2, 3]}


async def test_leaving_frees_the_queues_at_once_and_the_last_ones_leave_nothing(rig: Rig) -> None:
    await rig.join("m1")
    await rig.join("m2", holding=set())
    rig.coordinator.leave(GROUP, "m1")
    assert rig.coordinator.owner(GROUP, "orders", 0) == "m2"
    with pytest.raises(UnknownMember):
        rig.coordinator.leave(GROUP, "m1")
    rig.coordinator.leave(GROUP, "m2")
    assert rig.coordinator.state(GROUP) == "empty"
    with pytest.raises(UnknownGroup):
        rig.coordinator.leave("never", "m1")
    rig.clock.now_ms += 10 * SESSION_MS
    rig.look()


@pytest.mark.parametrize(("start", "begins"), [("first", 0), ("last", 3), (None, 1)])
async def test_a_new_group_begins_at_its_configured_start_which_is_committed(
    rig: Rig, start: str | None, begins: int
) -> None:
    first_ms = rig.small.now_ms
    rig.put(3)
    rig.group(start=first_ms + 2 if start is None else start)
    await rig.join()
    assert rig.committed() == begins
    rig.coordinator.leave(GROUP, "m1")
    rig.put(1)
    await rig.join()
    assert got(await rig.fetch()) == {0: list(range(begins, 4))}


# Kafka's auto.offset.reset=latest loses what is sent to a new partition before a consumer sees it.
async def test_a_queue_that_a_known_topic_gets_is_read_from_its_first_message(rig: Rig) -> None:
    rig.group(start="last")
    joined = await rig.join()
    await rig.topics.create("orders", 6)
    rig.put(2, 5)
    rig.look()
    heard = await rig.join(generation=joined.generation)
    assert ("orders", 5) in heard.assignment
    assert got(await rig.fetch()) == {5: [0, 1]}


async def test_a_later_program_under_a_members_name_fences_the_earlier(rig: Rig) -> None:
    rig.put(2)
    first = await rig.join(incarnation="a")
    await rig.join("m2", incarnation="x")
    earlier = rig.coordinator.generation(GROUP)
    assert earlier is not None
    assert earlier > first.generation
    waiting = asyncio.create_task(rig.fetch(wait_ms=20_000, generation=earlier))
    while not (found := await waiting).pieces:
        waiting = asyncio.create_task(rig.fetch(wait_ms=20_000, generation=earlier))
    assert got(found) == {0: [0, 1]}
    later = await rig.join(incarnation="b")
    assert later.generation > earlier
    for call in (rig.fetch(generation=earlier), rig.commit({ALL[0]: 2}, generation=earlier)):
        with pytest.raises(StaleGeneration):
            await call
    with pytest.raises(MemberFenced, match="'m1'"):
        await rig.join(incarnation="a", generation=later.generation)
    with pytest.raises(UnknownMember):
        rig.coordinator.leave(GROUP, "m1", "a")
    assert got(await rig.fetch(generation=later.generation)) == {0: [0, 1]}
    await rig.join(incarnation="b", generation=later.generation)
    assert (await rig.join(generation=later.generation)).generation == later.generation
    again = await rig.join(incarnation="b")
    assert again.generation == later.generation, "the same program joins again"
    rig.coordinator.leave(GROUP, "m1", "b")


async def test_a_member_reads_on_without_a_topic_that_was_deleted(rig: Rig) -> None:
    both = [Subscription("orders", "*"), Subscription("other", "*")]
    await rig.topics.create("other", 1)
    await rig.join("m0")
    rig.coordinator.leave(GROUP, "m0")
    joined = await rig.coordinator.join(GROUP, "m1", Join(both, SESSION_MS, None, None))
    assert ("other", 0) in joined.assignment
    await rig.topics.delete("other")
    rig.look()
    beat = Join(both, SESSION_MS, None, joined.generation)
    assert ("other", 0) not in (await rig.coordinator.join(GROUP, "m1", beat)).assignment
    await rig.topics.create("other", 2)
    rig.look()
    assert ("other", 1) in (await rig.coordinator.join(GROUP, "m1", beat)).assignment
    await rig.topics.delete("other")
    await rig.topics.delete("orders")
    rig.look()
    with pytest.raises(UnknownTopic, match="orders"):
        await rig.coordinator.join(GROUP, "m1", beat)


async def test_retries_are_read_from_the_first_whatever_the_start(rig: Rig) -> None:
    rig.group(start="last")
    await rig.configs.retry_topic(GROUP)
    rig.put(1, topic="%RETRY%billing", tags="any")
    await rig.join(tags="new")
    answer = await rig.fetch()
    assert [piece.queue for piece in answer.pieces] == [("%RETRY%billing", 0)]


async def test_every_member_of_a_broadcasting_group_gets_everything(rig: Rig) -> None:
    rig.group(broadcast=True, start="last")
    rig.put(1)
    for member in ("m1", "m2"):
        joined = await rig.join(member)
        assert joined.assignment == ALL
    rig.put(2)
    for member in ("m1", "m2"):
        assert got(await rig.fetch(member)) == {0: [1, 2]}
    assert rig.committed() is None
    assert rig.coordinator.in_flight(GROUP) == {}
    again = sample(
        rig.registry,
        "tidemark_group_redelivered_messages_total",
        {"group": GROUP, "topic": "orders"},
    )
    assert again is None, "the same message for another member is no redelivery"
    assert got(await rig.fetch("m1", positions=[(ALL[0], 0)])) == {0: [0, 1, 2]}
    await rig.topics.create("orders", 5)
    rig.put(1, 4)
    rig.look()
    assert got(await rig.fetch("m2")) == {4: [0]}


async def test_order_and_broadcast_change_only_without_members(rig: Rig) -> None:
    await rig.join()
    await rig.coordinator.put(GROUP, parsed({"order": False, "retry_max": 3}, GroupChanges))
    assert rig.configs.get(GROUP).retry_max == 3
    with pytest.raises(GroupInUse):
        await rig.coordinator.put(GROUP, parsed({"order": True}, GroupChanges))
    with pytest.raises(GroupInUse):
        await rig.coordinator.delete(GROUP)
    rig.coordinator.leave(GROUP, "m1")
    assert (await rig.coordinator.put(GROUP, parsed({"broadcast": True}, GroupChanges))).broadcast
    await rig.coordinator.delete(GROUP)
    assert rig.configs.find(GROUP) is None


# 1. A group without members is made a broadcasting one; 2. during the flush a member joins, and
# gets a share of the queues; 3. the next member gets all of them.
async def test_a_join_waits_while_the_group_is_being_changed(rig: Rig) -> None:
    rig.group()
    async with rig.coordinator._joining.alone(GROUP):
        with pytest.raises(GroupInUse):
            await rig.coordinator.delete(GROUP)
        joins = asyncio.create_task(rig.join())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not joins.done()
        await rig.configs.put(GROUP, parsed({"broadcast": True}, GroupChanges))
    assert (await joins).config.broadcast


async def test_members_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", bounds=Bounds(2, 1, 5))
    try:
        joined = await rig.join("m1")
        with pytest.raises(Overloaded):
            await rig.join("m2")
        await rig.join("m1", generation=joined.generation)
        other = Join([Subscription("orders", "*")], SESSION_MS, None, None)
        await rig.coordinator.join("second", "m1", other)
        with pytest.raises(Overloaded):
            await rig.coordinator.join("third", "m1", other)
    finally:
        rig.close()


def said_full(caplog: pytest.LogCaptureFixture) -> int:
    return sum(getattr(each, "event", "") == "queues-not-begun" for each in caplog.records)


async def live_on(rig: Rig, generation: int, subscribed: list[Subscription]) -> Joined:
    """Send heartbeats for longer than a session, with checks in between."""
    for _ in range(5):
        rig.clock.now_ms += SESSION_MS // 2
        beat = Join(subscribed, SESSION_MS, None, generation)
        heard = await rig.coordinator.join(GROUP, "m1", beat)
        rig.coordinator.topic_changed("orders")
        rig.look()
    return heard


# 1. A group reads as many queues as it may, or the node keeps as many offsets as it can; 2. a topic
# grows; 3. every heartbeat was refused because of the new queues, before it postponed the deadline;
# 4. all members were dead after a session, and the old queues stalled too.
@pytest.mark.parametrize("broadcast", [False, True])
async def test_queues_beyond_a_groups_limit_wait_and_its_members_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broadcast: bool
) -> None:
    rig = Rig(tmp_path / "store", bounds=Bounds(9, 9, 5 if broadcast else 6))
    orders, side = Subscription("orders", "*"), Subscription("side", "*")
    try:
        rig.group(broadcast=broadcast)
        await rig.topics.create("side", 1)
        await rig.topics.create("more", 1)
        await rig.join("m1")
        joined = await rig.coordinator.join(
            GROUP, "m1", Join([orders, side], SESSION_MS, None, None)
        )
        await rig.topics.create("orders", 5)
        rig.put(1, 0)
        rig.put(2, 4)
        rig.look()
        heard = await live_on(rig, joined.generation, [orders, side])
        assert heard.generation == joined.generation
        assert heard.assignment == joined.assignment
        assert said_full(caplog) == 1
        assert got(await rig.fetch(generation=heard.generation)) == {0: [0]}
        with pytest.raises(Overloaded, match="would read"):
            await rig.join("m2")
        more = Join([orders, side, Subscription("more", "*")], SESSION_MS, None, 1)
        with pytest.raises(Overloaded):
            await rig.coordinator.join(GROUP, "m1", more)
        assert rig.coordinator.member_count(GROUP) == 1

        heard = await live_on(rig, joined.generation, [orders])
        assert [queue for queue in heard.assignment if queue[0] == "orders"] == [
            *ALL,
            ("orders", 4),
        ]
        assert got(await rig.fetch(generation=heard.generation)) == {4: [0, 1]}
    finally:
        rig.close()


async def test_queues_beyond_the_nodes_limit_of_offsets_wait_and_members_stay(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Subscription("orders", "*")
    rig.group(start="last")
    joined = await rig.join()
    await rig.topics.create("other", 1)
    rig.offsets._pairs_max = rig.offsets._pairs
    await rig.topics.create("orders", 6)
    rig.put(1, 0)
    rig.put(2, 5)
    rig.look()
    heard = await live_on(rig, joined.generation, [orders])
    assert heard.assignment == joined.assignment
    assert said_full(caplog) == 1
    assert got(await rig.fetch(generation=heard.generation)) == {0: [0]}
    await rig.commit({ALL[0]: 1})
    with pytest.raises(Overloaded):
        await rig.join("m2")
    with pytest.raises(Overloaded):
        await rig.join(topic="other", generation=joined.generation)
    assert rig.coordinator.member_count(GROUP) == 1

    rig.offsets._pairs_max += 2
    heard = await rig.join(generation=heard.generation)
    assert [queue for queue in heard.assignment if queue[0] == "orders"] == [
        *ALL,
        ("orders", 4),
        ("orders", 5),
    ]
    assert got(await rig.fetch(generation=heard.generation)) == {5: [0, 1]}
    await rig.topics.create("orders", 7)
    rig.look()
    await live_on(rig, heard.generation, [orders])
    assert said_full(caplog) == 2, "there was room meanwhile"


async def test_a_group_that_waits_for_room_finds_it_although_another_has_begun_meanwhile(
    rig: Rig,
) -> None:
    await rig.topics.create("other", 1)
    await rig.join()
    rig.offsets._pairs_max = rig.offsets._pairs
    await rig.topics.create("orders", 5)
    rig.look()
    rig.offsets._pairs_max += 2
    another = Join([Subscription("other", "*")], SESSION_MS, None, None)
    await rig.coordinator.join("another", "m1", another)
    assert ("orders", 4) not in rig.coordinator.members(GROUP)[0].assignment
    rig.offsets._pairs_max += 1
    await rig.topics.create("unread", 1)
    rig.look()
    assert ("orders", 4) in rig.coordinator.members(GROUP)[0].assignment


async def test_a_topic_deleted_while_another_waits_for_room_is_released(rig: Rig) -> None:
    await rig.topics.create("other", 2)
    await rig.join()
    both = Join([Subscription("orders", "*"), Subscription("other", "*")], SESSION_MS, None, None)
    await rig.coordinator.join(GROUP, "m1", both)
    rig.offsets._pairs_max = rig.offsets._pairs
    await rig.topics.create("orders", 5)
    await rig.topics.delete("other")
    rig.look()
    assert rig.coordinator.members(GROUP)[0].assignment == [("%RETRY%billing", 0), *ALL]


async def test_a_changed_topic_costs_nothing_for_groups_that_do_not_read_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1. Each of 5,000 new groups made its retry topic; 2. at each of these changes the queues of
    # all groups were compared: 60 s of processor time for a minute of joining.
    groups = 20
    asked: list[str] = []
    queue_numbers = rig.topics.queue_numbers
    await rig.join()

    def counted(topic: TopicConfig) -> Sequence[int]:
        asked.append(topic.name)
        return queue_numbers(topic)

    for number in range(groups):
        await rig.topics.create(f"topic-{number}", 1)
        request = Join([Subscription(f"topic-{number}", "*")], SESSION_MS, None, None)
        await rig.coordinator.join(f"group-{number}", "m1", request)
    rig.look()
    monkeypatch.setattr(rig.topics, "queue_numbers", counted)
    await rig.topics.create("topic-7", 3)
    await rig.topics.create("unread", 3)
    rig.look()
    assert sorted(asked) == ["%RETRY%group-7", "topic-7"]
    assert len(rig.coordinator.members("group-7")[0].assignment) == 1 + 3
    asked.clear()
    rig.look()
    assert not asked


async def test_a_caller_is_known_by_its_member_and_generation(rig: Rig) -> None:
    rig.coordinator.check_caller(GROUP, None, None)
    joined = await rig.join()
    rig.coordinator.check_caller(GROUP, "m1", joined.generation)
    rig.coordinator.check_caller("other", None, None)
    with pytest.raises(MemberRequired, match=r"has members \(1\)"):
        rig.coordinator.check_caller(GROUP, None, None)
    for half in (("m1", None), (None, joined.generation)):
        with pytest.raises(MemberRequired, match="both"):
            rig.coordinator.check_caller(GROUP, *half)
    with pytest.raises(StaleGeneration):
        rig.coordinator.check_caller(GROUP, "m1", joined.generation - 1)
    with pytest.raises(UnknownMember):
        rig.coordinator.check_caller(GROUP, "m2", joined.generation)
    with pytest.raises(StaleGeneration):
        rig.coordinator.check_caller("other", "m1", joined.generation)


async def test_members_that_come_and_go_leave_nothing_behind(rig: Rig) -> None:
    for _ in range(50):
        await rig.join()
        rig.coordinator.leave(GROUP, "m1")
    live = rig.coordinator._live
    assert len(live._due) == 1
    assert not live._live
    assert live.member_count == 0
    assert not rig.puller.long_polls._watchers


async def test_the_background_part_notices_a_death(rig: Rig) -> None:
    await rig.join()
    stop = asyncio.Event()
    runs = asyncio.create_task(rig.coordinator.run(stop))
    waits = asyncio.create_task(rig.fetch(wait_ms=2 * SESSION_MS))
    await asyncio.sleep(0)
    rig.clock.now_ms += SESSION_MS
    with pytest.raises(UnknownMember):
        await waits
    stop.set()
    await runs


# 1. m2 joins, queues are taken from m1; 2. m2 leaves before m1's next heartbeat, and they are m1's
# again. m1 has not learned of it and has their messages in hand: they would be delivered twice.
async def test_a_queue_that_comes_back_unnoticed_goes_on_where_it_was(rig: Rig) -> None:
    for queue in range(4):
        rig.put(2, queue)
    first = await rig.join("m1")
    await rig.fetch("m1")
    await rig.join("m2", holding=set())
    rig.coordinator.leave(GROUP, "m2")
    heard = await rig.join("m1", generation=first.generation, holding=set(first.assignment))
    assert heard.assignment == first.assignment
    assert (await rig.fetch("m1", generation=heard.generation)).pieces == []


async def test_a_queue_that_comes_back_to_who_missed_it_begins_at_the_commit(rig: Rig) -> None:
    for queue in range(4):
        rig.put(2, queue)
    first = await rig.join("m1")
    await rig.fetch("m1")
    await rig.join("m2", holding=set())
    heard = await rig.join("m1", generation=first.generation, holding=set(first.assignment))
    gone = {number for topic, number in first.assignment if topic == "orders"}
    gone -= {number for topic, number in heard.assignment if topic == "orders"}
    rig.coordinator.leave(GROUP, "m2")
    again = await rig.join("m1", generation=heard.generation)
    assert again.assignment == first.assignment
    assert got(await rig.fetch("m1")) == {number: [0, 1] for number in gone}


async def test_the_start_of_a_group_is_on_disk_before_its_member_gets_the_response(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = asyncio.Event()

    async def durable() -> None:
        await written.wait()

    rig.group(start="last")
    monkeypatch.setattr(rig.offsets, "durable", durable)
    await rig.configs.retry_topic(GROUP)
    joins = asyncio.create_task(rig.join())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not joins.done()
    written.set()
    generation = (await joins).generation
    written.clear()
    await rig.join(generation=generation)  # a heartbeat begins nothing and waits for nothing


async def test_after_a_restart_members_go_on_with_what_they_hold(rig: Rig) -> None:
    rig.group(order=True)
    for number in range(4):
        rig.put(3, number)
    one = await rig.join("m1")
    two = await rig.join("m2", holding=set())
    heard = await rig.join("m1", generation=one.generation, holding=set())
    two = await rig.join("m2", generation=two.generation)
    got_before = got(await rig.fetch("m1", generation=two.generation))
    rig.start()
    rig.clock.now_ms += 500
    held = set(heard.assignment)
    again = await rig.join("m1", holding=held)
    assert set(again.assignment) == set(again.kept) == held
    assert again.generation >> 32 == 4
    assert rig.coordinator.state(GROUP) == "rebalancing"
    queue = next(queue for queue in again.assignment if queue[0] == "orders")
    assert got_before[queue[1]] == [0, 1, 2]
    answer = await rig.fetch("m1", generation=again.generation, positions=[(queue, 3)])
    assert queue[1] not in got(answer)  # it has them in its hands
    await rig.commit({queue: 2}, generation=again.generation)
    assert rig.committed(queue[1]) == 2
    back = await rig.join("m2", holding=set(two.assignment))
    assert back.assignment == two.assignment
    assert rig.coordinator.state(GROUP) == "stable"


async def test_after_a_restart_unclaimed_queues_wait_for_the_former_sessions(rig: Rig) -> None:
    rig.group(order=True)
    await rig.join("m1")
    rig.start()
    rig.clock.now_ms += 500
    rig.coordinator._live.opens()
    joined = await rig.join("m2", holding=set())
    assert joined.assignment == []
    rig.coordinator.leave(GROUP, "m2")
    joined = await rig.join("m3", holding=set())
    assert joined.assignment == [], "one that came and went changes nothing"
    rig.clock.now_ms += SESSION_MS - 500
    rig.look()
    assert (await rig.join("m3", generation=joined.generation)).assignment == []
    rig.clock.now_ms += 500
    rig.look()
    heard = await rig.join("m3", generation=joined.generation)
    assert [queue for queue in heard.assignment if queue[0] == "orders"] == ALL


# 1. A member has commits that the broker lost in a kill; 2. before it joins again an operator
# resets the group; 3. the member would undo the reset.
async def test_a_queue_that_an_operator_moved_since_the_start_is_not_kept(rig: Rig) -> None:
    rig.put(3, 0)
    rig.put(3, 1)
    await rig.join()
    await rig.commit({ALL[0]: 3, ALL[1]: 3})
    rig.start()
    await rig.reset(ResetPlace(offset=1), queue=0)
    joined = await rig.join(holding={*ALL, ("orders", 9)})
    assert sorted(joined.kept) == ALL[1:]
    assert set(ALL) <= set(joined.assignment)
    assert (await rig.join(generation=joined.generation)).kept == ()
    rig.coordinator.leave(GROUP, "m1")
    await rig.coordinator.delete(GROUP)
    again = await rig.join(holding=set(ALL))
    assert again.kept == (), "a group made again under the name is another"


async def test_a_restart_is_forgotten_when_no_former_session_can_be_alive(rig: Rig) -> None:
    rig.group(order=True)
    await rig.join("m1")
    rig.start()
    await rig.join("m2", holding=set())
    rig.clock.now_ms += SESSION_MS_MAX
    rig.look()
    live = rig.coordinator._live
    assert not live._groups_before
    assert not live._inherited
    assert set(ALL) <= set((await rig.join("m3")).assignment)
