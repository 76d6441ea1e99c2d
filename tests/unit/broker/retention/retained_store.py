"""A small store with the parts of retention around it, and fakes of the other parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from services.broker.log.preallocator import Preallocator
from services.broker.retention.deletion import Deletion
from services.broker.retention.expiry import Expiry
from services.broker.retention.keeper import Retention
from services.broker.retention_policy import Policy
from shared.files.commit_log import CommitLogReader
from shared.files.disk import Space
from shared.files.os_disk import OsDisk
from shared.runtime.health import Health
from tests.support.log_contexts import log_context_of
from tests.support.small_store import CONFIG, FIRST_MS, SmallStore
from tests.support.still_clock import StillClock
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

FILE_SIZE = CONFIG.commit_log_file_size
POLICY = Policy(
    age_ms=3_600_000,
    delete_hours=frozenset(range(24)),
    size_max=0,
    used_percent_max=75,
    forcible_percent=85,
    warning_percent=90,
    forcibly=True,
)


class SizedDisk(OsDisk):
    """A disk of a size set by the test, with a log on it and other data."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.total = 1 << 30
        self.other = 0

    def space(self, path: Path) -> Space:
        files = len(list(self.log_dir.iterdir())) if self.log_dir.exists() else 0
        used = min(self.total, self.other + files * FILE_SIZE)
        return Space(used, self.total - used)


class Groups:
    """Committed offsets, and the members that read queues."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.holders: dict[tuple[str, str, int], str] = {}
        self.handed_out: dict[str, dict[tuple[str, int], int]] = {}

    def groups(self) -> Iterable[str]:
        return self.committed

    def of_group(self, group: str) -> Mapping[tuple[str, int], int]:
        return self.committed.get(group, {})

    def holder(self, group: str, topic: str, queue: int) -> str | None:
        return self.holders.get((group, topic, queue))

    def in_flight(self, group: str) -> Mapping[tuple[str, int], int]:
        return self.handed_out.get(group, {})


class CarryResult(NamedTuple):
    carried: int
    lost: int


class Delayed:
    """Delayed messages, as many as the test sets."""

    def __init__(self) -> None:
        self.pending = 0
        self.error: StoreError | None = None
        self.carried_below: list[int] = []
        self.asked = asyncio.Event()
        self.hold: asyncio.Event | None = None

    def pending_below(self, physical_offset: PhysicalOffset) -> bool:
        return self.pending > 0

    async def carry_below(self, physical_offset: PhysicalOffset) -> CarryResult:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.carried_below.append(physical_offset)
        carried, self.pending = self.pending, 0
        return CarryResult(carried, 0)


class RetainedStore:
    """A store with retention. ``close`` it."""

    def __init__(self, root: Path, policy: Policy = POLICY, *, warn_ms: int = 60_000) -> None:
        self.disk = SizedDisk(root / "commitlog")
        self.small = SmallStore(root, disk=self.disk)
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.clock = StillClock(0, wall_ahead_ms=FIRST_MS)
        self.health = Health(self.clock)
        self.health.state = "serving"
        self.groups = Groups()
        self.delayed = Delayed()
        self.skipped: dict[tuple[str, str], int] = {}
        self.rings = self.let_go = 0
        self.hiding: set[str] = set()
        self.judged: list[tuple[str, int]] = []
        """Queues of hiding topics that were asked about."""
        self.snapshot_start: int | None = 1 << 60
        appender = self.small.appender
        self.files = Preallocator(
            appender.prepare_next,
            appender,
            file_size=FILE_SIZE,
            wait_s=1.0,
            on_change=lambda failure: None,
        )
        self.expiry = Expiry(
            self.small.store,
            self.groups,
            self.groups,
            shown_from=self._shown_from,
            hides=lambda topic: topic in self.hiding,
            on_skipped=self._skip,
        )
        self.deletion = Deletion(
            self.small.store,
            appender.files,
            self.reader,
            self.small.positions,
            self.delayed,
            self.expiry,
            ring=self._ring,
        )
        self.retention = Retention(
            log_context_of(
                store=SimpleNamespace(directory=self.small.store),
                positions=self.small.positions,
                appender=appender,
                files=self.files,
                clock=self.clock,
                health=self.health,
                config=SimpleNamespace(retention_policy=policy, retention_warn_ms=warn_ms),
                confirmed=lambda: self.small.positions.get(Slot.FLUSHED),
                appends=True,
            ),
            self.deletion,
            self.expiry,
            snapshot_start=lambda: self.snapshot_start,
            utc_offset_s=lambda wall_ms: 0,
            has_hiding_topics=lambda: bool(self.hiding),
            on_names_gone=self._let_go,
        )

    def _skip(self, group: str, topic: str, messages: int, reason: str) -> None:
        assert reason == "expired"
        self.skipped[group, topic] = self.skipped.get((group, topic), 0) + messages

    def _shown_from(self, topic: str, queue: int) -> int | None:
        if topic in self.hiding:
            self.judged.append((topic, queue))
        return None if topic == "deleted" else 0

    def _ring(self) -> None:
        self.rings += 1

    def _let_go(self) -> None:
        self.let_go += 1

    def fill(self, files: int, topic: str = "orders") -> None:
        """Put messages until this many files are in use; all are dispatched and on disk."""
        while len(self.small.appender.files.starts) < files:
            self.small.put(topic, 0, body=b"x" * 200)
        self.dispatch()

    def dispatch(self) -> None:
        self.small.dispatch(durable=True)

    @property
    def starts(self) -> list[int]:
        """Numbers of the files in use."""
        return [start // FILE_SIZE for start in self.small.appender.files.starts]

    def border(self, files: int) -> int:
        """Queue offset of the first message that is not in the first ``files`` files."""
        return next(
            int(number)
            for _, _, number, unit in self.small.units
            if unit.physical_offset >= files * FILE_SIZE
        )

    def reput_follows(self) -> None:
        """Reput has let go of the log's files and removed its own."""
        for slot in (Slot.RELEASED_MIN, Slot.CLEANED_MIN):
            self.small.positions.publish(slot, self.small.positions.get(Slot.MIN))

    async def judge(self) -> None:
        """Run one round of retention."""
        await self.retention.judge(asyncio.Event())

    def close(self) -> None:
        with suppress(StoreError):
            self.files._executor.shutdown()
        self.reader.close()
        self.small.close()
