"""Waiting for a condition with a deadline: never a pause of a length that somebody guessed."""

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
    """Return as soon as condition() is true; AssertionError naming ``what`` after the deadline.

    What condition() raises ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            # Not TimeoutError, which is an OSError: where a caller suppresses those of a server
            # that is down, a wait that was in vain would pass for one that was not.
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(poll_s)
