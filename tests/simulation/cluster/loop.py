"""The event loop of a whole world: asyncio's own tasks and timers, in virtual time.

Each callback belongs to a *host*, a simulated process, by its context. A host that is stopped runs
nothing; its callbacks follow when it continues, as after SIGSTOP and SIGCONT. A killed host never
continues.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

TURN_S: Final = 0.000_02
"""Duration of an iteration that does not wait, so that time always advances."""
KEPT_TASKS_MIN: Final = 4096


class Host:
    """One simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = self.is_dead = False
        self.context: Context = copy_context()
        """Callbacks in it belong to the host."""
        self.context.run(HOST.set, self)

    def stop(self) -> None:
        """Run nothing until ``resume``."""
        self.is_stopped = True

    def resume(self, loop: Loop) -> None:
        """Run on, first the callbacks that are late. A dead host stays dead."""
        if not self.is_dead:
            self.is_stopped = False
            loop.run_late(self)

    def kill(self) -> None:
        """Run nothing any more."""
        self.is_stopped = self.is_dead = True


HOST: ContextVar[Host] = ContextVar("host")
"""The host to which the running callback belongs."""


class Loop(asyncio.BaseEventLoop):
    """The loop of one world. It is its clock too (``tidemark.clock.Clock``)."""

    _ready: Any

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        """wall_ms: wall clock at the beginning."""
        super().__init__()
        self._now_s, self._wall_ms = 1000.0, wall_ms
        self.failures: list[BaseException] = []
        """Exceptions that no task has handled."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Timers by time; the number keeps those of one time in order."""
        self._timer_count = 0
        self._late: dict[Host, list[asyncio.Handle]] = {}
        """Callbacks of stopped hosts, in order."""
        self._is_ending = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = KEPT_TASKS_MIN
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Seconds of the virtual clock."""
        return self._now_s

    def monotonic(self) -> float:
        """Seconds of the virtual clock."""
        return self._now_s

    def wall_ms(self) -> int:
        """Milliseconds of the wall clock, which is right everywhere."""
        return self._wall_ms + int(self._now_s * 1000)

    def boot_ms(self) -> int:
        """Milliseconds since boot."""
        return int(self._now_s * 1000)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def start(self, coroutine: Coroutine[Any, Any, None], host: Host) -> None:
        """Run a part of a host; its failure is kept."""
        task = self.create_task(coroutine, context=host.context)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failures.append(failure)

    def run_late(self, host: Host) -> None:
        """Run the callbacks that a host has not run, in the next iteration."""
        self._ready.extend(self._late.pop(host, ()))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the exception of a callback or of a task that is not awaited."""
        if (error := context.get("exception")) is not None:
            self.failures.append(error)

    def dispose(self) -> None:
        """Cancel all tasks that are left until they have ended, and close the loop."""
        self._is_ending = True
        for host in tuple(self._late):
            self.run_late(host)
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0.01))
        self._timers.clear()
        self._tasks.clear()
        self.close()

    def _make_task(self, loop: Any, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        """Make a task and keep it: tasks of a killed host wait for what never comes."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        if len(self._tasks) > self._prune_at:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._prune_at = max(KEPT_TASKS_MIN, 2 * len(self._tasks))
        self._tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Do nothing: the handle is dropped when its time comes."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        self._now_s += TURN_S
        if not ready:
            if not timers:
                raise RuntimeError("nothing is left to happen in this world")
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(HOST)
            if host is not None and host.is_stopped and not self._is_ending:
                self._late.setdefault(host, []).append(handle)
            else:
                handle._run()
