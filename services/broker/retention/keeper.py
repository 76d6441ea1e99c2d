"""Retention as a part of the broker: measures every second, refuses sends, lets files go.

Rules are ``retention``'s, the order of one deletion ``deletion``'s; here they meet the disk, the
clock and the loop. What is measured is measured again whenever log files were made, so that a load
however fast is judged per file and not per second. A run lets at most ``FILES_PER_RUN_MAX`` files
go, each judged on what the one before freed, then measures anew: a long row of deletions never
keeps the disk from being looked at. After a run that a full disk asked for, the next waits until
reput has let go of the files: as long as one is mapped its blocks are not free, and a look at the
disk would take more files than needed.

Before: ``files_ahead`` makes files. After: reput follows MIN; ``calls`` shows all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from services.broker.files_ahead import FilesAhead
from services.broker.retention.deletion import Deletion
from services.broker.retention.expiry import Expiry
from services.broker.retention.forecast import Forecast, Growth
from services.broker.retention.retention import (
    FILES_PER_RUN_MAX,
    HOUR_MS,
    HOURS,
    Held,
    LogFile,
    Now,
    Policy,
    Pressure,
    Stay,
    Verdict,
    Why,
    goes_by_age_at,
    judge_oldest,
    percent_used,
    pressure_of,
)
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.disk import Space
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.health import Health
from tidemark.clock import Clock
from tidemark.errors import DiskFull, StoreError
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
SETTLE_INTERVAL_S: Final = 0.1
"""While members hold messages that are gone: between two commits of theirs, mostly."""
LET_GO_MAX_S: Final = 5.0
"""Reput is not waited for longer: it may be down."""
WARN_INTERVAL_S: Final = 10.0
"""Groups are looked through so often while a deletion is near,"""
LOOK_INTERVAL_S: Final = 60.0
"""and so often while none is."""
FILES_LOOKED_AT: Final = FILES_PER_RUN_MAX + 1


class Measured(NamedTuple):
    """What the disk said."""

    spaces: Sequence[Space | None]
    """Of the log's file system, then of the queues'; None: it could not be asked."""
    files: Sequence[LogFile]
    """The oldest ones, and if there are more than those, not the last."""
    files_count: int
    """Files in use."""


class Retention:
    """Keeps the log within its bounds. One task runs ``run``."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        appender: CommitLogAppender,
        files_ahead: FilesAhead,
        deletion: Deletion,
        expiry: Expiry,
        clock: Clock,
        health: Health,
        policy: Policy,
        *,
        snapshot_start: Callable[[], int | None],
        confirmed: Callable[[], int],
        utc_offset_s: Callable[[int], int],
        warn_ms: int,
        has_hiding_topics: Callable[[], bool],
        on_names_gone: Callable[[], None],
    ) -> None:
        """snapshot_start: of the newest whole snapshot that is on disk. confirmed: end of what
        consumers may see. utc_offset_s: wall clock in ms → local time minus UTC. warn_ms: how long
        before a deletion groups are warned of it. has_hiding_topics: whether any topic has a
        retention of its own. on_names_gone: called when reput has removed
        queue and index files, which readers may still have mapped.
        """
        self._store = store
        self._positions = positions
        self._appender = appender
        self._files = files_ahead
        self._deletion = deletion
        self._expiry = expiry
        self._clock = clock
        self._health = health
        self._policy = policy
        self._snapshot_start = snapshot_start
        self._confirmed = confirmed
        self._utc_offset_s = utc_offset_s
        self._warn_ms = warn_ms
        self._has_hiding_topics = has_hiding_topics
        self._on_names_gone = on_names_gone
        self._growth = Growth()
        self._wake = asyncio.Event()
        self._measured: Measured | None = None
        self._pressure = Pressure.NONE
        self._let_go_by = 0.0
        self._warn_at = self._hiding_at = float("-inf")
        self._cleaned = positions.get(Slot.CLEANED_MIN)
        self._is_stuck = False
        self.deleted: Counter[Why] = Counter()
        """Files that went since the start."""
        files_ahead.guard, files_ahead.on_made = self._guard, self._wake.set

    async def run(self, stop: asyncio.Event) -> None:
        """Judge every second, and whenever files were made, until stop."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                self._wake.clear()
                await self.judge(stop)
                pause_s = SETTLE_INTERVAL_S if self._expiry.is_waiting else INTERVAL_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        finally:
            stopper.cancel()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def judge(self, stop: asyncio.Event) -> None:
        """One round: measure, refuse or not, let files go, warn."""
        self._expiry.settle()
        self._follow_reput()
        measured = self._measured = await asyncio.to_thread(self._measure)
        self._pressure = pressure_of(_percents(measured.spaces), self._policy)
        self._refuse_or_not(measured)
        self._sample(measured)
        try:
            await self._remove_leftovers()
            await self._delete(measured, stop)
            self._is_stuck = False
        except (OSError, StoreError) as error:
            if not self._is_stuck:
                self._is_stuck = True
                log.error(
                    "a log file cannot be removed; it is tried again every second",
                    extra={"event": "log-file-stays", "detail": str(error)},
                )
        await self._warn()
        await self._look_at_hiding_topics()

    # -- looking ----------------------------------------------------------------------------------

    def _measure(self) -> Measured:
        """Ask the disk. Blocks."""
        disk, files = self._store.disk, self._appender.files
        spaces: list[Space | None] = []
        for path in (self._store.commit_log_dir, self._store.consume_queues_dir):
            try:
                spaces.append(disk.space(path))
            except OSError:
                spaces.append(None)
        starts = files.starts
        found = []
        for start in starts[:FILES_LOOKED_AT]:
            facts = disk.stat(files.path(start))
            if facts is not None:
                found.append(LogFile(start, start + files.file_size, facts.modified_ms))
        return Measured(spaces, found, len(starts))

    def _held(self) -> Held:
        return Held(
            self._positions.get(Slot.DISPATCHED_DURABLE),
            self._confirmed(),
            self._snapshot_start(),
        )

    def _now(self, pressure: Pressure, file_count: int) -> Now:
        wall_ms = self._clock.wall_ms()
        local_ms = wall_ms + self._utc_offset_s(wall_ms) * 1000
        log_bytes = file_count * self._appender.files.file_size
        return Now(wall_ms, local_ms // HOUR_MS % HOURS, pressure, log_bytes)

    def _judge(self, files: Sequence[LogFile], pressure: Pressure, file_count: int) -> Verdict:
        return judge_oldest(files, self._held(), self._policy, self._now(pressure, file_count))

    def _sample(self, measured: Measured) -> None:
        space = measured.spaces[0]
        if space is not None:
            used = space.used - self._appender.reserved_bytes
            self._growth.sample(self._clock.monotonic(), used)

    def _follow_reput(self) -> None:
        """Reput has removed names: mappings of those files keep their blocks."""
        cleaned = self._positions.get(Slot.CLEANED_MIN)
        if cleaned != self._cleaned:
            self._cleaned = cleaned
            self._on_names_gone()
        if cleaned >= self._positions.get(Slot.MIN):
            self._let_go_by = 0.0

    # -- sends ------------------------------------------------------------------------------------

    def _refuse_or_not(self, measured: Measured) -> None:
        before = self._files.refusal
        if self._pressure is not Pressure.SENDS_STOP:
            self._files.refusal = None
            if before is not None:
                log.info("sends are taken again", extra={"event": "sends-resumed"})
                if self._files.failure is None:
                    self._health.clear_reason(DiskFull.code)
            return
        refusal = self._files.refusal = self._too_full(measured.spaces)
        self._health.add_reason(refusal.code, f"{refusal.detail} {refusal.advice}")
        if before is None:
            log.error(
                "sends are refused: the disk is too full",
                extra={"event": "sends-refused", "code": refusal.code, "detail": refusal.detail},
            )

    def _too_full(self, spaces: Sequence[Space | None]) -> DiskFull:
        paths = (self._store.commit_log_dir, self._store.consume_queues_dir)
        percents = _percents(spaces)
        fullest = max(range(len(paths)), key=lambda number: percents[number] or 0)
        space, percent = spaces[fullest], percents[fullest]
        assert space is not None
        limit = self._policy.warning_percent
        return DiskFull(
            f"the file system of {paths[fullest]} is {percent} % full, {space.available} bytes "
            f"are free; above {limit} % nothing is taken. Nothing was stored; reading goes on.",
            "Free space or enlarge it; sends are taken again by themselves. GET /v1/retention says "
            "what keeps the oldest log file.",
            path=paths[fullest],
            free_bytes=space.available,
            used_percent=percent,
            limit=limit,
        )

    def _guard(self) -> None:
        """Keep files from being made ahead where one more would bring sends to a stop. Any thread.

        Not if there is none ahead: the broker's own records need it, and would come to an end in a
        disk that somebody else keeps full.
        """
        files = self._appender.files
        if not files.ready_ahead:
            return
        space = self._store.disk.space(self._store.commit_log_dir)
        then = Space(space.used + files.file_size, space.available - files.file_size)
        percent = percent_used(*then)
        if percent is not None and percent > self._policy.warning_percent:
            raise DiskFull(
                f"one more log file of {files.file_size} bytes would fill the file system of "
                f"{files.directory} to {percent} %; above {self._policy.warning_percent} % "
                "nothing is taken. What is stored stays readable.",
                "Free space or enlarge it; log files are made again by themselves.",
                path=files.directory,
                free_bytes=space.available,
                used_percent=percent,
                limit=self._policy.warning_percent,
            )

    # -- files ------------------------------------------------------------------------------------

    async def _remove_leftovers(self) -> None:
        """Names that could not be removed when their time had come (14.3)."""
        first = self._appender.files.min_offset
        if first is not None and first < self._positions.get(Slot.MIN):
            await self._deletion.remove_name(first)

    async def _delete(self, measured: Measured, stop: asyncio.Event) -> None:
        files, count, freed = list(measured.files), measured.files_count, 0
        reput_holds_files = self._clock.monotonic() < self._let_go_by
        for _ in range(FILES_PER_RUN_MAX):
            if not files or stop.is_set():
                return
            pressure = pressure_of(_percents(measured.spaces, freed), self._policy)
            file, why, _ = self._judge(files, pressure, count)
            if file is None or why is None:
                return
            if why is Why.PRESSURE and reput_holds_files:
                return
            left, left_count = list(files), count

            def may_go(
                left: Sequence[LogFile] = left,
                left_count: int = left_count,
                pressure: Pressure = pressure,
            ) -> bool:
                return self._judge(left, pressure, left_count).why is not None

            if not await self._deletion.remove(file, why, may_go):
                return
            self.deleted[why] += 1
            freed += self._appender.files.file_size
            files, count = files[1:], count - 1
            if why is Why.PRESSURE:
                self._let_go_by = self._clock.monotonic() + LET_GO_MAX_S

    # -- what is said -----------------------------------------------------------------------------

    async def _warn(self) -> None:
        """Look what groups have not read of the oldest file, and name them if it goes soon."""
        now_s = self._clock.monotonic()
        if now_s < self._warn_at:
            return
        self._warn_at = now_s + LOOK_INTERVAL_S
        at_ms, why, _ = self._next()
        first = self._oldest()
        if first is None or why is None or at_ms is None:
            self._expiry.nothing_goes()
            return
        await self._expiry.look_ahead(log_min=first.start, end=first.end)
        if at_ms - self._clock.wall_ms() > self._warn_ms:
            self._expiry.nothing_goes()
            return
        self._warn_at = now_s + WARN_INTERVAL_S
        await self._expiry.warn(why=why.value, at_ms=at_ms)

    async def _look_at_hiding_topics(self) -> None:
        now_s = self._clock.monotonic()
        if now_s >= self._hiding_at:
            self._hiding_at = now_s + LOOK_INTERVAL_S
            if self._has_hiding_topics():
                self._hiding_at = now_s + WARN_INTERVAL_S
                await self._expiry.look_at_hiding_topics()

    def _oldest(self) -> LogFile | None:
        """The oldest file that is still there."""
        if self._measured is None:
            return None
        log_min = self._positions.get(Slot.MIN)
        return next((file for file in self._measured.files if file.start >= log_min), None)

    def _next(self) -> tuple[int | None, Why | None, Stay | None]:
        """When the oldest file goes and why, or what keeps it."""
        measured, oldest = self._measured, self._oldest()
        if measured is None or oldest is None:
            return None, None, None
        files = [file for file in measured.files if file.start >= oldest.start]
        count = measured.files_count - (len(measured.files) - len(files))
        now = self._now(self._pressure, count)
        _, why, stay = judge_oldest(files, self._held(), self._policy, now)
        if why is not None:
            return now.wall_ms, why, None
        if stay is Stay.NOTHING_ASKS:
            offset_s = self._utc_offset_s(now.wall_ms)
            return goes_by_age_at(oldest, self._policy, now, offset_s), Why.AGE, None
        return None, None, stay

    @property
    def forecast(self) -> Forecast:
        """When sends will be refused at the present pace."""
        space = self._measured.spaces[0] if self._measured is not None else None
        room = None
        if space is not None:
            total = space.used + space.available
            used = space.used - self._appender.reserved_bytes
            room = total * self._policy.warning_percent // 100 - used
        return self._growth.forecast(room)

    @property
    def used_percent(self) -> int | None:
        """How full the log's file system is; None: not known."""
        return _percents(self._measured.spaces)[0] if self._measured is not None else None

    @property
    def capacity_bytes(self) -> int | None:
        """What an ordinary user can use of the log's file system; None: not known."""
        space = self._measured.spaces[0] if self._measured is not None else None
        return None if space is None else space.used + space.available

    @property
    def sends_refused(self) -> bool:
        """Whether the disk is too full for sends."""
        return self._files.refusal is not None

    @property
    def expiring_groups(self) -> int:
        """Groups with unread messages in a file that goes soon."""
        return self._expiry.warned_groups

    def expiring(self, group: str) -> dict[tuple[str, int], int]:
        """Unread messages of each queue that the next deletion would take, as of the last look at
        the oldest file."""
        return self._expiry.expiring(group)

    def as_dict(self) -> dict[str, Any]:
        """As ``GET /v1/retention`` shows it. What is not known is None, with a reason."""
        measured, policy, forecast = self._measured, self._policy, self.forecast
        at_ms, why, stay = self._next()
        oldest, wall_ms = self._oldest(), self._clock.wall_ms()
        spaces = (None, None) if measured is None else measured.spaces
        return {
            "pressure": self._pressure.name.lower(),
            "sends_refused": self.sends_refused,
            "log": _space_map(str(self._store.commit_log_dir), spaces[0]),
            "queues": _space_map(str(self._store.consume_queues_dir), spaces[1]),
            "policy": {
                **policy._asdict(),
                "delete_hours": sorted(policy.delete_hours),
            },
            "log_files": None if measured is None else measured.files_count,
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
            "forecast": forecast._asdict(),
        }


def _percents(spaces: Sequence[Space | None], freed: int = 0) -> list[int | None]:
    """How full each is, if freed bytes were free already where the log is."""
    log_space = spaces[0]
    return [
        None
        if space is None
        else percent_used(space.used - freed, space.available + freed)
        if space == log_space
        else percent_used(*space)
        for space in spaces
    ]


def _space_map(path: str, space: Space | None) -> dict[str, Any]:
    return {
        "path": path,
        "used_bytes": None if space is None else space.used,
        "available_bytes": None if space is None else space.available,
        "used_percent": None if space is None else percent_used(*space),
    }
