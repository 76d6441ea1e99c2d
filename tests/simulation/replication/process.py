"""Starts of services: threads that run the product's own code, and are killed and paused together.

A thread is a greenlet. At a *border* (an access to the page, a step of the disk, a lock) any other
thread may go on, and the process may be killed or paused there. A killed process never goes on: its
threads are unwound by ``Killed``, and every access raises it again, so that no ``finally`` of a
dead process changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from greenlet import GreenletExit, greenlet

from tests.simulation.replication.timeline import Timeline

if TYPE_CHECKING:
    from tests.simulation.replication.loop import Loop
    from tests.simulation.replication.machine import Machine

WAKE_MAX_US = 300
SWITCH_MAX_US = 400
LOADS_PER_STORE = 4
"""Another thread goes on this much more often after a store than after a load."""


class Killed(SystemExit):
    """The process is gone. It is a SystemExit because asyncio handles most other exceptions
    itself."""


class DeadlineCheck(NamedTuple):
    """A check of the lease's deadline by a broker."""

    step: int
    """Step of its loop."""
    in_time: bool


class Process:
    """One start of a service of one node."""

    def __init__(self, machine: Machine, name: str, *, preemption: float) -> None:
        """preemption: how often another thread goes on at a border."""
        self.machine, self.name = machine, name
        self.timeline: Timeline = machine.timeline
        self.alive = True
        self.paused = False
        self.opened: object = None
        """State of the broker's last term; None until the components that wait for its open epoch
        have been woken."""
        self.released_us = 0
        """When it last released byte 0."""
        self.is_finished = False
        """Whether it shut down cleanly, with all work done."""
        self.begun_us = self.resumed_us = self.timeline.now_us
        """When it began, or last continued after a pause."""
        self.pause_us = 0
        """Duration of that pause."""
        self.idle_us = 0
        """When it was last paused, or ended."""
        self.resumed_at = -1
        """Step of its loop at the end of the last pause."""
        self.last_check = DeadlineCheck(-1, in_time=False)
        """Its last check of grant and deadline."""
        self.fence_loaded_us = -1
        """When it last loaded FENCED."""
        self.preemption = preemption
        self.on_end: list[Callable[[], None]] = []
        self.loop: Loop | None = None
        self._threads: list[Thread] = []
        self.quiet = 0
        """Remaining borders, with stores counted several times, until another thread may go on."""
        self._steps_left = 0
        self._strike: Callable[[], None] | None = None
        self._draw_quiet()

    def start(self, name: str, run: Callable[[], None], *, loop: Loop | None = None) -> Thread:
        """Begin a thread of this process."""
        thread = Thread(self, name, run, loop)
        self._threads = [each for each in self._threads if not each.ended]
        self._threads.append(thread)
        thread.schedule(self.timeline.random.randint(1, SWITCH_MAX_US))
        return thread

    def strike_after(self, steps: int, strike: Callable[[], None]) -> None:
        """Call strike at the border after that many steps: it kills or pauses the process."""
        self._steps_left, self._strike = steps, strike
        self.quiet = 0

    @property
    def is_threatened(self) -> bool:
        """Whether it is about to be killed or paused."""
        return self._strike is not None

    def pause(self) -> None:
        """SIGSTOP."""
        if not self.paused:
            self.idle_us = self.timeline.now_us
        self.paused = True
        self.quiet = 0

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self.resumed_us = self.timeline.now_us
            self.pause_us = self.resumed_us - self.idle_us
            self.resumed_at = -1 if self.loop is None else self.loop.steps
            for thread in self._threads:
                thread.resumed()

    def calm(self) -> None:
        """Cancel a planned strike and continue."""
        self._strike = None
        self.resume()

    def end(self) -> None:
        """End the process at once, by a kill or by itself."""
        if self.alive:
            if not self.paused:
                self.idle_us = self.timeline.now_us
            self.alive = False
            self._strike = None
            self.timeline.after(0, self.unwind)
            for call in self.on_end:
                call()

    def check_alive(self) -> None:
        """Raise Killed if the process is gone."""
        if not self.alive:
            raise Killed

    def interrupted(self) -> bool:
        """Run a planned strike at a border that lets others go on; return whether another thread
        goes on."""
        if self._strike is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                strike, self._strike = self._strike, None
                strike()
        self.check_alive()
        if self._strike is not None:
            self.quiet = 0
            return False
        self._draw_quiet()
        return True

    def _draw_quiet(self) -> None:
        between = self.timeline.random.expovariate(self.preemption) if self.preemption else 1e9
        self.quiet = int(between * LOADS_PER_STORE)

    def unwind(self) -> None:
        """End its threads after the end of the process. Called from the hub."""
        for thread in self._threads:
            thread.unwind()
        self._threads.clear()
        if self.loop is not None:
            self.loop.dispose()


class Thread:
    """One thread of control of a process."""

    def __init__(
        self, process: Process, name: str, run: Callable[[], None], loop: Loop | None
    ) -> None:
        self.process, self.name, self.loop = process, name, loop
        self.ended = False
        self._run, self._timeline = run, process.timeline
        self._greenlet = greenlet(self._body, parent=process.timeline.hub)
        self._ticket = 0
        """Number of the resumption that counts. Older ones on the timeline do nothing."""
        self._parked = False
        self._due = False
        """Whether its time came while the process was paused."""
        self._joining: list[Thread] = []

    def schedule(self, delay_us: int) -> None:
        """Go on after the delay, and not before."""
        self._ticket += 1
        self._timeline.after(delay_us, partial(self._go_on, self._ticket))

    def work(self, duration_us: int) -> None:
        """Spend that much time. Only for the running thread."""
        self.schedule(duration_us)
        self._let_others()

    def park(self, timeout_us: int | None = None) -> None:
        """Wait until woken, or until the timeout. Only for the running thread."""
        self._ticket += 1
        self._parked = True
        if timeout_us is not None:
            self.schedule(max(1, timeout_us))
        self._let_others()

    def wake(self) -> None:
        """End the wait; does nothing if the thread does not wait."""
        if self._parked and not self._due:
            self._parked = False
            self.schedule(self._timeline.random.randint(1, WAKE_MAX_US))

    def resumed(self) -> None:
        """Continue after a pause of the process."""
        if self._due:
            self._due = False
            self.schedule(self._timeline.random.randint(1, SWITCH_MAX_US))

    def join(self, other: Thread) -> None:
        """Wait until the other thread has ended. Only for the running thread."""
        while not other.ended:
            other._joining.append(self)
            self.park()

    def border(self, *, of_load: bool) -> None:
        """Let others go on if it is time. Only for the running thread."""
        process = self.process
        process.quiet -= 1 if of_load else LOADS_PER_STORE
        if process.quiet > 0:
            return
        goes_on = process.interrupted()
        if process.paused:
            self._due = True
            self._let_others()
        elif goes_on:
            self.work(self._timeline.random.randint(1, SWITCH_MAX_US))

    def unwind(self) -> None:
        """End the thread now. Called from the hub, after the end of the process."""
        if self._greenlet and not self._greenlet.dead:
            with contextlib.suppress(Exception):
                self._greenlet.throw(Killed)
        self.ended = True

    def _let_others(self) -> None:
        self._timeline.hub.switch()
        self.process.check_alive()

    def _go_on(self, ticket: int) -> None:
        if ticket != self._ticket or self.ended or not self.process.alive:
            return
        if self.process.paused:
            self._due = True
            return
        self._parked = False
        _running.append(self)
        asyncio._set_running_loop(self.loop)
        try:
            self._greenlet.switch()
        finally:
            _running.pop()
            asyncio._set_running_loop(None)

    def _body(self) -> None:
        try:
            if self.process.alive:
                self._run()
        except (Killed, GreenletExit):
            return
        finally:
            self.ended = True
            for thread in self._joining:
                thread.wake()


_running: list[Thread] = []
"""The thread that runs now; empty if the world itself runs."""


def running() -> Thread | None:
    """The simulated thread that runs now; None if the world itself runs."""
    return _running[0] if _running else None


def border(*, of_load: bool = False) -> None:
    """Mark a step of the running thread that other processes can see, or a load of what they
    store."""
    thread = running()
    if thread is not None:
        thread.border(of_load=of_load)


def work(duration_us: int) -> None:
    """Let the running thread spend that much time."""
    thread = running()
    if thread is not None:
        thread.work(duration_us)
