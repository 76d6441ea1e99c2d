"""Starts of services: actors that take one step at a time, and are killed and paused together.

An actor is a generator. ``yield 0`` is a border between two steps, where any other actor may go on
and where its process may be killed or stopped; ``yield n`` sleeps n µs unless it is woken;
``yield -n`` is n µs of work that nothing shortens. A killed actor is never resumed: whatever it had
not done stays undone, so actors hold nothing that ``finally`` would have to give back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from tests.simulation.replication.timeline import Timeline

Steps = Generator[int, None, None]
WAKE_MAX_US = 300
SWITCH_MAX_US = 400


class Process:
    """One start of a service."""

    def __init__(self, timeline: Timeline, name: str, *, preemption: float) -> None:
        """preemption: how often another actor goes on at the border of two steps."""
        self.name = name
        self.alive = True
        self.paused = False
        self.preemption = preemption
        self.on_end: list[Callable[[], None]] = []
        self._timeline = timeline
        self._actors: list[Actor] = []
        self._steps_left = 0
        self._strike: Callable[[], None] | None = None

    def start(self, name: str, steps: Steps) -> Actor:
        """Begin an actor of this process."""
        actor = Actor(self._timeline, self, name, steps)
        self._actors.append(actor)
        self._timeline.after(self._timeline.random.randint(1, SWITCH_MAX_US), actor.go_on)
        return actor

    def strike_after(self, steps: int, strike: Callable[[], None]) -> None:
        """Call strike at the border behind so many steps: it kills or pauses."""
        self._steps_left, self._strike = steps, strike

    def undisturbed(self) -> bool:
        """Whether the next few accesses follow each other without a border: drawn anew each time.

        Most histories differ in where the few interruptions are, not in how many there are.
        """
        return self._strike is None and self._timeline.random.random() >= 2 * self.preemption

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            for actor in self._actors:
                actor.resumed()

    def calm(self) -> None:
        """Go on, whatever was planned."""
        self._strike = None
        self.resume()

    def end(self) -> None:
        """Gone, at once: killed, or ended by itself."""
        if self.alive:
            self.alive = False
            self._strike = None
            for call in self.on_end:
                call()

    def stepped(self) -> bool:
        """A step was done. Whether the next one may follow."""
        if self._strike is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                strike, self._strike = self._strike, None
                strike()
        return self.alive and not self.paused


class Actor:
    """One thread of control of a process."""

    def __init__(self, timeline: Timeline, process: Process, name: str, steps: Steps) -> None:
        self.name = name
        self._timeline, self._process, self._steps = timeline, process, steps
        self._ticket = 0
        """Of the resumption that counts; older ones that are still on the timeline do nothing."""
        self._sleeping = False
        self._due = False
        """Its time came while the process was stopped."""
        self._ended = False

    def wake(self) -> None:
        """Cut its sleep short; nothing if it works."""
        if self._sleeping and not self._due:
            self._sleeping = False
            self._schedule(self._timeline.random.randint(1, WAKE_MAX_US))

    def resumed(self) -> None:
        """The process goes on after a stop."""
        if self._due:
            self._due = False
            self._schedule(self._timeline.random.randint(1, SWITCH_MAX_US))

    def go_on(self) -> None:
        """Take steps until it sleeps, works, or another one's turn comes."""
        self._sleeping = False
        process, timeline = self._process, self._timeline
        if not process.alive or self._ended:
            return
        if process.paused:
            self._due = True
            return
        random = timeline.random.random
        while True:
            try:
                delay = next(self._steps)
            except StopIteration:
                self._ended = True
                return
            if not process.stepped():
                self._due = process.alive
                return
            if delay:
                self._sleeping = delay > 0
                self._schedule(abs(delay))
                return
            if random() < process.preemption:
                self._schedule(timeline.random.randint(1, SWITCH_MAX_US))
                return

    def _schedule(self, delay_us: int) -> None:
        self._ticket += 1
        ticket = self._ticket

        def go_on() -> None:
            if ticket == self._ticket:
                self.go_on()

        self._timeline.after(delay_us, go_on)
