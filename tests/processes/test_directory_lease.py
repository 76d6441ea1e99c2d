"""The lease in a directory, written by several processes at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from services.ha.lease.directory import VERSIONS_KEPT, DirectoryObject
from tests.unit.ha.lease.test_directory import NAME, found, made

__all__ = ["made"]  # a fixture of this module


WRITER = """
import sys
from pathlib import Path
from services.ha.core.events import LeaseOutcome
from services.ha.lease.directory import DirectoryObject
from tidemark.offsets import Epoch

lease = DirectoryObject(Path(sys.argv[1]), "tidemark-g0")
shown = 0
while not Path(sys.argv[2]).exists():
    stored = lease.get().stored
    assert stored.lease.epoch >= shown, (stored.lease.epoch, shown)
    shown = stored.lease.epoch
    outcome = lease.put(stored.lease._replace(epoch=Epoch(shown + 1)), stored).outcome
    if outcome is LeaseOutcome.APPLIED:
        print(shown + 1, flush=True)
"""


def _until(happened: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_two_processes_get_the_same_epoch_while_some_are_stopped_and_killed(
    made: DirectoryObject, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    journals = [tmp_path / f"journal-{number}" for number in range(5)]
    writers = []
    for journal in journals:
        with journal.open("wb") as output:
            writers.append(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, str(tmp_path), str(stop)], stdout=output
                )
            )
    try:
        _until(lambda: all(journal.stat().st_size for journal in journals))
        chance = random.Random(5)
        for _ in range(60):
            # Stopped for a time between one step of the others and some dozens of their versions.
            held = chance.choice(writers)
            os.kill(held.pid, signal.SIGSTOP)
            reached = found(made.get()).lease.epoch + chance.choice([0, 1, 5, 20, 60])
            _until(lambda reached=reached: found(made.get()).lease.epoch >= reached)  # type: ignore[misc]
            os.kill(held.pid, signal.SIGCONT)
        writers[0].kill()
        os.kill(writers[1].pid, signal.SIGSTOP)
        reached = found(made.get()).lease.epoch + 100
        _until(lambda: found(made.get()).lease.epoch >= reached)
        os.kill(writers[1].pid, signal.SIGCONT)
        stop.touch()
        assert [writer.wait(30) for writer in writers[1:]] == [0] * 4
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    reported = [int(line) for journal in journals for line in journal.read_text().splitlines()]
    last = found(made.get()).lease.epoch
    assert len(set(reported)) == len(reported)
    assert max(reported) == last
    # A writer that is overtaken between its link and the read after it reports less, not more.
    assert len(reported) > 0.9 * (last - 1)
    assert len(list((tmp_path / NAME).iterdir())) <= VERSIONS_KEPT + 6
