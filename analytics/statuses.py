"""Statuses of queues and pairs: meaning, severity, presentation. Pure data.

`TABLE` is sorted by severity, the mildest first. Every order, level, colour and group of statuses
in kernel, report, exporter and dashboards is derived from it. The table in docs/analytics.md is
tested against it. The module imports no Arrow, because dashboards are made without it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Status(StrEnum):
    """Status of a queue or pair. Stored state has the index in this order: add at the end only."""

    UNKNOWN = "UNKNOWN"
    AHEAD = "AHEAD"
    LOST = "LOST"
    ABANDONED = "ABANDONED"
    PAUSED = "PAUSED"
    OK = "OK"
    STOPPED = "STOPPED"
    STALLED = "STALLED"
    RACING = "RACING"
    CATCHING_UP = "CATCHING_UP"
    FALLING_BEHIND = "FALLING_BEHIND"
    LAGGING = "LAGGING"


class Level(StrEnum):
    """How urgently a status needs attention; the most urgent first, as lists are sorted."""

    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"
    UNKNOWN = "unknown"
    """It is not known whether attention is needed; it neither raises nor ends an alarm."""
    NONE = "none"


LEVELS: Final = tuple(Level)
URGENT: Final = (Level.PAGE, Level.TICKET)


class Row(NamedTuple):
    """Properties of one status."""

    level: Level
    after_s: float
    """How long its rule must hold before it is the status; for OK, before an alarm ends."""
    words: str
    """Its name in the report."""
    light: str
    """Colour on a light background; empty: hatched."""
    dark: str
    """Colour on a dark background."""
    means: str
    """One sentence, for the documentation."""

    @property
    def is_known(self) -> bool:
        """Whether the state of the queue or pair is known."""
        return self.level is not Level.UNKNOWN


class Reason(StrEnum):
    """Reason of an unknown value or an UNKNOWN status; values of the column ``reason``."""

    NEVER_COMMITTED = "never_committed"
    BROADCASTING = "broadcasting"
    NOT_EXPORTED = "not_exported"
    HEAD_UNKNOWN = "head_unknown"
    OFFSETS_UNKNOWN = "offsets_unknown"
    MISSED_TICKS = "missed_ticks"
    SETTLING = "settling"
    NO_SNAPSHOT = "no_snapshot"
    """The reason may be followed by a colon and the ``Gap`` that explains it."""
    NOTHING_NEW = "nothing_new"


REASON_WORDS: Final = {
    Reason.NEVER_COMMITTED: "the group never committed an offset there",
    Reason.BROADCASTING: "members read on their own; there is no common offset",
    Reason.NOT_EXPORTED: "beyond the bound of series by queue",
    Reason.HEAD_UNKNOWN: "the store time of the oldest unread message is not known",
    Reason.OFFSETS_UNKNOWN: "its offsets are not known",
    Reason.MISSED_TICKS: "too many samples are missing to judge",
    Reason.SETTLING: "seen for too short a time to judge",
    Reason.NO_SNAPSHOT: "its broker sent no snapshot",
    Reason.NOTHING_NEW: "its broker answers and reports nothing new of it",
}

# fmt: off
TABLE: Final = {
    Status.OK: Row(Level.NONE, 60.0, "in time", "#46a673", "#3f9a69",
        "Nothing is unread, or nothing is older than the objective."),
    Status.PAUSED: Row(Level.INFO, 0.0, "paused", "#9bb3cf", "#62788f",
        "An operator paused the group (`consume_enabled: false`)."),
    Status.ABANDONED: Row(Level.INFO, 0.0, "no longer read", "#7f93ad", "#52657c",
        "No member subscribes to the topic: it was in time when the last one left it for others, "
        "or none has for a day."),
    Status.UNKNOWN: Row(Level.UNKNOWN, 0.0, "not known", "", "",
        "There was no snapshot for 3 ticks, or a value that is needed is not known."),
    Status.CATCHING_UP: Row(Level.INFO, 0.0, "catching up", "#5b9bdf", "#4f90d6",
        "The group is late and reads more than 1.05 s of stored time per second."),
    Status.LAGGING: Row(Level.TICKET, 120.0, "late", "#eebc55", "#d9a640",
        "The group is late and reads as fast as messages come."),
    Status.FALLING_BEHIND: Row(Level.TICKET, 60.0, "falling behind", "#e8963a", "#dc8a30",
        "The group is late and reads less than 0.98 s of stored time per second."),
    Status.RACING: Row(Level.PAGE, 30.0, "racing retention", "#d9603a", "#d0623f",
        "Unread messages are older than 80 % of what retention keeps."),
    Status.STALLED: Row(Level.PAGE, 30.0, "stalled", "#cf4334", "#d9503f",
        "The commit stands still for far longer than is usual here, though members are there "
        "or come and go."),
    Status.STOPPED: Row(Level.PAGE, 30.0, "stopped", "#a9281f", "#b93a30",
        "The group is late and no member has read the topic for two minutes."),
    Status.AHEAD: Row(Level.PAGE, 30.0, "committed beyond the end", "#8b3fa8", "#a45fc0",
        "The commit lies beyond all that is stored."),
    Status.LOST: Row(Level.PAGE, 0.0, "lost messages", "#6d1f6f", "#93459a",
        "Messages expired that the group had not read."),
}
# fmt: on
BY_SEVERITY: Final = tuple(TABLE)
"""The mildest first."""


def row_of(status: str) -> Row:
    """The row of a status from tables and files; that of UNKNOWN for an undefined one."""
    return TABLE[_known(status)]


def severity(status: str) -> int:
    """The index in `BY_SEVERITY`; that of UNKNOWN for an undefined status."""
    return BY_SEVERITY.index(_known(status))


def _known(status: str) -> Status:
    return Status(status) if status in TABLE else Status.UNKNOWN
