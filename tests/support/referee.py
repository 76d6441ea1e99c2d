"""Apache RocketMQ's own classes: the programs in tests/referee, built by `make referee`.

``Writer`` writes a store, ``Timer`` runs one with RocketMQ's timer. ``Referee`` opens a store of
ours with RocketMQ's message store and managers, prints what they answer, puts a few messages of its
own, may make a group as a broker would, and closes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.command import PROJECT
from tests.support.node import SMALL_STORE

CLASSES: Final = PROJECT / "build" / "referee"
PROGRAMS: Final = ("Referee", "Timer", "Writer")
PROBES: Final = 3
"""Messages that it puts into the first queue of each topic but the store's own."""
KINDS: Final = frozenset(
    {
        "topic", "group", "offset", "level", "log", "queue", "message", "found", "put", "unit",
        "pull", "part",
    }
)  # fmt: skip


def classpath() -> str:
    """Return the class path of the referee; skip the test if it is not built."""
    if shutil.which("java") is None or not all(
        (CLASSES / "classes" / f"{program}.class").exists() for program in PROGRAMS
    ):
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail("the referee is not built: run `make referee`")
        pytest.skip("the referee is not built: run `make referee` (needs Maven and Java 17)")
    return f"{CLASSES / 'classes'}:{CLASSES / 'lib'}/*"


def write_store(
    store: Path,
    home: Path,
    *flags: str,
    count: int,
    shape: Mapping[str, object] = SMALL_STORE,
) -> None:
    """Let the real implementation write a store of count messages.

    flags: "ext" for consume queue extensions, "batches" for inner batches besides, "kill" to end
    without a shutdown.
    """
    _run("Writer", store, home, shape, str(count), *flags)


def run_timer(
    store: Path, home: Path, *orders: str, roll_window_s: int, shape: Mapping[str, object]
) -> list[str]:
    """Let the real timer run on a store; return the unique ids of the messages in "orders", in
    order.

    orders: as the program ``Timer`` takes them. roll_window_s: messages that are due after this
    time are put back into the queue.
    """
    printed = _run("Timer", store, home, shape, str(roll_window_s), *orders)
    lines = [line.split("\t") for line in printed.splitlines()]
    return [line[1] for line in lines if line[0] == "delivered"]


def refused(store: Path, home: Path, shape: Mapping[str, object] = SMALL_STORE) -> str:
    """What the real implementation says when it cannot start on a store."""
    done = _start("Writer", store, home, shape, "1")
    assert done.returncode == 1, done.stdout[-3000:]
    return done.stderr


def judge(
    store: Path,
    home: Path,
    shape: Mapping[str, object] = SMALL_STORE,
    *,
    group: str | None = None,
) -> list[list[str]]:
    """Lines that the real implementation prints of a store, split at tabs.

    shape: the sizes of the store's files. group: a group that it makes, which has consumed every
    queue to its end; the files are then written as RocketMQ's broker writes them.
    """
    printed = _run("Referee", store, home, shape, str(PROBES), *([] if group is None else [group]))
    lines = [line.split("\t") for line in printed.splitlines()]
    return [line for line in lines if line[0] in KINDS]


def _run(
    program: str, store: Path, home: Path, shape: Mapping[str, object], *arguments: str
) -> str:
    done = _start(program, store, home, shape, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _start(
    program: str, store: Path, home: Path, shape: Mapping[str, object], *arguments: str
) -> subprocess.CompletedProcess[str]:
    sizes = ("commit_log_file_size", "consume_queue_file_size", "index_slots", "index_entries")
    return subprocess.run(
        [
            "java",
            f"-Duser.home={home}",
            "-cp",
            classpath(),
            program,
            str(store),
            *(str(shape[name]) for name in sizes),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
