"""Calls for consumer groups, their dead letters and delayed messages in a cluster.

Every broker group has its own offsets, retries, dead letters and delayed messages. With one broker,
the calls are its own (``groups``, ``dead_letters``, ``delayed``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import TypeVar, cast

from tidemark import errors
from tidemark.client import dead_letters, delayed
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.checks import parse_queue
from tidemark.client.cluster import Cluster
from tidemark.client.dead_letters import DeadLetter, DeadLetterPage, LetterOffset, Redriven, To
from tidemark.client.delayed import DelayedMessage, DelayedPage
from tidemark.client.fan_out import (
    all_groups,
    answered,
    asked_all,
    at_all,
    one_detail,
    one_group,
)
from tidemark.client.groups import Group, GroupDetail, QueueReset, Start
from tidemark.client.queue_names import Queue, QueueName

Page = TypeVar("Page", DeadLetterPage, Redriven)


class ClusterGroups:
    """The administrative calls for groups. Raises UnknownGroup if the group does not exist.

    In a cluster, ``PartialFailure`` of ``get``, ``offsets`` and ``list`` has the answer of the
    broker groups that did not fail.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        group: str,
        *,
        order: bool | None = None,
        broadcast: bool | None = None,
        start: Start | None = None,
        retry_max: int | None = None,
        lag_objective_ms: int | None = None,
    ) -> Group:
        """Create a group, or change the given settings of an existing one."""
        found = await at_all(
            await self._cluster.groups(changes=True),
            lambda at: at.groups.create(
                group,
                order=order,
                broadcast=broadcast,
                start=start,
                retry_max=retry_max,
                lag_objective_ms=lag_objective_ms,
            ),
        )
        return one_group(found)

    async def get(self, group: str) -> GroupDetail:
        """One group with its members and its lag."""
        found, failure = await asked_all(
            await self._cluster.groups(),
            lambda at: at.groups.get(group),
            absent=errors.UnknownGroup,
        )
        return answered(one_detail(found, failure.errors if failure else ()), failure)

    async def delete(self, group: str) -> None:
        """Delete a group and its offsets. Raises GroupInUse while it has members."""
        await at_all(
            await self._cluster.groups(changes=True),
            lambda at: at.groups.delete(group),
            absent=errors.UnknownGroup,
        )

    async def offsets(self, group: str) -> dict[Queue, int]:
        """Return the committed offset, i.e. the next one to read, per (topic, queue)."""
        found, failure = await asked_all(
            await self._cluster.groups(),
            lambda at: at.groups.offsets(group),
            absent=errors.UnknownGroup,
        )
        offsets = {queue: offset for each in found.values() for queue, offset in each.items()}
        return answered(offsets, failure)

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: Start | None = None,
        offset: int | None = None,
        queue: QueueName | None = None,
        dry_run: bool = False,
    ) -> list[QueueReset]:
        """Set the group's offsets in a topic; give either ``to`` or ``offset``.

        to: ``first``, ``last``, or a time, which means the first message stored at or after it.
        queue: None for all. dry_run: only return what would be done. Raises GroupInUse while the
        group has members.
        """
        among = [parse_queue(queue)[0]] if isinstance(queue, str) else None
        if await self._cluster.only() is not None:
            groups = await self._cluster.groups(among=among, changes=True)
        else:
            groups = await self._cluster.groups(topic, among=among, changes=True)
        found = await at_all(
            groups,
            lambda at: at.groups.reset(
                group, topic, to=to, offset=offset, queue=queue, dry_run=dry_run
            ),
            absent=errors.UnknownGroup,
        )
        return [move for each in found.values() for move in each]

    async def list(self) -> list[Group]:
        """All groups, sorted by name."""
        found, failure = await asked_all(await self._cluster.groups(), lambda at: at.groups.list())
        return answered(all_groups(found), failure)


class ClusterDelayed:
    """The calls for delayed messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self,
        topic: str | None = None,
        *,
        max: int = delayed.PAGE_COUNT,
        after: object | None = None,
    ) -> DelayedPage:
        """One page of waiting messages of one topic or of all. after: ``next`` of the last page.

        In a cluster, the pages of one broker group come after those of another, and ``pending`` is
        not known.
        """
        alone = await self._cluster.only()
        if alone is not None:
            return await alone.delayed.list(topic, max=max, after=after)
        groups = await self._cluster.groups()
        index, inner = after if isinstance(after, tuple) else (0, None)
        if index >= len(groups):
            return DelayedPage([], None, None)
        at = groups[index]
        page = await at.delayed.list(topic, max=max, after=inner)
        following: object | None = None
        if page.next is not None:
            following = (index, page.next)
        elif index + 1 < len(groups):
            following = (index + 1, None)
        messages = [each._replace(queue=at.names.name(int(each.queue))) for each in page.messages]
        return DelayedPage(messages, None, following)

    async def iterate(self, topic: str | None = None) -> AsyncGenerator[DelayedMessage, None]:
        """All waiting messages, page by page."""
        after: object | None = None
        while True:
            page = await self.list(topic, after=after)
            for message in page.messages:
                yield message
            if page.next is None:
                return
            after = page.next

    async def cancel(self, topic: str, unique_id: str) -> int:
        """Cancel the delivery of these messages; return their number.

        Raises UnknownDelayed if none waits. If the answer is lost, the call is repeated, and the
        messages that the first attempt cancelled count. Raises Unreachable if the outcome cannot be
        determined any more because the delivery time has passed meanwhile.
        """
        found = await at_all(
            await self._cluster.groups(changes=True),
            lambda at: at.delayed.cancel(topic, unique_id),
            absent=errors.UnknownDelayed,
        )
        return sum(found.values())


class ClusterDeadLetters:
    """The calls for dead letters.

    In a cluster, an offset is written as ``g0/120``: the letters of one broker group come after
    those of another.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self,
        group: str,
        *,
        from_offset: LetterOffset = 0,
        max: int = dead_letters.PAGE_COUNT,
        topic: str | None = None,
    ) -> DeadLetterPage:
        """One page of a group's dead letters. topic: only those of this original topic."""

        async def page_of(at: BrokerGroup, offset: int | None) -> DeadLetterPage:
            page = await at.dead_letters.list(group, from_offset=offset or 0, max=max, topic=topic)
            name = at.names.broker_group
            if name is None:
                return page
            return page._replace(
                messages=[
                    each._replace(facts={**each.facts, "broker_group": name})
                    for each in page.messages
                ]
            )

        empty = DeadLetterPage([], 0, 0, True)
        return await self._paged(from_offset, page_of, empty)

    async def iterate(
        self, group: str, *, topic: str | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """All dead letters of a group, page by page."""
        offset: LetterOffset = 0
        done = False
        while not done:
            page = await self.list(group, from_offset=offset, topic=topic)
            for letter in page.messages:
                yield letter
            done = page.done or page.next_offset == offset
            offset = page.next_offset

    async def redrive(
        self,
        group: str,
        *,
        to: To = "topic",
        topic: str | None = None,
        key: str | None = None,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        message_id: str | None = None,
        from_offset: LetterOffset | None = None,
        max: int = dead_letters.REDRIVE_COUNT,
        dry_run: bool = False,
    ) -> Redriven:
        """Send up to ``max`` matching dead letters again; each is sent once even if repeated.

        to: ``topic`` sends new messages to all groups of the topic, ``group`` to this group alone.
        begin, end: range of the time of death. Call again with ``from_offset=next_offset`` until
        ``done``. A letter stays in its broker group.
        """

        async def redrive_at(at: BrokerGroup, offset: int | None) -> Redriven:
            return await at.dead_letters.redrive(
                group,
                to=to,
                topic=topic,
                key=key,
                begin=begin,
                end=end,
                message_id=message_id,
                from_offset=offset,
                max=max,
                dry_run=dry_run,
            )

        empty = Redriven(0, 0, 0, 0, 0, 0, True, {"refusals": []})
        return await self._paged(from_offset, redrive_at, empty, changes=True)

    async def _paged(
        self,
        from_offset: LetterOffset | None,
        call: Callable[[BrokerGroup, int | None], Awaitable[Page]],
        empty: Page,
        *,
        changes: bool = False,
    ) -> Page:
        """Make a call at the broker group of an offset; let ``next_offset`` continue at the next
        one. Broker groups in which the group does not exist are skipped.

        empty: the last page if the group does not exist at the last ones.
        """
        groups = await self._cluster.groups(changes=changes)
        index, offset = 0, from_offset
        is_continued = False
        if isinstance(from_offset, str):
            name, offset = parse_queue(from_offset)
            (here,) = await self._cluster.groups(among=[name])
            index = groups.index(here)
            is_continued = index > 0  # one before it has answered
        while True:
            at, is_last = groups[index], index + 1 == len(groups)
            index += 1
            try:
                page = await call(at, cast(int | None, offset))
            except errors.UnknownGroup:
                if is_last and is_continued:
                    return empty._replace(next_offset=f"{at.names.broker_group}/0")
                if is_last:
                    raise
                offset = None
                continue
            if at.names.broker_group is None:
                return page
            if page.done and not is_last:
                following = f"{groups[index].names.broker_group}/0"
                return page._replace(next_offset=following, done=False)
            return page._replace(next_offset=f"{at.names.broker_group}/{page.next_offset}")
