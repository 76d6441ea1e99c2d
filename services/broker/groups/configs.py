"""The consumer groups and their configuration.

A group is a state record in the log. A group is served once its record is durable; the exception
is a group that is being deleted, which accepts no commits from that moment on. Deletion removes the
offsets: a new group of the same name starts afresh. Retry and dead letter topics are created when
they are first needed, as in RocketMQ.
Step before: the calls on groups, and members that join. Step after: ``state_log``, ``offsets``,
``topics``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Coroutine
from typing import Final, NamedTuple, Protocol, TypeVar

from services.broker.fields import check_name, shown
from services.broker.groups.offsets import Offsets
from services.broker.limits import QUEUES_MAX
from services.broker.schema.groups import GroupConfig as Changes
from services.broker.state.name_locks import NameLocks
from shared.state import records
from shared.state.records import GroupConfig, GroupRecord, TopicConfig
from shared.state.state import BrokerState
from tidemark.errors import BadName, Overloaded, UnknownGroup
from tidemark.formats.nack import DEAD_PREFIX, RETRY_PREFIX
from tidemark.offsets import PhysicalOffset

GROUPS_MAX: Final = 100_000
NAMES_SHOWN_MAX: Final = 20

T = TypeVar("T")


class GroupsLog(Protocol):
    """The writer of state records (implemented by ``state_log.StateLog``)."""

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """Append; the caller goes on in the same step of the loop."""
        ...

    async def durable(self, end: PhysicalOffset) -> None:
        """Return when the log is on disk up to end."""
        ...


class SystemTopics(Protocol):
    """Creates retry and dead letter topics (implemented by ``topics.Topics``)."""

    async def ensure_system(self, name: str, queues: int) -> TopicConfig:
        """Return the topic; create it if it is missing."""
        ...

    async def delete_system(self, name: str) -> None:
        """Delete the topic if it exists."""
        ...


class Put(NamedTuple):
    """The result of ``put``."""

    group: GroupConfig
    created: bool
    """True if the group is new; False if it was changed or had these values already."""


def check_group_name(name: str) -> str:
    """Return the name if a group may have it. Raises BadName, which states the rule."""
    check_name(name, "group")
    if name.startswith((RETRY_PREFIX, DEAD_PREFIX)):
        raise BadName(
            f"group {shown(name)} begins with {RETRY_PREFIX} or {DEAD_PREFIX}, as topics of groups "
            "do. Nothing was changed.",
            "Choose another name.",
            field="group",
        )
    return name


class GroupConfigs:
    """The groups of one broker. Belongs to one loop; changes of a group run one at a time."""

    def __init__(
        self,
        state: BrokerState,
        state_log: GroupsLog,
        topics: SystemTopics,
        offsets: Offsets,
        *,
        flushed: Callable[[], int],
        auto_create: bool = True,
        groups_max: int = GROUPS_MAX,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """state: the served state; only this object changes the groups in it.

        flushed: the durable mark that records carry. auto_create: whether a member that joins, or a
        commit, creates its group. on_change: called after each change.
        """
        self._state = state
        self._log = state_log
        self._topics = topics
        self._offsets = offsets
        self._flushed = flushed
        self._auto_create = auto_create
        self._groups_max = groups_max
        self._on_change = on_change
        self._changing = NameLocks()
        self._making = 0
        """New groups whose records are not on disk yet."""
        self._running: set[asyncio.Task[object]] = set()

    # -- asking ----------------------------------------------------------------------------------

    def find(self, name: str) -> GroupConfig | None:
        """Return the group as it is served; None if it does not exist."""
        return self._state.groups.get(name)

    def get(self, name: str) -> GroupConfig:
        """Return the group. Raises BadName, and UnknownGroup, which names some that exist."""
        group = self._state.groups.get(name)
        if group is None:
            advice = (
                "Correct the name: `tidemark group list` has all. A first member makes its group."
            )
            raise self._unknown(check_group_name(name), advice)
        return group

    def all(self) -> Collection[GroupConfig]:
        """Return a copy of all groups, in the order of their creation; cheap."""
        return list(self._state.groups.values())

    # -- changing --------------------------------------------------------------------------------

    async def put(self, name: str, changes: Changes) -> Put:
        """Create or change a group; durable on return. Repeating a call changes nothing.

        changes: a field that is missing keeps its value or gets its default. Raises BadName,
        Overloaded, and what ``append_state`` raises.
        """
        check_group_name(name)
        return await self._finish(self._put(name, changes))

    async def ensure(self, name: str) -> GroupConfig:
        """Return the group; create it with defaults if it is missing and auto_create is set.

        Raises BadName, UnknownGroup, and what ``put`` raises.
        """
        group = self._state.groups.get(name)
        if group is not None:
            return group
        check_group_name(name)
        if not self._auto_create:
            raise self._unknown(
                name, f"Members make no groups here: make it, `tidemark group create {name}`."
            )
        return (await self._finish(self._put(name, Changes()))).group

    async def delete(self, name: str) -> GroupConfig:
        """Delete a group, its offsets and its retry topic; durable on return.

        A new group of the same name gets no retries of the old one. Dead letters are kept.

        The caller checks that the group has no members. Raises BadName, UnknownGroup, and what
        ``append_state`` raises.
        """
        return await self._finish(self._delete(name))

    async def retry_topic(self, name: str) -> str:
        """Return the topic of a group's retries; create it if it is missing.

        Raises BadName, UnknownGroup, and what ``append_state`` raises.
        """
        group = self.get(name)
        topic = RETRY_PREFIX + name
        await self._topics.ensure_system(topic, min(max(group.retry_queues, 1), QUEUES_MAX))
        return topic

    async def dead_topic(self, name: str) -> str:
        """Return the topic of a group's dead letters; otherwise like ``retry_topic``."""
        self.get(name)
        topic = DEAD_PREFIX + name
        await self._topics.ensure_system(topic, 1)
        return topic

    async def _finish(self, change: Coroutine[object, object, T]) -> T:
        """Run a change to its end even if the caller is cancelled: once its record is appended, the
        served state must follow (``topics`` explains why)."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case the caller was cancelled

    async def _put(self, name: str, changes: Changes) -> Put:
        async with self._changing.holding(name):
            before = self._state.groups.get(name)
            if before is None and len(self._state.groups) + self._making >= self._groups_max:
                raise Overloaded(
                    f"there are {self._groups_max} groups, which is the limit. No group was made.",
                    "Delete unused groups.",
                    limit=self._groups_max,
                )
            if before is None and not self._offsets.of_group(name):
                # A kill can leave the retry topic of a deleted group. A group that has offsets may
                # be one of RocketMQ, which stores no groups but only offsets: then the retries
                # belong to it.
                await self._topics.delete_system(RETRY_PREFIX + name)
            wanted = (before or GroupConfig(name))._replace(**changes.given())
            if wanted != before:
                body = records.encode(GroupRecord(self._flushed(), wanted))
                self._making += before is None
                try:
                    await self._log.durable(await self._log.append_soon(body))
                finally:
                    self._making -= before is None
                self._state.apply(GroupRecord(0, wanted))
                self._on_change()
            return Put(wanted, created=before is None)

    async def _delete(self, name: str) -> GroupConfig:
        async with self._changing.holding(name):
            group = self.get(name)
            gone = group._replace(deleted=True)
            end = await self._log.append_soon(records.encode(GroupRecord(self._flushed(), gone)))
            # In the same step: a commit that arrives during the flush then finds no group, and no
            # earlier commit is written after the deletion.
            self._offsets.remove_group(name)
            self._state.apply(GroupRecord(0, gone))
            self._on_change()
            await self._log.durable(end)
            # Last, because a crash between the two must not leave a group without its retry topic.
            # The retries that it leaves are deleted when a group of that name is created.
            await self._topics.delete_system(RETRY_PREFIX + name)
        return gone

    def _unknown(self, name: str, advice: str) -> UnknownGroup:
        existing = heapq.nsmallest(NAMES_SHOWN_MAX, self._state.groups)
        listed = ", ".join(existing) or "none"
        more = len(self._state.groups) - NAMES_SHOWN_MAX
        return UnknownGroup(
            f"there is no group {name!r}; groups: {listed}{f' and {more} more' * (more > 0)}.",
            advice,
            group=name,
            groups=existing,
        )
