"""Settings of a Python worker of Spark, in which the tasks of jobs and sources run."""

from __future__ import annotations

import gc


def exempt_modules_from_gc() -> None:
    """Exempt everything that the worker has imported from garbage collection. Each task calls it.

    A worker of Spark collects after each task, before it accepts the next one. Visiting the objects
    of pandas, pyarrow and our modules takes 40 ms each time; almost none of them are garbage.
    """
    if not gc.get_freeze_count():
        gc.freeze()
