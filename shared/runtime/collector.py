"""The garbage collector of a process that answers requests: seldom, little at a time, not now.

Nearly everything here goes by its reference count; what does not, cycles of exceptions and tasks,
is rare and small. Before: a process begins to serve, or to be scraped. After: nobody's answer waits
for a collection that finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (20_000, 500, 50)
"""Objects until the first generation is collected, and how many collections of one generation until
the next. A collection of so many takes up to 8 ms; a request of 4,096 messages makes nearly as many
while the one before is still there, and should not pay for one."""
MEANWHILE_MAX: Final = 200_000
"""Objects that may gather while the collector waits, so that memory is bounded by them if somebody
never ends: a scrape of 10,000 topics and groups leaves 12,000, the first one 70,000."""


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
    gc.set_threshold(*THRESHOLDS)


class Waiting:
    """Work, several at a time, that makes many objects while others wait for the loop."""

    def __init__(self) -> None:
        self.count = 0
        """Under way now."""
        self._thresholds = gc.get_threshold()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """The collector waits until the last one has ended.

        What is left then is at once in the oldest generation, without having been walked: looked at
        in between it cost 2 to 9 ms again and again, during which all sends stood still.
        """
        if self.count == 0:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(max(self._thresholds[0], MEANWHILE_MAX), *self._thresholds[1:])
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            if self.count == 0:
                gc.freeze()  # moves all there is, whatever its size, in no time
                gc.unfreeze()  # and back, to the oldest generation
                gc.set_threshold(*self._thresholds)
