"""The blocking calls for groups, delayed messages and dead letters; see their asyncio versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from tidemark.client.commits import Queue
from tidemark.client.dead_letters import (
    PAGE_COUNT,
    REDRIVE_COUNT,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    Redriven,
    To,
)
from tidemark.client.delayed import PAGE_COUNT as DELAYED_PAGE_COUNT
from tidemark.client.delayed import Delayed, DelayedMessage, DelayedPage
from tidemark.client.groups import Group, GroupDetail, Groups, QueueReset, Start
from tidemark.client.sync_subscription import Runs, one_by_one


class SyncGroups:
    """``Groups`` with blocking calls."""

    def __init__(self, run: Runs, groups: Groups) -> None:
        self._run, self._groups = run, groups

    def create(
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
        return self._run(
            self._groups.create(
                group,
                order=order,
                broadcast=broadcast,
                start=start,
                retry_max=retry_max,
                lag_objective_ms=lag_objective_ms,
            )
        )

    def get(self, group: str) -> GroupDetail:
        """One group with its members and its lag."""
        return self._run(self._groups.get(group))

    def delete(self, group: str) -> None:
        """Delete a group and its offsets."""
        self._run(self._groups.delete(group))

    def offsets(self, group: str) -> dict[Queue, int]:
        """Return the committed offset, i.e. the next one to read, per (topic, queue)."""
        return self._run(self._groups.offsets(group))

    def reset(
        self,
        group: str,
        topic: str,
        *,
        to: Start | None = None,
        offset: int | None = None,
        queue: int | None = None,
        dry_run: bool = False,
    ) -> Sequence[QueueReset]:
        """Set the group's offsets in a topic."""
        return self._run(
            self._groups.reset(group, topic, to=to, offset=offset, queue=queue, dry_run=dry_run)
        )

    def list(self) -> list[Group]:
        """All groups, sorted by name."""
        return self._run(self._groups.list())


class SyncDelayed:
    """``Delayed`` with blocking calls."""

    def __init__(self, run: Runs, delayed: Delayed) -> None:
        self._run, self._delayed = run, delayed

    def list(
        self,
        topic: str | None = None,
        *,
        max: int = DELAYED_PAGE_COUNT,
        after: object | None = None,
    ) -> DelayedPage:
        """One page of messages that are not delivered yet."""
        return self._run(self._delayed.list(topic, max=max, after=after))

    def iterate(self, topic: str | None = None) -> Iterator[DelayedMessage]:
        """All waiting messages, page by page."""
        return one_by_one(self._run, self._delayed.iterate(topic))

    def cancel(self, topic: str, unique_id: str) -> int:
        """Cancel the delivery of these messages; return their number."""
        return self._run(self._delayed.cancel(topic, unique_id))


class SyncDeadLetters:
    """``DeadLetters`` with blocking calls."""

    def __init__(self, run: Runs, dead_letters: DeadLetters) -> None:
        self._run, self._dead_letters = run, dead_letters

    def list(
        self, group: str, *, from_offset: int = 0, max: int = PAGE_COUNT, topic: str | None = None
    ) -> DeadLetterPage:
        """One page of a group's dead letters."""
        return self._run(
            self._dead_letters.list(group, from_offset=from_offset, max=max, topic=topic)
        )

    def iterate(self, group: str, *, topic: str | None = None) -> Iterator[DeadLetter]:
        """All dead letters of a group, page by page."""
        return one_by_one(self._run, self._dead_letters.iterate(group, topic=topic))

    def redrive(
        self,
        group: str,
        *,
        to: To = "topic",
        topic: str | None = None,
        key: str | None = None,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        message_id: str | None = None,
        from_offset: int | None = None,
        max: int = REDRIVE_COUNT,
        dry_run: bool = False,
    ) -> Redriven:
        """Send matching dead letters again; each is sent once even if repeated."""
        return self._run(
            self._dead_letters.redrive(
                group,
                to=to,
                topic=topic,
                key=key,
                begin=begin,
                end=end,
                message_id=message_id,
                from_offset=from_offset,
                max=max,
                dry_run=dry_run,
            )
        )
