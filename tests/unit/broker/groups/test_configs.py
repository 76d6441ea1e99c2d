"""Groups: created, changed and deleted in the log; their topics created when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from services.broker.groups.configs import GroupConfigs, check_group_name
from services.broker.groups.offsets import Offsets
from services.broker.schema.groups import GroupConfig as GroupChanges
from services.broker.schema.parsing import parsed
from shared.state import records
from shared.state.records import GroupConfig, TopicConfig
from shared.state.state import BrokerState
from tidemark.errors import BadName, BadRequest, Overloaded, UnknownGroup
from tidemark.offsets import PhysicalOffset


class Log:
    def __init__(self) -> None:
        self.state = BrokerState()
        self.bodies: list[bytes] = []
        self.appended = asyncio.Event()
        self.flush = asyncio.Event()
        self.flush.set()

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        for body in bodies:
            self.bodies.append(body)
            self.state.apply(records.decode(body))
        self.appended.set()
        return PhysicalOffset(len(self.bodies))

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        return self.append_offsets_now([body])

    async def file_made(self) -> None:
        raise AssertionError("there is always a file")

    async def durable(self, end: PhysicalOffset) -> None:
        await self.flush.wait()


class MadeTopics:
    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        self.left: set[str] = set()
        self.deleted: list[str] = []
        self.failure: Exception | None = None

    async def ensure_system(self, name: str, queues: int) -> TopicConfig:
        self.made.append((name, queues))
        self.left.add(name)
        return TopicConfig(name, queues, queues)

    async def delete_system(self, name: str) -> None:
        if self.failure is not None:
            raise self.failure
        if name in self.left:
            self.left.discard(name)
            self.deleted.append(name)


class KilledHere(Exception):
    """The process is killed here: nothing after this runs."""


class Node:
    def __init__(self, *, auto_create: bool = True, groups_max: int = 5) -> None:
        self.log, self.topics, self.state = Log(), MadeTopics(), BrokerState()
        self.changed = asyncio.Event()
        self.offsets = Offsets(self.state, self.log, flushed=lambda: 0)
        self.configs = GroupConfigs(
            self.state,
            self.log,
            self.topics,
            self.offsets,
            flushed=lambda: 0,
            auto_create=auto_create,
            groups_max=groups_max,
            on_change=lambda: self.changed.set(),
        )


async def test_a_group_is_made_changed_and_in_the_log() -> None:
    node = Node()
    put = await node.configs.put("g", GroupChanges(order=True, start=1_700_000_000_000))
    assert put == (GroupConfig("g", order=True, start=1_700_000_000_000), True)
    put = await node.configs.put("g", GroupChanges(retry_max=3, lag_objective_ms=60_000))
    assert not put.created
    assert put.group == node.configs.get("g")
    assert node.log.state.groups == {"g": put.group}
    written = len(node.log.bodies)
    assert (await node.configs.put("g", parsed({"retry_max": 3}, GroupChanges))).group == put.group
    assert (await node.configs.put("g", parsed({}, GroupChanges))).group == put.group
    assert len(node.log.bodies) == written
    assert list(node.configs.all()) == [put.group]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"orderly": True}, "orderly"),
        ({"order": 1}, "order"),
        ({"broadcast": "yes"}, "broadcast"),
        ({"start": "middle"}, "start"),
        ({"start": True}, "start"),
        ({"start": -1}, "start"),
        ({"retry_max": -1}, "retry_max"),
        ({"retry_queues": 0}, "retry_queues"),
        ({"lag_objective_ms": 0}, "lag_objective_ms"),
    ],
)
async def test_a_wrong_setting_is_named_and_nothing_made(
    changes: dict[str, object], named: str
) -> None:
    node = Node()
    with pytest.raises(BadRequest, match=named):
        await node.configs.put("g", parsed(changes, GroupChanges))
    assert node.configs.find("g") is None


@pytest.mark.parametrize("name", ["", "a b", "g@h", "x" * 128, "%RETRY%g", "%DLQ%g"])
def test_a_name_that_no_group_may_have_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        check_group_name(name)


async def test_reading_or_deleting_an_unknown_group_does_not_advise_to_create_it() -> None:
    node = Node()
    for call in (node.configs.delete("g"), asyncio.to_thread(node.configs.get, "g")):
        with pytest.raises(UnknownGroup) as caught:
            await call
        assert "group list" in caught.value.advice
        assert "create" not in caught.value.advice


async def test_a_missing_group_is_made_on_first_use_only_if_allowed() -> None:
    node = Node()
    first, second = await asyncio.gather(node.configs.ensure("g"), node.configs.ensure("g"))
    assert first == second == GroupConfig("g")
    assert len(node.log.bodies) == 1
    strict = Node(auto_create=False)
    with pytest.raises(UnknownGroup, match="no group 'g'") as caught:
        await strict.configs.ensure("g")
    assert "tidemark group create g" in caught.value.advice
    with pytest.raises(UnknownGroup):
        await strict.configs.retry_topic("g")


async def test_groups_beyond_the_limit_are_refused() -> None:
    node = Node(groups_max=2)
    await node.configs.ensure("a")
    await node.configs.ensure("b")
    with pytest.raises(Overloaded):
        await node.configs.ensure("c")
    await node.configs.put("a", parsed({"order": True}, GroupChanges))


async def test_a_deleted_group_loses_its_offsets_and_takes_no_commit_meanwhile() -> None:
    node = Node()
    await node.configs.ensure("g")
    await node.configs.retry_topic("g")
    node.offsets.accept("g", {("t", 0): 5})
    await node.offsets.finish()
    node.offsets.accept("g", {("t", 0): 6})
    node.log.flush.clear()
    deleting = asyncio.create_task(node.configs.delete("g"))
    node.log.appended.clear()
    await node.log.appended.wait()
    assert node.configs.find("g") is None
    with pytest.raises(UnknownGroup):
        node.configs.get("g")
    node.log.flush.set()
    assert (await deleting).name == "g"
    await node.offsets.finish()
    assert node.log.state.groups == {}
    assert node.log.state.offsets == {}
    # Otherwise a new group of that name would begin with what the old one had failed on.
    assert node.topics.deleted == ["%RETRY%g"]


async def test_a_new_group_gets_no_retries_that_a_kill_left_of_a_deleted_one() -> None:
    """1. A group is deleted, and its record is in the log; 2. a kill, before its retry topic is;
    3. a group of that name is made: it began with what the old one had failed on."""
    node = Node()
    await node.configs.ensure("g")
    await node.configs.retry_topic("g")
    node.topics.failure = KilledHere()
    with pytest.raises(KilledHere):
        await node.configs.delete("g")
    assert node.configs.find("g") is None
    # While they cannot be deleted no group is made that would read them.
    with pytest.raises(KilledHere):
        await node.configs.ensure("g")
    assert node.configs.find("g") is None
    assert node.log.state.groups == {}
    node.topics.failure = None
    await node.configs.ensure("g")
    assert node.topics.deleted == ["%RETRY%g"]
    await node.configs.retry_topic("g")
    await node.configs.put("g", parsed({"order": True}, GroupChanges))
    assert node.topics.left == {"%RETRY%g"}, "a change deletes nothing"


async def test_a_group_that_rocketmq_left_by_its_offsets_alone_keeps_its_retries() -> None:
    node = Node()
    node.topics.left.add("%RETRY%g")
    node.state.offsets["g"] = {("%RETRY%g", 0): 3}
    await node.configs.ensure("g")
    assert node.topics.left == {"%RETRY%g"}


async def test_a_caller_that_hangs_up_does_not_stop_a_change_half_way() -> None:
    node = Node()
    node.log.flush.clear()
    putting = asyncio.create_task(node.configs.put("g", parsed({}, GroupChanges)))
    await node.log.appended.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    node.log.flush.set()
    await node.changed.wait()
    assert node.configs.find("g") == GroupConfig("g")


async def test_the_topics_of_a_group_are_named_and_made_as_rocketmq_does() -> None:
    node = Node()
    await node.configs.put("g", parsed({"retry_queues": 3}, GroupChanges))
    assert await node.configs.retry_topic("g") == "%RETRY%g"
    assert await node.configs.dead_topic("g") == "%DLQ%g"
    assert node.topics.made == [("%RETRY%g", 3), ("%DLQ%g", 1)]
