"""Runs blocking work in parallel, each for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


def run_all(works: Mapping[str, Callable[[], None]], seconds: float) -> list[str]:
    """Run all works, each for at most ``seconds``; return the names of those that have not ended.

    They run in daemon threads, because a call into a dead network file system cannot be
    interrupted; such a thread is abandoned when the process ends. Raises the first exception of a
    work, which is a bug of ours.
    """
    defects: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 raised again by the caller, not in a thread
            defects.append(error)

    threads = [
        threading.Thread(target=run, args=(work,), name=name, daemon=True)
        for name, work in works.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    running = [thread.name for thread in threads if thread.is_alive()]
    # Asked afterwards: a work that raises in between counts as running, not as successful.
    if defects:
        raise defects[0]
    return running
