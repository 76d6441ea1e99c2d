"""One term of this node as the master: of its group, or of itself if it is alone.

1. The log is recovered, the state read, the components are built (``TermLifecycle``). 2. The first
records of the term are appended. 3. When they are confirmed, sends open. 4. When the term ends,
nothing more is appended or answered, waiting callers get an error, the running flush ends, and only
then is the log released: in a group ha cuts and copies from there. A standalone node is the master
of a group of one: its term ends only with the process. Step before: ``node`` or ``standalone``.
Step after: in a group ``slave``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from services.broker.building import BuiltComponents
from services.broker.log.log_context import LogContext
from services.broker.log.term import Term
from services.broker.roles import RoleContext
from shared.runtime.lifecycle import run_parts
from tidemark.errors import NotServing, SwitchingOver
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

BUSY_POLL_S: Final = 0.001
SWITCH_POLL_S: Final = 0.05
DRAIN_S: Final = 1.0
"""Maximum wait for running sends when the node stops."""
Part = Callable[[], Coroutine[None, None, None]]


class TermLifecycle(Protocol):
    """How a node becomes the master and stops being it: in a group (``GroupLeadership``), or alone
    (``StandaloneNode``)."""

    @property
    def term(self) -> Term:
        """The term for which the node becomes the master."""
        ...

    @property
    def poll_s(self) -> float:
        """Poll interval for what other processes publish, in case a doorbell was lost."""
        ...

    async def recover_and_build(self, over: asyncio.Event) -> BuiltComponents | None:
        """Get the log and the state, and build the components on it.

        over: set when the process stops. Returns None when the term is over, even if the node could
        not serve until then because of damage.
        """
        ...

    def begin(self) -> None:
        """Report that the components serve; the first records are appended after this call."""
        ...

    def recorded(self, log_context: LogContext, end: PhysicalOffset) -> None:
        """Request the confirmation of the first records, which end at end."""
        ...

    def is_confirmed(self, log_context: LogContext, end: PhysicalOffset | None) -> bool:
        """Return whether the first records are confirmed. end: the end of these records; None: they
        are not appended yet."""
        ...

    def open(self) -> None:
        """Open reads and sends, and report it."""
        ...

    def watch(self, log_context: LogContext) -> None:
        """Report what would make another node the better master; called often."""
        ...

    def shut(self) -> None:
        """Refuse reads and sends from now on; may be called again."""
        ...

    def release(self) -> None:
        """Let others write the log: everything of this term is in its file."""
        ...


class Master:
    """This node's broker for one term."""

    def __init__(self, context: RoleContext, lead: TermLifecycle) -> None:
        self._lead = lead
        self._term = lead.term
        self._context = context
        self._doorbell = context.broker.doorbell
        self._clock = context.broker.clock
        self._over = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._recorded: PhysicalOffset | None = None
        """End of the first records of this term; None: they are not appended yet."""
        self._flush_stop = asyncio.Event()
        self._appending_ended: dict[str, asyncio.Event] = {}

    async def run(self, stop: asyncio.Event, leaving: asyncio.Event) -> bool:
        """Serve until the term ends or stop is set; return whether the node served at all.

        leaving: set before stop, if the process is to end; the term may end in between. The log is
        released on return. Raises the error that ends a part, for example a failed flush.
        """
        stopper = asyncio.create_task(self._end_on(stop))
        try:
            built = await self._lead.recover_and_build(self._over)
            if built is None:
                return False
            try:
                await self._serve(built, stop, leaving)
            finally:
                # Has an effect only after a failure; otherwise the log is already closed.
                await asyncio.to_thread(built.core.log.abandon)
            return True
        finally:
            stopper.cancel()
            self._lead.shut()
            self._lead.release()

    @property
    def _continues(self) -> bool:
        return self._term.is_valid and not self._over.is_set()

    async def _serve(
        self, built: BuiltComponents, stop: asyncio.Event, leaving: asyncio.Event
    ) -> None:
        log_context = built.core.log
        self._context.serve(built.components, log_context)
        self._lead.begin()
        opened = asyncio.Event()
        closed = asyncio.get_running_loop().create_future()
        parts: dict[str, Part] = {
            **self._appending(
                {
                    "flusher": lambda: log_context.flusher.run(self._flush_stop),
                    "files-ahead": lambda: log_context.files.run(self._over),
                    **log_context.committer_part(self._flush_stop),
                }
            ),
            "pulse": lambda: self._pulse(built, leaving),
            "snapshots": lambda: built.core.state_log.run(self._over),
            "config-files": lambda: built.config_files.run(self._over),
            **built.consuming.runners(self._over, opened, closed),
        }

        async def gate() -> None:
            try:
                await self._open_and_close_gate(built, stop, opened)
            finally:
                # If the term is still valid, a part has failed, which ends the process.
                closed.set_result(leaving.is_set() or self._term.is_valid)

        await run_parts(self._over, {**parts, "gate": gate})

    async def _open_and_close_gate(
        self, built: BuiltComponents, stop: asyncio.Event, opened: asyncio.Event
    ) -> None:
        """Open when the first records are confirmed, and close in order."""
        log_context = built.core.log
        try:
            if await self._is_recorded(built) and await self._is_confirmed():
                self._lead.open()
                opened.set()
            await self._over.wait()
            opened.set()  # parts that never began then only see the end
            if stop.is_set() and self._term.is_valid:
                self._lead.shut()
                await built.consuming.finish()
                # Nothing may follow the offsets that finish appended.
                self._end_appends_and_pulls(built)
                await self._drain(log_context)
                await built.config_files.write_all()
        finally:
            opened.set()
            self._lead.shut()
            self._end_appends_and_pulls(built)
            log_context.durability.end_waits()
            self._flush_stop.set()
            for ended in self._appending_ended.values():
                await ended.wait()
            await asyncio.to_thread(
                log_context.appender.close, clean=not log_context.flusher.failed
            )
            # Without waiting for the parts that only read: they may take longer.
            self._lead.release()

    async def _drain(self, log_context: LogContext) -> None:
        """Wait for a limited time until the group has confirmed the appended records, so that their
        senders are answered before the node stops."""
        until = self._clock.monotonic() + DRAIN_S
        while log_context.durability.poll() and self._term.is_valid:
            if self._clock.monotonic() > until:
                return
            await self._doorbell.wait(BUSY_POLL_S)

    async def _is_recorded(self, built: BuiltComponents) -> bool:
        """Append the first records of the term; return False if the term ends first."""
        while self._continues:
            try:
                end = await built.opening.run(self._over)
                if end is None:
                    return False
                self._recorded = end
                self._lead.recorded(built.core.log, end)
                self._doorbell.wake()  # from here on the confirmation is polled often
                return True
            except SwitchingOver:
                await self._tick()  # held by an earlier switch, which ha will end
            except NotServing:
                if self._continues:
                    raise
        return False

    async def _tick(self) -> None:
        """Wait for a moment, or until the term ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SWITCH_POLL_S):
                await self._over.wait()

    async def _is_confirmed(self) -> bool:
        """Wait until the first records are confirmed; return False if the term ends first."""
        ended = asyncio.create_task(self._over.wait())
        confirmed = asyncio.create_task(self._confirmed.wait())
        try:
            await asyncio.wait({ended, confirmed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            confirmed.cancel()
        return not self._over.is_set()

    def _end_appends_and_pulls(self, built: BuiltComponents) -> None:
        """Append nothing more, and wake waiting consumers, which must pull again."""
        built.core.append.close()
        built.components.read.puller.long_polls.close()

    def _appending(self, parts: dict[str, Part]) -> dict[str, Part]:
        """Return the parts that must end before another process may write the log."""

        def noted(name: str, part: Part) -> Part:
            ended = self._appending_ended[name] = asyncio.Event()

            async def run() -> None:
                try:
                    await part()
                finally:
                    ended.set()

            return run

        return {name: noted(name, part) for name, part in parts.items()}

    async def _pulse(self, built: BuiltComponents, leaving: asyncio.Event) -> None:
        """Check what other processes publish: at every doorbell, and often while a caller waits."""
        log_context, puller = built.core.log, built.components.read.puller
        while not self._over.is_set():
            if not self._term.is_valid:
                # A broker that is stopped has asked ha to switch to another node.
                log.log(
                    logging.INFO if leaving.is_set() else logging.WARNING,
                    "the grant has ended",
                    extra={"event": "fenced", "epoch": self._term.epoch},
                )
                self._over.set()
                return
            self._lead.watch(log_context)
            senders_wait, pullers_wait = log_context.durability.poll(), puller.wake_held()
            opens = not self._confirmed.is_set()
            if opens and self._lead.is_confirmed(log_context, self._recorded):
                self._confirmed.set()
            is_busy = senders_wait or pullers_wait or (opens and self._recorded is not None)
            await self._doorbell.wait(BUSY_POLL_S if is_busy else self._lead.poll_s)

    async def _end_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._over.set()
        self._doorbell.wake()
