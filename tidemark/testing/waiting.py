"""Waits for a condition with a deadline, instead of pausing for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.01


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
) -> None:
    """Return as soon as condition() is true; raise AssertionError naming ``what`` on timeout.

    An exception of condition() ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            # Not TimeoutError, which is an OSError: a caller that suppresses the errors of a server
            # that is down must not suppress this one.
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(poll_s)
