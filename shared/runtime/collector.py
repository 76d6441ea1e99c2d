"""Settings of Python's garbage collector in a process that answers requests: it runs rarely.

Nearly all objects are freed by their reference count. The rest, reference cycles of exceptions and
tasks, are rare and small. A process has one collector, so its settings are shared by all callers.
They are set when a process begins to serve or to be scraped. Then no request waits for a collection
that finds nothing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (20_000, 500, 50)
"""Number of objects that starts a collection of the first generation, and number of collections of
one generation that starts one of the next. A collection at 20,000 objects takes up to 8 ms. A
request of 4,096 messages creates nearly as many while those of the request before are still alive,
and should not pay for a collection."""
MEANWHILE_MAX: Final = 100_000
"""Objects that may accumulate while collection is paused; bounds memory if a pause never ends. A
scrape of 10,000 topics and groups leaves 1,200 objects, the first scrape 60,000."""


class _Waits:
    """Counts the running pauses of the collector."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.usual = gc.get_threshold()
        """Thresholds that apply while there is no pause."""
        self.has_settled = False


_waits: Final = _Waits()


def settle() -> None:
    """Keep the collector out of the way of requests.

    Objects created so far live as long as the process: they are frozen, so that no collection
    traverses them. The first generation is collected after more objects than the default 700. A
    request of 256 messages in JSON creates more than 700 objects, all alive when they are counted,
    so with the default each such request would pay for a collection that finds nothing.
    """
    with _waits.lock:
        if _waits.has_settled:
            gc.unfreeze()  # objects frozen for a previous role, which has ended
        # At the first time only what was imported is frozen (``quick_start``).
        _waits.has_settled = True
    gc.collect()
    gc.freeze()
    with _waits.lock:
        if _waits.count:
            _waits.usual = THRESHOLDS
        else:
            gc.set_threshold(*THRESHOLDS)


@contextmanager
def waits() -> Iterator[None]:
    """Pause collection during work that creates many objects while requests wait for the loop.

    The pause ends when the last such work has ended, or earlier once MEANWHILE_MAX objects have
    accumulated. Most of the objects are freed by then. Without the pause, each of several
    collections during the work would traverse all of them, which takes 2 to 9 ms.
    """
    with _waits.lock:
        if _waits.count == 0:
            _waits.usual = gc.get_threshold()
            gc.set_threshold(max(_waits.usual[0], MEANWHILE_MAX), *_waits.usual[1:])
        _waits.count += 1
    try:
        yield
    finally:
        with _waits.lock:
            _waits.count -= 1
            if _waits.count == 0:
                gc.set_threshold(*_waits.usual)
