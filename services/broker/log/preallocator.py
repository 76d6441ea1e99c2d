"""Creates commit log files before they are needed, in a worker thread.

Creating a file allocates all its blocks, which is slow and fails on a full disk; neither may
happen inside the append step. When the log moves into the next file, another one is created after
it. If the disk is full or read-only, or the limit of open files is reached, the error is kept as
``failure`` and the attempt is repeated every second. Sends resume by themselves once an attempt
succeeds.

Retention controls this in three ways. Its ``guard`` prevents files that would fill the disk beyond
the allowed level. Its ``refusal`` stops sends, but not the broker's own records. ``on_made`` starts
a new retention check after files have taken space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from shared.files.commit_log_appender import CommitLogAppender
from tidemark.errors import DiskFull, FileNotReady, OutOfResources, ReadOnlyDisk, StoreError

log = logging.getLogger(__name__)
RETRY_S: Final = 1.0


class DiskLimits(Protocol):
    """Limits on the use of the disk (implemented by ``retention.fullness``)."""

    @property
    def refusal(self) -> StoreError | None:
        """Reason why sends are refused although files can be created; None: they are not."""
        ...

    def check_may_create(self) -> None:
        """Raise DiskFull to prevent the creation of another file; called in the worker thread.

        The file already created is then reserved for the broker's own records."""
        ...


class _NoLimits:
    """Holds before the retention is built."""

    refusal: StoreError | None = None

    def check_may_create(self) -> None:
        """Accept."""


NO_LIMITS: Final = _NoLimits()


class Preallocator:
    """Keeps the next commit log file ready."""

    def __init__(
        self,
        prepare: Callable[[], None],
        appender: CommitLogAppender,
        *,
        file_size: int,
        wait_s: float,
        on_change: Callable[[StoreError | None], None],
    ) -> None:
        """prepare: creates what an append needs; blocks; raises DiskFull, ReadOnlyDisk or
        OutOfResources. wait_s: longest time that a request waits for a file. on_change: called with
        the error when writes stop, and with None when they resume.
        """
        self._prepare = prepare
        self._appender = appender
        self._file_size = file_size
        self._wait_s = wait_s
        self._on_change = on_change
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="files-ahead")
        self.made_in = -1
        """Number of the file in which the log ended when files were last created."""
        self._making: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self.failure: StoreError | None = None
        """Reason why no file can be created now: DiskFull, ReadOnlyDisk or OutOfResources; None if
        files can be created."""
        self._limits: DiskLimits = NO_LIMITS
        self.kept_back = 0
        """Bytes of log that sends may not use, besides the usual reserve: one file, or 0."""
        self.made: Final = asyncio.Event()
        """Set after each attempt to create files; whoever waits for it clears it."""
        self._may_append = False
        self._has_ended = False

    @property
    def refusal(self) -> StoreError | None:
        """Reason why sends are refused although files can be created; None: they are not."""
        return self._limits.refusal

    def limit_by(self, limits: DiskLimits) -> None:
        """Observe these limits from now on."""
        self._limits = limits

    def log_moved_on(self) -> None:
        """Create another file soon, because the log has moved into the next one. After a failure
        the next attempt is due within a second anyway."""
        if self._making is None and self.failure is None:
            self._wake.set()

    def start_prepared_log(self) -> None:
        """Allow appends although the files ahead are not created yet, because nothing else is
        missing."""
        self._may_append = True

    def check_may_append(self) -> None:
        """Raise unless ``prepare`` succeeded at least once, or the start has prepared the log."""
        if not self._may_append:
            self.raise_why_not()

    def check_may_send(self) -> None:
        """Raise the reason if sends are refused; the broker's own records are still accepted."""
        refusal = self._limits.refusal
        if refusal is not None:
            raise refusal.with_traceback(None)

    def raise_why_not(self) -> None:
        """Raise the reason for the missing file: it cannot be created, or creation is running."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        raise FileNotReady("the next log file is being made. Nothing was stored.", "Try again.")

    async def wait(self) -> None:
        """Wait until files are created. Raises ``failure``, or FileNotReady after wait_s or if
        ``run`` has ended."""
        try:
            async with asyncio.timeout(self._wait_s):
                await asyncio.shield(self._make())
        except TimeoutError:
            raise FileNotReady(
                f"the next commit log file was not ready within {self._wait_s} s: the disk is "
                "slow. Nothing was stored.",
                "Try again.",
                limit=self._wait_s,
            ) from None
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    async def run(self, stop: asyncio.Event) -> None:
        """Create files ahead until stop; after a failure, retry every second."""
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set():
                self._wake.clear()
                await self._make()
                try:
                    async with asyncio.timeout(RETRY_S if self.failure is not None else None):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            stopper.cancel()
            self._has_ended = True
            self._executor.shutdown(wait=True)

    def _make(self) -> asyncio.Future[None]:
        """Return the attempt in progress, or start one; it stores its error in ``failure``. Raises
        FileNotReady if ``run`` has ended."""
        if self._making is None:
            if self._has_ended:
                raise FileNotReady("the node is stopping. Nothing was stored.", "Try again.")
            self._making = asyncio.ensure_future(self._make_once())
        return self._making

    async def _make_once(self) -> None:
        loop = asyncio.get_running_loop()
        made_in = self._appender.appended // self._file_size
        try:
            await loop.run_in_executor(self._executor, self._guarded)
        except (DiskFull, ReadOnlyDisk, OutOfResources) as error:
            changed = self.failure is None or type(self.failure) is not type(error)
            self.failure = error
            if changed:
                self._wake.set()  # a send may have started this attempt, while ``run`` slept
                log.error(
                    "no further log file can be made",
                    extra={"event": "writes-stopping", "code": error.code, "detail": error.detail},
                )
                self._on_change(error)
        else:
            self.made_in = made_in
            self._may_append = True
            if self.failure is not None:
                self.failure = None
                log.info("log files can be made again", extra={"event": "writes-resumed"})
                self._on_change(None)
        finally:
            self._making = None
            self.made.set()

    def _guarded(self) -> None:
        """Check the limits and prepare. Blocks; runs in the thread.

        The first call skips the check: if the log ends at the end of a file, this start can be
        recorded only in the next one."""
        if self.made_in >= 0:
            try:
                self._limits.check_may_create()
            except DiskFull:
                self.kept_back = self._file_size
                raise
        self.kept_back = 0
        self._prepare()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()
