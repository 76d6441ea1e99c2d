"""The look that scrapes share: the log's times, how far topics and queues go, where groups stand.

A look begins when somebody scrapes and the last one is old enough; nothing is done while nobody
does. One at a time, in slices, and so seldom that a fifth of the loop's time at most goes into it:
a look whose slices take 0.5 s serves for 2.5 s. A scrape waits for the look that it began, but not
longer than ``WAIT_S``: then it shows the one before. Each says when it began and how long it took.

Of one instant are: the positions of the log, read when the look begins; and of each queue its
bounds and one group's offset. What the log has got since the look began is not outstanding in it
(``oldest``), so its times add up, however long the look takes.
A look that fails takes nothing else of a scrape with it: what the one before found is shown, and
when that was.
Before: a scrape. After: ``found_rows`` writes tables, the registry text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from services.broker.groups.found_rows import Found, Rows
from services.broker.groups.group_pass import Memory, Pass
from services.broker.groups.queue_room import Lagging, Room
from services.broker.groups.sources import Watched
from services.broker.log.log_times import LogTimes
from shared.runtime.give_way import GiveWay, never
from shared.runtime.paced_log import PacedLog
from shared.runtime.turns import Turns
from tidemark.clock import Clock

AGAIN_S: Final = 1.0
"""No look begins sooner after the one before."""
REST: Final = 4.0
"""Nor before so many times as long as its slices took have passed since it ended."""
WAIT_S: Final = 0.5
"""A scrape waits so long for a look."""


class Looks:
    """The looks of one broker. For the event loop."""

    def __init__(self, clock: Clock, queue_series_max: int) -> None:
        """queue_series_max: series by queue of all families together; 0: none."""
        self._clock = clock
        self._queue_series_max = queue_series_max
        self._times: Callable[[], LogTimes | None] | None = None
        self._watched: Watched | None = None
        self._role = 0
        """Grows with every change of what is looked at."""
        self._memory: Memory = {}
        self._lagging = Lagging()
        self._room: Room | None = None
        self._running: asyncio.Task[None] | None = None
        self._next_at_s = float("-inf")
        self._paced = PacedLog(clock.monotonic)
        self.is_awaited: Callable[[], bool] = never
        """Whether a request is in hand that a look gives way to."""
        self.found: Found | None = None
        """By the last look that has ended; None: there was none since what is looked at changed."""

    def connect(self, times: Callable[[], LogTimes | None], watched: Watched | None) -> None:
        """From now on look here. watched: None where another node appends: of its groups and
        queues this one does not know what is up to date."""
        self.disconnect()
        self._times, self._watched = times, watched

    def disconnect(self) -> None:
        """There is nothing to look at any more."""
        self._times = self._watched = self.found = self._room = None
        self._role += 1
        self._memory, self._lagging = {}, Lagging()
        self._next_at_s = float("-inf")

    async def refresh(self) -> None:
        """Look, if the last look is old; scrapes at the same time share one. Waits for WAIT_S at
        most."""
        if self._times is None:
            return
        if self._running is None or self._running.done():
            if self._clock.monotonic() < self._next_at_s:
                return
            self._running = asyncio.create_task(self._look_or_say(), name="look")
        await asyncio.wait({self._running}, timeout=WAIT_S)

    async def _look_or_say(self) -> None:
        role = self._role
        try:
            await self._look()
        except Exception as error:  # noqa: BLE001 - said, and shown by the age of what was found
            if role != self._role:
                return  # its files were closed meanwhile: nobody asks for them any more
            self._memory = {}  # what has moved is forgotten with this look: all is looked at anew
            self._next_at_s = self._clock.monotonic() + AGAIN_S
            self._paced.defect(error, "topics and groups could not be looked at for their figures")

    async def _look(self) -> None:
        assert self._times is not None, "refresh has seen to that"
        role, watched, clock = self._role, self._watched, self._clock
        began_ms, began_s = clock.wall_ms(), clock.monotonic()
        rows = Rows(self._times())
        room, busy_s = None, 0.0
        if watched is not None:
            turns = Turns(clock, GiveWay(self.is_awaited), watched.extents.begin)
            room = await self._look_at_groups(watched, rows, turns, role)
            busy_s = turns.busy_s
        ended_s = clock.monotonic()
        if role != self._role:
            return  # what was looked at is another's by now
        self._room = room
        self.found = rows.found(began_ms, ended_s - began_s)
        self._next_at_s = max(began_s + AGAIN_S, ended_s + REST * busy_s)

    async def _look_at_groups(
        self, watched: Watched, rows: Rows, turns: Turns, role: int
    ) -> Room | None:
        extents = watched.extents
        moved = await extents.follow(turns)
        committed = watched.committed.take_moved()
        pass_ = Pass(watched, self._memory, turns, committed=committed, moved=moved)
        room = Room(self._queue_series_max, self._room) if self._queue_series_max else None
        now_s = self._clock.monotonic()
        for config in watched.configs.all():
            if turns.over:
                await turns.pass_on()
            count = watched.members.member_count(config.name)
            seen = await pass_.group(config, count)
            rows.group(config, count, seen)
            for each in seen if room is not None else ():
                assert room is not None
                found = each.pair
                rank = self._lagging.rank(
                    each.labels,
                    has_lag=bool(found.messages),
                    subscribed=found.subscribed,
                    now_s=now_s,
                )
                room.offer(each.labels, len(each.queues), rank)
        if role == self._role:
            self._memory = pass_.memory
            await turns.through(self._lagging.forget_gone(now_s))
        await rows.topics(extents, turns, room)
        if room is not None:
            await turns.through(room.fill())
        await rows.queues(extents, turns, room)
        return room
