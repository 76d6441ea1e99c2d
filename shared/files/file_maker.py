"""A thread that makes files ahead when asked, so that nobody who writes waits for a disk.

Only where it is wanted: a simulation, and a service that has its own executor, call the same
function inline. The thread is started by the first request and ended by ``stop``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidemark.errors import StoreError


class FileMaker:
    """Runs ``make`` once for any number of requests that came before it started."""

    def __init__(self, make: Callable[[], None], name: str) -> None:
        """make: blocking and safe to repeat; its StoreError or OSError is kept for ``wait``."""
        self._make = make
        self._name = name
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requests = 0
        self._answered = 0
        self._stopping = False
        self._error: StoreError | OSError | None = None

    def request(self) -> int:
        """Ask for one more run; returns its number for ``wait``."""
        with self._changed:
            self._requests += 1
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self._requests

    def wait(self, request: int, timeout_s: float) -> bool:
        """Wait for the run that answers request; False if it is not over in time.

        Raises what make raised. The run goes on after a timeout.
        """
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
        """End the thread after the run in hand."""
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
