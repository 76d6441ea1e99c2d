"""How full the disk is, and its immediate effects: sends refused, files not created, a forecast.

A separate task measures it every second and after files were created, so that a long deletion does
not delay the detection of a full disk. The rules are in ``retention``.

Step before: ``preallocator`` created files. Step after: ``keeper`` deletes files by the same
numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from services.broker.log.log_context import LogContext
from services.broker.retention.forecast import Forecast, Growth
from services.broker.retention.retention import Pressure, pressure_of
from shared.files.disk import Space
from tidemark.errors import DiskFull, StoreError

log = logging.getLogger(__name__)


class Fullness:
    """The file systems of log and queues. The loop uses it, and the thread that makes files."""

    def __init__(self, log_context: LogContext) -> None:
        store = log_context.store.directory
        self._disk = store.disk
        self._paths = (store.commit_log_dir, store.consume_queues_dir)
        self._appender = log_context.appender
        self._files = log_context.files
        self._clock = log_context.clock
        self._health = log_context.health
        self._policy = log_context.config.retention_policy
        self._growth = Growth()
        self.spaces: Sequence[Space | None] = (None, None)
        """Last measurement of the log's file system, then of the queues'; None: it failed."""
        self.pressure = Pressure.NONE
        # The refusal of the previous role holds until the disk is measured.
        self.refusal: StoreError | None = self._files.refusal
        """Reason why sends are refused; None: sends are accepted."""
        self._files.limit_by(self)

    async def sample(self) -> None:
        """Measure the disk, and refuse or accept sends accordingly."""
        self.spaces = await asyncio.to_thread(self._ask)
        self.pressure = self.pressure_after(self.spaces, 0)
        self._refuse_or_not()
        space = self.spaces[0]
        if space is not None:
            self._growth.sample(self._clock.monotonic(), self._written_of(space))

    def _ask(self) -> Sequence[Space | None]:
        """Measure the file systems. Blocks."""
        spaces: list[Space | None] = []
        for path in self._paths:
            try:
                spaces.append(self._disk.space(path))
            except OSError:
                spaces.append(None)
        return spaces

    def pressure_after(self, spaces: Sequence[Space | None], freed: int) -> Pressure:
        """Return the pressure if freed bytes of log were free in addition to the measured ones."""
        return pressure_of(_percents(spaces, freed), self._policy)

    def _written_of(self, space: Space) -> int:
        """Return the used bytes without blocks of the log that are reserved but not written."""
        return space.used - self._appender.reserved_bytes

    # -- effects ----------------------------------------------------------------------------------

    def _refuse_or_not(self) -> None:
        before = self.refusal
        if self.pressure is not Pressure.SENDS_STOP:
            self.refusal = None
            if before is not None:
                log.info("sends are accepted again", extra={"event": "sends-resumed"})
                if self._files.failure is None:
                    self._health.clear_reason(DiskFull.code)
            return
        refusal = self.refusal = self._too_full()
        self._health.add_reason(refusal.code, f"{refusal.detail} {refusal.advice}")
        if before is None:
            log.error(
                "sends are refused: the disk is too full",
                extra={"event": "sends-refused", "code": refusal.code, "detail": refusal.detail},
            )

    def _too_full(self) -> DiskFull:
        percents = _percents(self.spaces)
        fullest = max(range(len(percents)), key=lambda number: percents[number] or 0)
        space, percent = self.spaces[fullest], percents[fullest]
        assert space is not None, "a disk that could not be asked is not the fullest"
        limit = self._policy.warning_percent
        return DiskFull(
            f"the file system of {self._paths[fullest]} is {percent} % full, {space.available} "
            f"bytes are free; above {limit} % sends are refused. Nothing was stored; reads "
            "continue.",
            "Free space or enlarge it; sends resume automatically. GET /v1/retention says what "
            "keeps the oldest log file.",
            path=self._paths[fullest],
            free_bytes=space.available,
            used_percent=percent,
            limit=limit,
        )

    def check_may_create(self) -> None:
        """Raise DiskFull if one more file would bring the disk to the limit of sends. Any thread.

        One file ahead is always created. The broker needs it for its own records, and would fail on
        a disk that other programs keep full. Sends do not use it (``preallocator.kept_back``).
        """
        files, limit = self._appender.files, self._policy.warning_percent
        space = self._disk.space(files.directory)
        then = Space(space.used + files.file_size, space.available - files.file_size).used_percent
        if then is None or then <= limit:
            return
        if not files.ready_ahead:
            files.prepare_next(1)
        raise DiskFull(
            f"one more log file of {files.file_size} bytes would fill the file system of "
            f"{files.directory} to {then} %; above {limit} % none is created. Stored messages "
            "stay readable.",
            "Free space or enlarge it; log files are then created again automatically.",
            path=files.directory,
            free_bytes=space.available,
            used_percent=then,
            limit=limit,
        )

    # -- figures ----------------------------------------------------------------------------------

    @property
    def sends_refused(self) -> bool:
        """Whether the disk is too full for sends."""
        return self.refusal is not None

    @property
    def forecast(self) -> Forecast:
        """Return when sends will be refused at the present pace."""
        space, room = self.spaces[0], None
        if space is not None:
            total = space.used + space.available
            room = total * self._policy.warning_percent // 100 - self._written_of(space)
        return self._growth.forecast(room)

    @property
    def used_percent(self) -> int | None:
        """Used share of the log's file system in percent; None: unknown."""
        return _percents(self.spaces)[0]

    def spaces_dict(self) -> dict[str, dict[str, Any]]:
        """Return the file systems in the form of ``GET /v1/retention``."""
        return {
            name: {
                "path": str(path),
                "used_bytes": None if space is None else space.used,
                "available_bytes": None if space is None else space.available,
                "used_percent": None if space is None else space.used_percent,
            }
            for name, path, space in zip(("log", "queues"), self._paths, self.spaces, strict=True)
        }


def _percents(spaces: Sequence[Space | None], freed: int = 0) -> list[int | None]:
    """Return how full each is, as if freed bytes of the log were free already."""
    return [
        None
        if space is None
        else Space(space.used - freed, space.available + freed).used_percent
        if space == spaces[0]
        else space.used_percent
        for space in spaces
    ]
