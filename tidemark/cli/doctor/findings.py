"""What a check says: a level, the cause with its number and limit, the remedy, a stable code.

Every code heads an entry of docs/runbook.md. What could not be found out is a finding of its own:
silence would be read as health.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

CHECK_S: Final = 10.0
"""A check that takes longer is given up: a file system that hangs, a name that nobody resolves."""


class Level(StrEnum):
    """How bad it is; the last one makes the command fail."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    """What was looked at, ``disk.space``."""
    level: Level
    subject: str
    """Of what: a path, a node, an address."""
    cause: str
    value: float | str | None = None
    """What was found, in unit."""
    limit: float | str | None = None
    """What it is compared with, in unit."""
    unit: str = ""
    code: str = ""
    """A heading of docs/runbook.md; empty if it is well."""
    remedy: str = ""


class Check(NamedTuple):
    """Something to look at. The work blocks, and returns what it found."""

    name: str
    subject: str
    work: Callable[[], Sequence[Finding]]


def unknown(check: str, subject: str, cause: str, remedy: str = "") -> Finding:
    """What could not be found out, and why."""
    return Finding(check, Level.UNKNOWN, subject, cause, code="doctor-cannot-tell", remedy=remedy)


def carried_out(checks: Sequence[Check], *, seconds: float = CHECK_S) -> list[Finding]:
    """All findings, in the order of the checks, which run side by side; at most ``seconds`` long.

    In daemon threads: a call into a dead network file system cannot be broken off, and is left
    behind when the process ends.
    """
    results: list[list[Finding]] = [[] for _ in checks]
    defects: list[BaseException] = []

    def run(index: int, check: Check) -> None:
        try:
            results[index] = list(check.work())
        except OSError as error:
            results[index] = [unknown(check.name, check.subject, f"cannot be looked at: {error}")]
        except BaseException as error:  # noqa: BLE001 raised again by the caller, not in a thread
            defects.append(error)

    threads = [
        threading.Thread(target=run, args=(index, check), name=check.name, daemon=True)
        for index, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    for index, (thread, check) in enumerate(zip(threads, checks, strict=True)):
        thread.join(seconds)
        if thread.is_alive():
            results[index] = [
                Finding(
                    check.name,
                    Level.ERROR,
                    check.subject,
                    f"did not answer within {seconds:.0f} s and was given up",
                    limit=seconds,
                    unit="s",
                    code="doctor-timed-out",
                    remedy="Look at it by hand: a disk or network that hangs stops a node as well.",
                )
            ]
    if defects:
        raise defects[0]
    return [finding for found in results for finding in found]
