"""The result of a check: a level, the cause with its number and limit, the remedy, a stable code.

Every code is a heading in docs/runbook.md. A check without a result is a finding as well, because
its absence would be taken as success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from tidemark.cli.threads import run_all

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


class About(NamedTuple):
    """A check of one subject; makes its findings."""

    check: str
    subject: str

    def ok(self, cause: str, value: float | str | None = None, **measured: Any) -> Finding:
        """The check passed."""
        return Finding(self.check, Level.OK, self.subject, cause, value, **measured)

    def unknown(self, cause: str, remedy: str = "") -> Finding:
        """The check has no result; cause: the reason."""
        return self.found(Level.UNKNOWN, "doctor-cannot-tell", cause, remedy)

    def warning(self, code: str, cause: str, remedy: str, **measured: Any) -> Finding:
        """Something may become a problem. measured: ``value``, ``limit`` and ``unit``."""
        return self.found(Level.WARNING, code, cause, remedy, **measured)

    def error(self, code: str, cause: str, remedy: str, **measured: Any) -> Finding:
        """Something is a problem."""
        return self.found(Level.ERROR, code, cause, remedy, **measured)

    def found(self, level: Level, code: str, cause: str, remedy: str, **measured: Any) -> Finding:
        """Return a finding of this level."""
        return Finding(self.check, level, self.subject, cause, code=code, remedy=remedy, **measured)


def carried_out(checks: Sequence[Check], *, seconds: float = CHECK_S) -> list[Finding]:
    """Run checks in parallel, each for at most ``seconds``; return findings in order of checks."""
    results: dict[str, Sequence[Finding]] = {}

    def run(key: str, check: Check) -> None:
        try:
            results[key] = check.work()
        except OSError as error:
            at = About(check.name, check.subject)
            results[key] = [at.unknown(f"cannot be checked: {error}")]

    keyed = {f"{number} {check.name}": check for number, check in enumerate(checks)}
    works = {key: partial(run, key, check) for key, check in keyed.items()}
    for key in run_all(works, seconds):
        late = About(keyed[key].name, keyed[key].subject).error(
            "doctor-timed-out",
            f"did not answer within {seconds:.0f} s and was abandoned",
            "Check it by hand: a disk or network that hangs stops a node as well.",
            limit=seconds,
            unit="s",
        )
        results[key] = [late]
    return [finding for key in keyed for finding in results[key]]
