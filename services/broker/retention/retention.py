"""Which of the log's oldest files may go, and why: RocketMQ's rules (store layout 14). Pure.

Files go from the first on, one decision at a time, so that each is made on what the one before left
behind. What keeps a file comes first: a file that recovery, dispatch or the state needs stays,
however full the disk is. Then what takes it: too much log, a disk that is too full, age. Age is the
file system's modification time, nothing inside the file.

Before: ``keeper`` measures. After: ``deletion`` lets the file go.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from services.broker.retention_policy import HOURS, Policy

HOUR_MS: Final = 3_600_000
FILES_PER_RUN_MAX: Final = 10
"""As many as the reference lets go at a time (14.2)."""


class Pressure(IntEnum):
    """How full the disk is, each with all that those before it mean."""

    NONE = 0
    EXPIRED_GO = 1
    """Expired files go now, whatever the hour."""
    FORCED = 2
    """Files go whatever their age."""
    SENDS_STOP = 3


class Why(Enum):
    """What takes a file; the values are those of the metric's label."""

    AGE = "age"
    SIZE = "size"
    PRESSURE = "disk_pressure"
    MASTER = "master"
    """On a slave: the master has let it go, and has carried on what waited in it."""


class Stay(Enum):
    """What keeps the oldest file."""

    LAST = "it is the last one"
    NOT_DISPATCHED = "queues and index do not cover it on disk yet"
    NOT_CONFIRMED = "it ends above what is confirmed"
    NO_SNAPSHOT = "the log has no whole snapshot of the state yet"
    SNAPSHOT = "it holds the newest snapshot of the state, or what follows it"
    NEEDED = "a connected slave has yet to copy it"
    MASTER_KEEPS = "the master has it, or it is not known whether"
    NOTHING_ASKS = "nothing asks for its deletion"


class LogFile(NamedTuple):
    """One commit log file in use."""

    start: int
    end: int
    modified_ms: int


class Held(NamedTuple):
    """How far the log is no longer needed by others. Physical offsets."""

    dispatched_durable: int
    """Queues and index cover the log up to here on disk."""
    confirmed: int
    """What lies above may not have been seen."""
    snapshot_start: int | None
    """Of the newest whole snapshot; None: there is none."""
    needed_from: int = 0
    """What a connected slave has yet to copy begins here; 0: none copies. No reason to let the disk
    fill up."""
    by_master: bool = False
    """A slave follows its master: only that knows what is still to be delivered of a file."""
    master_from: int | None = None
    """Start of the master's log; None: not known."""


class Now(NamedTuple):
    """The moment of a decision."""

    wall_ms: int
    hour: int
    """Of the day, local time."""
    pressure: Pressure
    log_bytes: int
    """Of all files in use."""


class Verdict(NamedTuple):
    """What becomes of the oldest file."""

    file: LogFile | None
    """None: there is no file."""
    why: Why | None
    """Why it goes; None: it stays."""
    stay: Stay | None
    """Why it stays; None: it goes."""


def pressure_of(percents: Sequence[int | None], policy: Policy) -> Pressure:
    """Judge the disks of log and queues by the fuller of them.

    percents: of each path. One that cannot be measured lets expired files go, as in the reference.
    """
    fullest = max((percent for percent in percents if percent is not None), default=0)
    if fullest > policy.warning_percent:
        return Pressure.SENDS_STOP
    if fullest > policy.forcible_percent:
        return Pressure.FORCED
    if fullest > policy.used_percent_max or None in percents:
        return Pressure.EXPIRED_GO
    return Pressure.NONE


def judge_oldest(files: Sequence[LogFile], held: Held, policy: Policy, now: Now) -> Verdict:
    """Say whether the oldest file goes. Tested over every combination."""
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
    """What needs the file; None: nothing does."""
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
    """What becomes of a slave's oldest file that nothing here needs."""
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
    """When the file's age takes it, wall clock in ms, if nothing else does before; now or later.

    utc_offset_s: local time minus UTC; a change of it on the way is not foreseen.
    """
    at = max(now.wall_ms, file.modified_ms + policy.age_ms)
    if now.pressure >= Pressure.EXPIRED_GO or not policy.delete_hours:
        return at
    local = at + utc_offset_s * 1000
    for _ in range(HOURS + 1):
        if local // HOUR_MS % HOURS in policy.delete_hours:
            break
        local = (local // HOUR_MS + 1) * HOUR_MS
    return local - utc_offset_s * 1000
