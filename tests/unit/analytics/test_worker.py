"""Settings of a worker, in a process of its own: they last as long as the process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from analytics.worker import exempt_modules_from_gc

exempt_modules_from_gc()
frozen, kept = gc.get_freeze_count(), [[] for _ in range(1000)]
exempt_modules_from_gc()
print(frozen > 1000, gc.get_freeze_count() == frozen, len(gc.get_objects()) < frozen)
"""


def test_only_what_a_worker_has_imported_before_its_first_task_is_exempt_from_collection() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split() == ["True", "True", "True"]
