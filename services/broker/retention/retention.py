"""Decides which of the log's oldest files may be deleted: RocketMQ's rules. Pure.

Files are deleted from the first on, one decision at a time, so that each decision includes the
effect of the previous one. A file that recovery, dispatch or the state needs is kept, even on a
full disk. Otherwise it is deleted for too much log, a full disk, or age. Age is the file system's
modification time, not a time in the file.

Step before: ``keeper`` measures. Step after: ``deletion`` deletes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from services.broker.retention_policy import HOURS, Policy

HOUR_MS: Final = 3_600_000
FILES_PER_RUN_MAX: Final = 10
"""As many as RocketMQ deletes at a time (14.2)."""


class Pressure(IntEnum):
    """How full the disk is; each level includes the effects of the lower ones."""

    NONE = 0
    EXPIRED_GO = 1
    """Expired files are deleted now, at any hour."""
    FORCED = 2
    """Files are deleted at any age."""
    SENDS_STOP = 3


class Why(Enum):
    """Why a file is deleted; the values are those of the metric's label."""

    AGE = "age"
    SIZE = "size"
    PRESSURE = "disk_pressure"
    MASTER = "master"
    """On a slave: the master has deleted the file, and has carried its delayed messages."""


class Stay(Enum):
    """Why the oldest file is kept."""

    LAST = "it is the last one"
    NOT_DISPATCHED = "queues and index do not cover it on disk yet"
    NOT_CONFIRMED = "it ends above what is confirmed"
    NO_SNAPSHOT = "the log has no whole snapshot of the state yet"
    SNAPSHOT = "it holds the newest snapshot of the state, or what follows it"
    NEEDED = "a connected slave has yet to copy it"
    MASTER_KEEPS = "the master has it, or it is unknown whether it does"
    NOTHING_ASKS = "nothing asks for its deletion"


class LogFile(NamedTuple):
    """One commit log file in use."""

    start: int
    end: int
    modified_ms: int


class Held(NamedTuple):
    """Parts of the log that other components still need. Physical offsets."""

    dispatched_durable: int
    """Queues and index cover the log up to here on disk."""
    confirmed: int
    """Records above it may not have been consumed yet."""
    snapshot_start: int | None
    """Start of the newest whole snapshot; None: there is none."""
    needed_from: int = 0
    """Start of the data that a connected slave still has to copy; 0: no slave copies. It does not
    keep files on a full disk."""
    by_master: bool = False
    """Whether this node is a slave: only the master knows which delayed messages are in a file."""
    master_from: int | None = None
    """Start of the master's log; None: unknown."""


class Now(NamedTuple):
    """Time, disk usage and log size at the moment of a decision."""

    wall_ms: int
    hour: int
    """Hour of the day, local time."""
    pressure: Pressure
    log_bytes: int
    """Bytes of all files in use."""


class Verdict(NamedTuple):
    """The decision on the oldest file."""

    file: LogFile | None
    """None: there is no file."""
    why: Why | None
    """Why it is deleted; None: it is kept."""
    stay: Stay | None
    """Why it is kept; None: it is deleted."""


def pressure_of(percents: Sequence[int | None], policy: Policy) -> Pressure:
    """Return the pressure of the fuller of the two disks, that of the log and that of the queues.
    percents: used share of the disk of each path. If one cannot be measured, expired files are
    deleted, as in RocketMQ."""
    fullest = max((percent for percent in percents if percent is not None), default=0)
    if fullest > policy.warning_percent:
        return Pressure.SENDS_STOP
    if fullest > policy.forcible_percent:
        return Pressure.FORCED
    if fullest > policy.used_percent_max or None in percents:
        return Pressure.EXPIRED_GO
    return Pressure.NONE


def judge_oldest(files: Sequence[LogFile], held: Held, policy: Policy, now: Now) -> Verdict:
    """Decide whether the oldest file is deleted. Tested over every combination."""
    if not files:
        return Verdict(None, None, None)
    oldest = files[0]
    stay = kept_by(oldest, is_last=len(files) == 1, held=held)
    if stay is not None:
        return Verdict(oldest, None, stay)
    is_forced = policy.forcibly and now.pressure >= Pressure.FORCED
    if held.by_master:
        return _followed(oldest, held.master_from, is_forced=is_forced)
    if not is_forced and 0 < held.needed_from < oldest.end:
        return Verdict(oldest, None, Stay.NEEDED)
    why = _taken_by(oldest, policy, now)
    return Verdict(oldest, why, Stay.NOTHING_ASKS if why is None else None)


def kept_by(file: LogFile, *, is_last: bool, held: Held) -> Stay | None:
    """Return why the file is needed; None if it is not."""
    if is_last:
        return Stay.LAST
    if file.end > held.dispatched_durable:
        return Stay.NOT_DISPATCHED
    if file.end > held.confirmed:
        return Stay.NOT_CONFIRMED
    if held.snapshot_start is None:
        return Stay.NO_SNAPSHOT
    if file.end > held.snapshot_start:
        return Stay.SNAPSHOT
    return None


def _followed(file: LogFile, master_from: int | None, *, is_forced: bool) -> Verdict:
    """Decide on a slave's oldest file, if the slave itself does not need it."""
    if master_from is not None and file.end <= master_from:
        return Verdict(file, Why.MASTER, None)
    if is_forced:
        return Verdict(file, Why.PRESSURE, None)
    return Verdict(file, None, Stay.MASTER_KEEPS)


def _taken_by(file: LogFile, policy: Policy, now: Now) -> Why | None:
    if policy.size_max and now.log_bytes > policy.size_max:
        return Why.SIZE
    if policy.forcibly and now.pressure >= Pressure.FORCED:
        return Why.PRESSURE
    has_expired = now.wall_ms >= file.modified_ms + policy.age_ms
    is_time = now.hour in policy.delete_hours or now.pressure >= Pressure.EXPIRED_GO
    return Why.AGE if has_expired and is_time else None


def goes_by_age_at(file: LogFile, policy: Policy, now: Now, utc_offset_s: int) -> int:
    """Return when the file is deleted because of its age, wall clock in ms; now or later.
    utc_offset_s: local time minus UTC; future changes are not considered."""
    at = max(now.wall_ms, file.modified_ms + policy.age_ms)
    if now.pressure >= Pressure.EXPIRED_GO or not policy.delete_hours:
        return at
    local = at + utc_offset_s * 1000
    for _ in range(HOURS + 1):
        if local // HOUR_MS % HOURS in policy.delete_hours:
            break
        local = (local // HOUR_MS + 1) * HOUR_MS
    return local - utc_offset_s * 1000
