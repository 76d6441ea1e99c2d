"""A thread that runs blocking work in order.

Step before: ``replica_disk`` gives it the work of an effect. Step after: the work itself reports
its end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

PASSED_POLL_S: Final = 0.1
"""Interval at which a thread that waits for another checks whether that has ended."""


class Worker:
    """A thread that runs its jobs in order."""

    def __init__(
        self,
        name: str,
        crashed: Callable[[BaseException], None],
        first: Callable[[], None] = lambda: None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """first: run before all jobs. rest: run after a job whenever no other one waits."""
        self._crashed, self._first, self._rest = crashed, first, rest
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Run a job after all earlier ones."""
        self._jobs.put(job)

    def put_behind(self, other: Worker, job: Callable[[], None]) -> None:
        """Run a job after all earlier ones, and after the present jobs of the other worker."""
        passed = threading.Event()
        other.put(passed.set)

        def wait_and_run() -> None:
            while not passed.wait(PASSED_POLL_S):
                if other._is_over.is_set():
                    return
            job()

        self.put(wait_and_run)

    def close(self) -> None:
        """End after all earlier jobs. Blocks. Does nothing if it was not started."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._first()
            while (job := self._jobs.get()) is not None:
                job()
                if self._jobs.empty():
                    self._rest()
        except Exception as error:  # noqa: BLE001 - whatever it is ends the process
            self._crashed(error)
        finally:
            self._is_over.set()
