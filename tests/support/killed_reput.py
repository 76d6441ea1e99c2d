"""A reput that is killed (SIGKILL, by itself) inside the index code.

``python -m tests.support.killed_reput N`` takes the arguments of ``python -m services.reput`` and
ends before the N-th line it runs of the index code. With ``instructions:N`` instead of N it ends
N machine instructions after it began to put rows: between two stores of the compiled twin, which
has no lines. Where a signal from outside would have to hit some microseconds, this hits all.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from tests.support.kill_points import killed_at
from tests.support.machine_steps import kill_this_process_after
from tidemark.formats import index_file

WITHIN = (
    "/services/reput/index_writer.py",
    "/tidemark/formats/index_file.py",
    "/tidemark/formats/index_chains.py",
)


def main() -> None:
    """Run the service's own entry point until the kill, which may come in any of its threads."""
    unit, _, number = sys.argv.pop(1).rpartition(":")
    if unit:
        _kill_inside_put(int(number))
        _run()
        return
    with killed_at(
        int(number), within=WITHIN, at_kill=lambda: os.kill(os.getpid(), signal.SIGKILL)
    ):
        threading.settrace(sys.gettrace())
        _run()


def _run() -> None:
    runpy.run_module("services.reput", run_name="__main__", alter_sys=True)


def _kill_inside_put(instructions: int) -> None:
    put_rows = vars(index_file)["put_rows"]

    def killed(*arguments: object) -> int:
        kill_this_process_after(instructions)
        put: int = put_rows(*arguments)
        return put

    vars(index_file)["put_rows"] = killed


if __name__ == "__main__":
    main()
