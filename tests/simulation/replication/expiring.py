"""A broker's retention, which deletes log files when a trial wants a smaller log.

The rules, the order of a deletion and its consequences are the broker's own
(``services.broker.retention``). Not real are the consumer groups whose unread messages it counts,
and the time of day.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from services.broker.consuming import NOTHING_WAITS, Core, _files_of
from services.broker.retention.deletion import Deletion
from services.broker.retention.keeper import Retention
from services.broker.retention_policy import Policy
from tests.simulation.replication.process import running
from tidemark.errors import DiskFull, StoreError

CHECK_S: Final = 0.2
NEVER_MS: Final = 1 << 50
POLICY: Final = Policy(
    age_ms=NEVER_MS,
    delete_hours=frozenset(),
    size_max=0,
    used_percent_max=100,
    forcible_percent=100,
    warning_percent=100,
    forcibly=False,
)
"""Only the size limit deletes files."""


class Expiring:
    """Replaces ``services.broker.retention.keeper.Retention``."""

    def __init__(self, core: Core, forget_names: Callable[[], None]) -> None:
        thread = running()
        assert thread is not None
        self._machine = thread.process.machine
        self._core, self._forget_names = core, forget_names
        self._kept: Retention | None = None
        self.fullness = self
        self.refusal: StoreError | None = None
        core.log.files.limit_by(self)

    @property
    def sends_refused(self) -> bool:
        """Whether the disk is too full for sends."""
        return self.refusal is not None

    def check_may_create(self) -> None:
        """Do nothing: the simulated disk refuses files itself."""

    async def run(self, stop: asyncio.Event) -> None:
        """Apply retention until stop."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await stop.wait()
            is_crowded = self._machine.is_crowded
            self.refusal = DiskFull("too full for sends.") if is_crowded else None
            size_max = self._machine.log_size_max
            if size_max and not self._machine.is_full and not stop.is_set():
                kept = self._kept = self._kept or self._make()
                kept._policy = POLICY._replace(size_max=size_max)
                await kept.judge(stop)

    def _make(self) -> Retention:
        log, core, machine = self._core.log, self._core, self._machine
        files = log.appender.files if log.appends else _files_of(log.store.directory)
        expiry: Any = _NothingUnread()
        deletion = Deletion(
            log.store.directory,
            files,
            log.reader,
            log.positions,
            NOTHING_WAITS,
            expiry,
            ring=log.ring_reput,
        )
        kept = Retention(
            log,
            deletion,
            expiry,
            snapshot_start=lambda: (
                core.state_log.snapshot_start if log.appends else core.state.snapshot_at
            ),
            utc_offset_s=lambda wall_ms: 0,
            has_hiding_topics=lambda: False,
            on_names_gone=self._forget_names,
        )
        kept._master_from = None if log.appends else machine.master_from
        kept._warn_ms = 0
        log.files.limit_by(self)
        return kept


class _NothingUnread:
    """Replaces ``services.broker.retention.expiry.Expiry``: no group reads."""

    is_waiting = False
    warned_groups = 0

    def settle(self) -> None:
        """Do nothing: nothing is counted."""

    def withdraw_warnings(self) -> None:
        """Do nothing: no group is warned."""

    async def plan(self, *, log_min: int, end: int) -> None:
        """Do nothing: no queue has a reader."""

    async def warn(self, *, why: str, at_ms: int | None) -> None:
        """Do nothing: no group is warned."""

    async def candidates(self) -> list[str]:
        """Return no groups."""
        return []

    def count(self, groups: list[str]) -> int:
        """Return no lost messages."""
        return 0
