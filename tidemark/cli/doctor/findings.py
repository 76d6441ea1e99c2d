"""The result of a check: a level, the cause with its number and limit, the remedy, a stable code.

Every code is a heading in docs/runbook.md. A check without a result is a finding as well, because
its absence would be taken as success.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

CHECK_S: Final = 10.0
"""Time limit of a check: a file system or a name lookup may hang."""


class Level(StrEnum):
    """Severity, ascending; ERROR makes the command fail."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    """Name of the check, e.g. ``disk.space``."""
    level: Level
    subject: str
    """What was checked: a path, a node, an address."""
    cause: str
    value: float | str | None = None
    """The measured value, in ``unit``."""
    limit: float | str | None = None
    """The limit for the value, in ``unit``."""
    unit: str = ""
    code: str = ""
    """A heading of docs/runbook.md; empty if the check passed."""
    remedy: str = ""

    def unless(self, holds: bool, well: str = "") -> Finding:
        """Return the finding, or that the check passed if this holds. well: its cause then."""
        if not holds:
            return self
        return self._replace(level=Level.OK, code="", remedy="", cause=well or self.cause)


class Check(NamedTuple):
    """A check to run. ``work`` blocks and returns the findings."""

    name: str
    subject: str
    work: Callable[[], Sequence[Finding]]


def unknown(check: str, subject: str, cause: str, remedy: str = "") -> Finding:
    """Return a finding for a check that has no result, with the reason."""
    return Finding(check, Level.UNKNOWN, subject, cause, code="doctor-cannot-tell", remedy=remedy)


def carried_out(checks: Sequence[Check], *, seconds: float = CHECK_S) -> list[Finding]:
    """Run checks in parallel, each for at most ``seconds``; return findings in order of checks.

    They run in daemon threads, because a call into a dead network file system cannot be
    interrupted; such a thread is abandoned when the process ends.
    """
    results: list[list[Finding]] = [[] for _ in checks]
    defects: list[BaseException] = []

    def run(index: int, check: Check) -> None:
        try:
            results[index] = list(check.work())
        except OSError as error:
            results[index] = [unknown(check.name, check.subject, f"cannot be checked: {error}")]
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
                    f"did not answer within {seconds:.0f} s and was abandoned",
                    limit=seconds,
                    unit="s",
                    code="doctor-timed-out",
                    remedy="Check it by hand: a disk or network that hangs stops a node as well.",
                )
            ]
    if defects:
        raise defects[0]
    return [finding for found in results for finding in found]
