"""Groups as the API shows them: configuration, members, and lag per queue, topic and group.

A view combines the members and assignments of the coordinator, the committed offsets and the
contents of the store. The rules of the numbers are in ``lag``. The numbers of one queue are read
between two awaits, so that they are from the same instant; between queues other requests run.
Step before: ``group_view_calls``. Step after: ``GET /v1/groups/{group}``, ``tidemark lag``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.broker.groups.lag import Lag, Reason, Total, nothing_known, total
from services.broker.groups.lag_inputs import (
    OBJECTIVE_MS,
    Committed,
    Configs,
    Expiring,
    Member,
    Members,
    queues_read,
)
from services.broker.groups.queue_stats import Bounds, Budget, QueueStats
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from shared.state.values import GroupConfig
from tidemark.clock import Clock
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.offsets import Queue

UNITS_MAX: Final = 1 << 20
"""Unread messages whose bytes are added up for one answer: 40 ms of work, in slices."""


class Aside(NamedTuple):
    """Numbers computed once for all queues of a group, because each computation visits them all."""

    budget: Budget
    in_flight: Mapping[Queue, int]
    expiring: Mapping[Queue, int]

    def added_to(self, lag: Lag, queue: Queue) -> Lag:
        """Return a lag with the messages in flight, and those that a deletion would remove.

        Both are at most the unread ones, because some may have been committed since they were
        computed. Messages that were lost before they were handed out are not in flight.
        """
        if lag.messages is None:
            return lag
        expiring = min(self.expiring.get(queue, 0), lag.messages)
        in_flight = self.in_flight.get(queue)
        if in_flight is None:
            reasons = {**lag.reasons, "in_flight": Reason.NOT_TRACKED}
            return lag._replace(expiring=expiring, reasons=reasons)
        return lag._replace(expiring=expiring).with_in_flight(in_flight)


class QueueView(NamedTuple):
    """One queue of a group."""

    queue: int
    member: str | None
    committed: int | None
    bounds: Bounds | None
    """None if the topic does not exist."""
    lag: Lag

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as the API shows them."""
        return {
            "queue": self.queue,
            "member": self.member,
            "committed": self.committed,
            "min_offset": None if self.bounds is None else self.bounds.min_offset,
            "max_offset": None if self.bounds is None else self.bounds.max_offset,
            **self.lag.as_dict(),
        }


class GroupViews:
    """Builds the views of groups."""

    def __init__(
        self,
        configs: Configs,
        committed: Committed,
        members: Members,
        queue_stats: QueueStats,
        clock: Clock,
        *,
        expiring: Expiring,
    ) -> None:
        self._configs = configs
        self._committed = committed
        self._members = members
        self._queue_stats = queue_stats
        self._clock = clock
        self._expiring = expiring

    async def one(self, name: str) -> dict[str, Any]:
        """Return one group with its members and its lag. Raises UnknownGroup."""
        config = self._configs.get(name)
        members = self._members.members(name)
        subscribed = {each.topic for member in members for each in member.subscriptions}
        objective_s = (config.lag_objective_ms or OBJECTIVE_MS) / 1000
        aside = Aside(Budget(UNITS_MAX), self._members.in_flight(name), self._expiring(name))
        topics: list[dict[str, Any]] = []
        everything: list[Lag] = []
        slicer = TimeSlicer(self._clock, Pauses())
        for topic, queues in sorted(
            queues_read(config, subscribed, self._committed, self._queue_stats).items()
        ):
            views = await self._queues(config, topic, queues, aside, slicer)
            lags = [view.lag for view in views]
            everything += lags
            is_retry = topic == RETRY_PREFIX + name
            topics.append(
                {
                    "topic": topic,
                    "kind": "retry" if is_retry else "main",
                    "subscribed": topic in subscribed or (is_retry and bool(members)),
                    "lag": self._total(config, lags, objective_s).as_dict(),
                    "queues": [view.as_dict() for view in views],
                }
            )
        return {
            **as_map(config),
            "state": self._members.state(name),
            "generation": self._members.generation(name),
            "at_ms": self._clock.wall_ms(),
            "members": [member_map(member) for member in members],
            "lag": self._total(config, everything, objective_s).as_dict(),
            "topics": topics,
        }

    def _total(self, config: GroupConfig, lags: Iterable[Lag], objective_s: float) -> Total:
        otherwise = Reason.BROADCASTING if config.broadcast else Reason.NEVER_COMMITTED
        return total(lags, objective_s, otherwise=otherwise)

    async def _queues(
        self,
        config: GroupConfig,
        topic: str,
        queues: Sequence[int],
        aside: Aside,
        slicer: TimeSlicer,
    ) -> list[QueueView]:
        """Return all queues of a topic. The offsets are read first, because they change; the bytes
        between two offsets do not, so they are added up afterwards."""
        views: list[QueueView] = []
        for queue in queues:
            if slicer.over:
                await slicer.pass_on()
            view = self._view(config, topic, queue)
            views.append(view._replace(lag=aside.added_to(view.lag, (topic, queue))))
        return [await self._with_bytes(topic, view, aside.budget) for view in views]

    def _view(self, config: GroupConfig, topic: str, queue: int) -> QueueView:
        """Read one queue in one step; the committed offset first: see ``lag``."""
        committed = self._committed.get(config.name, topic, queue)
        owner = self._members.owner(config.name, topic, queue)
        if not self._queue_stats.is_known(topic):
            return QueueView(queue, owner, committed, None, nothing_known(Reason.UNKNOWN_TOPIC))
        bounds = self._queue_stats.bounds(topic, queue)
        if config.broadcast:
            return QueueView(queue, None, None, bounds, nothing_known(Reason.BROADCASTING))
        lag = self._queue_stats.lag(topic, queue, committed, bounds, self._clock.wall_ms())
        return QueueView(queue, owner, committed, bounds, lag)

    async def _with_bytes(self, topic: str, view: QueueView, budget: Budget) -> QueueView:
        lag, bounds = view.lag, view.bounds
        if lag.messages is None or bounds is None:
            return view
        first, end = bounds.max_offset - lag.messages, bounds.max_offset
        size, reason = await self._queue_stats.unread_bytes(topic, view.queue, first, end, budget)
        reasons = {**lag.reasons, **({} if reason is None else {"bytes": reason})}
        return view._replace(lag=lag._replace(bytes=size, reasons=reasons))


def as_map(config: GroupConfig) -> dict[str, Any]:
    """Return a group's configuration as the API shows it."""
    return {
        "group": config.name,
        "order": config.order,
        "broadcast": config.broadcast,
        "start": config.start,
        "retry_max": config.retry_max,
        "retry_queues": config.retry_queues,
        "lag_objective_ms": config.lag_objective_ms,
        "consume_enabled": config.consume_enabled,
    }


def member_map(member: Member) -> dict[str, Any]:
    """Return a member as the API shows it."""
    return {
        "member": member.member,
        "subscriptions": [
            {"topic": each.topic, "tags": each.tags} for each in member.subscriptions
        ],
        "assignment": [[topic, queue] for topic, queue in member.assignment],
        "session_ms": member.session_ms,
        "last_seen_ms": member.last_seen_ms,
    }
