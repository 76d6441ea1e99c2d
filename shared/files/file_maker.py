"""A thread that creates files ahead of use, so that no write waits for a disk.

It is optional: a simulation, or a service with its own executor, calls the same function inline.
The first request starts the thread, and ``stop`` ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidemark.errors import StoreError


class FileMaker:
    """Runs ``make`` once for all requests that came before the run started."""

    def __init__(self, make: Callable[[], None], name: str) -> None:
        """make: blocking and safe to repeat; ``wait`` raises its StoreError or OSError."""
        self._make = make
        self._name = name
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requests = 0
        self._answered = 0
        self._stopping = False
        self._error: StoreError | OSError | None = None

    def request(self) -> int:
        """Request a run; returns its number for ``wait``."""
        with self._changed:
            self._requests += 1
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self._requests

    def wait(self, request: int, timeout_s: float) -> bool:
        """Wait for the run that serves the request; False if it has not ended in time. Raises what
        make raised. After a time-out the run continues."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._answered < request:
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping:
                    return False
                self._changed.wait(left)
            if self._error is not None:
                raise self._error
            return True

    def stop(self) -> None:
        """End the thread after the present run."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._answered == self._requests and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                request = self._requests
            error: StoreError | OSError | None = None
            try:
                self._make()
            except (StoreError, OSError) as failure:
                error = failure
            with self._changed:
                self._answered, self._error = request, error
                self._changed.notify_all()
