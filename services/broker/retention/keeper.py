"""The retention task: deletes log files, warns groups before that, and shows the next deletion.

The rules are in ``retention``, the order of a deletion in ``deletion``, the disk in ``fullness``;
this module combines them with the log's files, the clock and the loop. A run deletes at most
``FILES_PER_RUN_MAX`` files, considers after each what it freed, then measures again. After a run
for a full disk, the next one waits until reput has unmapped the files. Until then their blocks are
not free, and too many files would be deleted.

Step before: ``preallocator`` creates files. Step after: reput follows MIN; ``retention_calls``
shows the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from services.broker.log.log_context import LogContext
from services.broker.retention.deletion import Deletion
from services.broker.retention.expiry import Expiry
from services.broker.retention.fullness import Fullness
from services.broker.retention.retention import (
    FILES_PER_RUN_MAX,
    HOUR_MS,
    Held,
    LogFile,
    Now,
    Pressure,
    Stay,
    Verdict,
    Why,
    goes_by_age_at,
    judge_oldest,
)
from services.broker.retention_policy import HOURS
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
SETTLE_INTERVAL_S: Final = 0.1
"""Check interval while members process deleted messages; about the time between two commits."""
LET_GO_INTERVAL_S: Final = 0.02
"""Interval while waiting for reput, which follows within milliseconds."""
LET_GO_MAX_S: Final = 5.0
"""Maximum wait for reput, which may be down."""
WARN_INTERVAL_S: Final = 10.0
"""Interval between checks of the groups while a deletion is near."""
CHECK_INTERVAL_S: Final = 60.0
"""Interval between checks of the groups otherwise."""
FILES_LISTED_MAX: Final = FILES_PER_RUN_MAX + 1


class Files(NamedTuple):
    """The log's files in use."""

    oldest: Sequence[LogFile]
    """All files, or the first ``FILES_LISTED_MAX``."""
    in_use: int


class Retention:
    """Keeps the log within its bounds. One task runs ``run``."""

    def __init__(
        self,
        log_context: LogContext,
        deletion: Deletion,
        expiry: Expiry,
        *,
        snapshot_start: Callable[[], int | None],
        utc_offset_s: Callable[[int], int],
        has_hiding_topics: Callable[[], bool],
        on_names_gone: Callable[[], None],
    ) -> None:
        """snapshot_start: returns the start of the newest complete snapshot on disk. utc_offset_s:
        maps the wall clock in ms to local time minus UTC. has_hiding_topics: returns whether any
        topic has its own retention. on_names_gone: called when reput has removed queue and index
        files, which readers may still have mapped."""
        config, store = log_context.config, log_context.store.directory
        self._follows_files = not log_context.appends
        # A slave deletes what its master has deleted; any other node decides itself.
        self._master_from = None if log_context.appends else log_context.master_from
        self._disk = store.disk
        self._positions = log_context.positions
        self._log_files = deletion.files
        self._deletion = deletion
        self._expiry = expiry
        self._clock = log_context.clock
        self._policy = config.retention_policy
        self._snapshot_start = snapshot_start
        self._confirmed = log_context.confirmed
        self._utc_offset_s = utc_offset_s
        self._warn_ms = config.retention_warn_ms
        self._has_hiding_topics = has_hiding_topics
        self._on_names_gone = on_names_gone
        self.fullness = Fullness(log_context)
        self._files = Files([], 0)
        self._made, self._wake = log_context.files.made, asyncio.Event()
        self._let_go_by = 0.0
        self._warn_at = self._hiding_at = float("-inf")
        self._cleaned = self._positions.get(Slot.CLEANED_MIN)
        self._is_stuck = False
        self.deleted: Counter[Why] = Counter()
        """Files deleted since the start."""

    # -- running ----------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Measure the disk and delete files, every second and whenever files were made."""
        async with asyncio.TaskGroup() as tasks:
            stopper = tasks.create_task(self._wake_on(stop))
            watching = tasks.create_task(self._watch(stop))
            await self._keep(stop)
            await watching
            stopper.cancel()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._made.set()
        self._wake.set()

    async def _watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._made.clear()
            await self.fullness.sample()
            if self.fullness.pressure >= Pressure.FORCED:
                self._wake.set()
            await _wait(self._made, INTERVAL_S)

    async def _keep(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._wake.clear()
            await self.judge(stop)
            await _wait(self._wake, self._pause_s)

    @property
    def _pause_s(self) -> float:
        if self._clock.monotonic() < self._let_go_by:
            return LET_GO_INTERVAL_S
        return SETTLE_INTERVAL_S if self._expiry.is_waiting else INTERVAL_S

    async def judge(self, stop: asyncio.Event) -> None:
        """Run once: count losses, delete files, warn groups."""
        self._expiry.settle()
        self._follow_reput()
        await self.fullness.sample()
        self._files = await asyncio.to_thread(self._list_files)
        try:
            await self._remove_leftovers()
            await self._delete(stop)
            self._is_stuck = False
        except (OSError, StoreError) as error:
            if not self._is_stuck:
                self._is_stuck = True
                log.error(
                    "a log file cannot be removed; it is tried again every second",
                    extra={"event": "log-file-stays", "detail": str(error)},
                )
        await self._warn()
        await self._apply_topic_retention()

    def _follow_reput(self) -> None:
        """Refresh readers after reput has removed files: a mapped file keeps its disk blocks."""
        cleaned = self._positions.get(Slot.CLEANED_MIN)
        if cleaned != self._cleaned:
            self._cleaned = cleaned
            self._on_names_gone()
        if self._positions.get(Slot.RELEASED_MIN) >= self._positions.get(Slot.MIN):
            self._let_go_by = 0.0

    # -- files ------------------------------------------------------------------------------------

    def _list_files(self) -> Files:
        """List the log's files. Blocks."""
        files, log_min = self._log_files, self._positions.get(Slot.MIN)
        if self._follows_files:
            files.refresh()
        # Files below the minimum do not count, even if they are not removed yet.
        starts = [start for start in files.starts if start >= log_min]
        found = []
        for start in starts[:FILES_LISTED_MAX]:
            facts = self._disk.stat(files.path(start))
            if facts is not None:
                found.append(LogFile(start, start + files.file_size, facts.modified_ms))
        return Files(found, len(starts))

    def _judge(self, files: Files, pressure: Pressure) -> Verdict:
        held = Held(
            self._positions.get(Slot.DISPATCHED_DURABLE),
            self._confirmed(),
            self._snapshot_start(),
            self._positions.get(Slot.NEEDED_FROM),
            by_master=self._master_from is not None,
            master_from=None if self._master_from is None else self._master_from(),
        )
        return judge_oldest(files.oldest, held, self._policy, self._now(files, pressure))

    def _now(self, files: Files, pressure: Pressure) -> Now:
        wall_ms = self._clock.wall_ms()
        local_ms = wall_ms + self._utc_offset_s(wall_ms) * 1000
        log_bytes = files.in_use * self._log_files.file_size
        return Now(wall_ms, local_ms // HOUR_MS % HOURS, pressure, log_bytes)

    async def _remove_leftovers(self) -> None:
        """Remove files that could not be removed when they were deleted (14.3)."""
        first = self._log_files.min_offset
        if first is not None and first < self._positions.get(Slot.MIN):
            await self._deletion.remove_name(first)

    async def _delete(self, stop: asyncio.Event) -> None:
        spaces, freed = self.fullness.spaces, 0
        reput_holds_files = self._clock.monotonic() < self._let_go_by
        for _ in range(FILES_PER_RUN_MAX):
            if stop.is_set():
                return
            files, pressure = self._files, self.fullness.pressure_after(spaces, freed)
            file, why, _ = self._judge(files, pressure)
            if file is None or why is None or (why is Why.PRESSURE and reput_holds_files):
                return

            def may_go(files: Files = files, pressure: Pressure = pressure) -> bool:
                return self._judge(files, pressure).why is not None

            if not await self._deletion.remove(file, why, may_go):
                return
            self.deleted[why] += 1
            freed += self._log_files.file_size
            self._files = Files(files.oldest[1:], files.in_use - 1)
            if why is Why.PRESSURE:
                self._let_go_by = self._clock.monotonic() + LET_GO_MAX_S

    # -- warnings and figures ---------------------------------------------------------------------

    async def _warn(self) -> None:
        """Check the unread messages of the oldest file, and warn if it will be deleted soon."""
        now_s = self._clock.monotonic()
        if now_s < self._warn_at:
            return
        self._warn_at = now_s + CHECK_INTERVAL_S
        at_ms, why, _ = self._next()
        if at_ms is None or why is None:
            self._expiry.withdraw_warnings()
            return
        first = self._files.oldest[0]
        await self._expiry.plan(log_min=first.start, end=first.end)
        if at_ms - self._clock.wall_ms() > self._warn_ms:
            self._expiry.withdraw_warnings()
            return
        self._warn_at = now_s + WARN_INTERVAL_S
        await self._expiry.warn(why=why.value, at_ms=at_ms)

    async def _apply_topic_retention(self) -> None:
        now_s = self._clock.monotonic()
        if now_s >= self._hiding_at:
            self._hiding_at = now_s + CHECK_INTERVAL_S
            if self._has_hiding_topics():
                self._hiding_at = now_s + WARN_INTERVAL_S
                await self._expiry.apply_topic_retention()

    def _next(self) -> tuple[int | None, Why | None, Stay | None]:
        """Return when the oldest file will be deleted and why, or what keeps it."""
        files, pressure = self._files, self.fullness.pressure
        oldest, why, stay = self._judge(files, pressure)
        if oldest is None:
            return None, None, None
        now = self._now(files, pressure)
        if why is not None:
            return now.wall_ms, why, None
        if stay is Stay.NOTHING_ASKS:
            offset_s = self._utc_offset_s(now.wall_ms)
            return goes_by_age_at(oldest, self._policy, now, offset_s), Why.AGE, None
        return None, None, stay

    @property
    def expiring_groups(self) -> int:
        """Number of groups with unread messages in a file that will be deleted soon."""
        return self._expiry.warned_groups

    def expiring(self, group: str) -> dict[tuple[str, int], int]:
        """Return the unread messages of each queue that the next deletion would remove, as of the
        last check of the oldest file."""
        return self._expiry.expiring(group)

    def as_dict(self) -> dict[str, Any]:
        """Return the state in the form of ``GET /v1/retention``; unknown values are None with a
        reason."""
        at_ms, why, stay = self._next()
        oldest = self._files.oldest[0] if self._files.oldest else None
        wall_ms = self._clock.wall_ms()
        return {
            "pressure": self.fullness.pressure.name.lower(),
            "sends_refused": self.fullness.sends_refused,
            **self.fullness.spaces_dict(),
            "policy": {
                **self._policy._asdict(),
                "delete_hours": sorted(self._policy.delete_hours),
            },
            "log_files": self._files.in_use,
            "min_offset": self._positions.get(Slot.MIN),
            "oldest_file": None
            if oldest is None
            else {**oldest._asdict(), "age_ms": max(0, wall_ms - oldest.modified_ms)},
            "next_deletion": {
                "at_ms": at_ms,
                "why": None if why is None else why.value,
                "kept_by": None if stay is None else stay.name.lower(),
                "groups_with_unread_messages": self.expiring_groups,
            },
            "deleted_files": {why.value: self.deleted[why] for why in Why},
            "forecast": self.fullness.forecast._asdict(),
        }


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most this long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
