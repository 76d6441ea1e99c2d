"""The garbage collector of a process that answers requests: seldom, and not now.

Nearly everything here goes by its reference count; what does not, cycles of exceptions and tasks,
is rare and small. There is one collector in a process, whoever asks it to wait.
Before: a process begins to serve, or to be scraped. After: nobody's answer waits for a collection
that finds nothing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (20_000, 500, 50)
"""Objects until the first generation is collected, and how many collections of one generation until
the next. A collection of so many takes up to 8 ms; a request of 4,096 messages makes nearly as many
while the one before is still there, and should not pay for one."""
MEANWHILE_MAX: Final = 100_000
"""Objects that may gather while the collector waits: memory is bounded by them if somebody never
ends. A scrape of 10,000 topics and groups leaves 1,200, the first one 60,000."""


class _Waits:
    """Who lets the collector wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.usual = gc.get_threshold()
        """Thresholds when nobody does."""


_waits: Final = _Waits()


def settle() -> None:
    """Keep the collector out of the way of requests.

    What was made until now lives as long as the process: it is frozen, so that no collection walks
    it. And the first generation is collected after more objects than the usual 700, for a request
    of 256 messages in JSON makes more than that, all of them alive when they are counted: each such
    request would pay for a collection that finds nothing.
    """
    gc.unfreeze()  # of a role before, that is over
    gc.collect()
    gc.freeze()
    with _waits.lock:
        if _waits.count:
            _waits.usual = THRESHOLDS
        else:
            gc.set_threshold(*THRESHOLDS)


@contextmanager
def waits() -> Iterator[None]:
    """Work that makes many objects while others wait for the loop: the collector waits until the
    last such work has ended, or MEANWHILE_MAX objects have gathered.

    Most are gone by then. One collection in the middle walks all that there are, 2 to 9 ms, again
    and again.
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
