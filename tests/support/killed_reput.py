"""A reput that is killed (SIGKILL, by itself) before the N-th line it runs of the index code.

``python -m tests.support.killed_reput N`` takes the arguments of ``python -m services.reput``.
Where a signal from outside would have to hit some microseconds, this hits every line.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from tests.support.kill_points import killed_at

WITHIN = (
    "/services/reput/index_writer.py",
    "/tidemark/formats/index_file.py",
    "/tidemark/formats/index_chains.py",
)


def main() -> None:
    """Run the service's own entry point until that line, in whatever thread it runs."""
    step = int(sys.argv.pop(1))
    with killed_at(step, within=WITHIN, at_kill=lambda: os.kill(os.getpid(), signal.SIGKILL)):
        threading.settrace(sys.gettrace())
        runpy.run_module("services.reput", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
