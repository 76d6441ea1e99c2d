"""Checks the disk under a store: file system, free space, flush time, and capabilities.

It writes only a few pages, into an unnamed file that disappears when it is closed.
"""

from __future__ import annotations

import errno
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shared.files.os_disk import OsDisk
from tidemark.cli.doctor.findings import About, Check, Finding, Level

NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "virtiofs", "lustre"),
        *("gpfs", "beegfs", "glusterfs", "fuse.glusterfs", "fuse.ceph", "fuse.sshfs"),
        *("fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "ocfs2", "gfs2"),
    }
)
LOCAL: Final = frozenset({"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})
USED_PERCENT_MAX: Final = 90
"""The broker's default of ``disk_warning_percent``: above it sends are rejected."""
FILES_AHEAD: Final = 3
"""Log files that need space: the current one and the preallocated ones."""
FLUSHES: Final = 40
FLUSH_S: Final = 3.0
PAGE_SIZE: Final = 4096
FLUSH_USUAL_MS: Final = 10.0
"""A flash disk with a power-safe cache takes 0.05-1 ms, one without 1-5, a rotating one 8-15."""
FLUSH_MAX_MS: Final = 200.0
"""Above this, sends that wait for the disk are slower than the alert PutSlow allows."""
ALLOCATED: Final = 1 << 20


def checks(store: Path, settings: Mapping[str, Any] | None) -> list[Check]:
    """Return the checks for a store that exists, or that would be created there."""
    place = _existing(store)
    percent = int((settings or {}).get("disk_warning_percent", USED_PERCENT_MAX))
    shape = (settings or {}).get("store") or {}
    file_size = int(shape.get("commit_log_file_size", 1 << 30))
    return [
        Check("disk.kind", str(store), lambda: [kind(place)]),
        Check("disk.space", str(store), lambda: space(place, percent, file_size)),
        Check("disk.flush", str(store), lambda: [flush(place)]),
        Check("disk.allocate", str(store), lambda: [allocate(place)]),
        Check("disk.together", str(store), lambda: [together(store)]),
    ]


def kind(place: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> Finding:
    """Check that the file system is local to this machine, since three processes map its files."""
    at = About("disk.kind", str(place))
    found = mounted_at(place, mounts.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        return at.unknown("its mount point is not in /proc/self/mountinfo")
    name, point = found
    where = f"{point} is {name}"
    if name in NETWORK:
        return at.error(
            "doctor-network-disk",
            f"{where}, a network file system: mapped files and locks do not work across machines, "
            "and a flush does not guarantee that the bytes are on a disk",
            "Put the store on a local disk or a block device; replicate by a group instead.",
            value=name,
            limit="ext4, xfs",
        )
    if name in VOLATILE:
        return at.warning(
            "doctor-volatile-disk",
            f"{where}: data written there is lost with the machine or the container",
            "Mount a volume there, unless this store is for a test.",
            value=name,
            limit="ext4, xfs",
        )
    if name in LOCAL:
        return at.ok(where, value=name)
    return at.unknown(f"{where}, which this check does not know")


def space(place: Path, percent: int, file_size: int) -> list[Finding]:
    """Check the free space for messages and preallocated files, and the free inodes."""
    room = OsDisk().space(place)
    used_percent, free = room.used_percent, room.available
    if used_percent is None:
        return [About("disk.space", str(place)).unknown("the file system does not report its size")]
    ahead = FILES_AHEAD * file_size
    full = About("disk.space", str(place)).error(
        "doctor-disk-full",
        f"{used_percent} % used, {free / 2**30:.1f} GiB free: above {percent} % sends are rejected",
        "Make room, enlarge the volume, or keep less (`tidemark retention`).",
        value=used_percent,
        limit=percent,
        unit="percent",
    )
    cramped = About("disk.room", str(place)).warning(
        "doctor-disk-full",
        f"{free} bytes free; a log file has {file_size}, and a node needs {FILES_AHEAD}",
        "Enlarge the volume, or configure smaller log files for a new store.",
        value=free,
        limit=ahead,
        unit="bytes",
    )
    found = [full.unless(used_percent <= percent), cramped.unless(free >= ahead)]
    facts = os.statvfs(place)
    if facts.f_files:
        left = 100 * facts.f_favail / facts.f_files
        finding = About("disk.inodes", str(place)).error(
            "doctor-disk-full",
            f"{left:.1f} % of the inodes are free",
            "Remove files; every queue needs at least one.",
            value=round(left, 1),
            limit=1,
            unit="percent",
        )
        found.append(finding.unless(left >= 1))
    return found


def flush(place: Path) -> Finding:
    """Measure the time until a page is on disk, for which every acknowledgement waits."""
    try:
        descriptor = _nameless(place)
    except OSError as error:
        return _not_writable("disk.flush", place, error)
    took: list[float] = []
    try:
        page = os.urandom(PAGE_SIZE)
        began = time.monotonic()
        while len(took) < FLUSHES and time.monotonic() - began < FLUSH_S:
            os.pwrite(descriptor, page, len(took) * PAGE_SIZE)
            at = time.perf_counter()
            os.fdatasync(descriptor)
            took.append(1000 * (time.perf_counter() - at))
    except OSError as error:
        return _not_writable("disk.flush", place, error)
    finally:
        os.close(descriptor)
    median, worst = statistics.median(took), max(took)
    finding = About("disk.flush", str(place)).found(
        Level.ERROR if median > FLUSH_MAX_MS else Level.WARNING,
        "doctor-slow-flush",
        f"fdatasync of a page: median {median:.2f} ms, worst {worst:.2f} ms, of {len(took)}; "
        f"usual is less than {FLUSH_USUAL_MS:.0f} ms",
        "Use a faster disk, or one for this node alone; every ack waits for it.",
        value=round(median, 2),
        limit=FLUSH_USUAL_MS,
        unit="ms",
    )
    return finding.unless(median <= FLUSH_USUAL_MS)


def allocate(place: Path) -> Finding:
    """Check that space can be allocated ahead; otherwise a full disk can interrupt a record."""
    try:
        descriptor = _nameless(place)
    except OSError as error:
        return _not_writable("disk.allocate", place, error)
    try:
        os.posix_fallocate(descriptor, 0, ALLOCATED)
        blocks = os.fstat(descriptor).st_blocks * 512
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            return _not_writable("disk.allocate", place, error)
        blocks = 0
    finally:
        os.close(descriptor)
    finding = About("disk.allocate", str(place)).warning(
        "doctor-no-allocation",
        f"fallocate of {ALLOCATED} bytes allocated {blocks} on disk",
        "Use ext4 or xfs without compression.",
        value=blocks,
        limit=ALLOCATED,
        unit="bytes",
    )
    return finding.unless(blocks >= ALLOCATED)


def together(store: Path) -> Finding:
    """Check that log, queues and index are on one file system, the one whose space is measured."""
    at = About("disk.together", str(store))
    devices = {}
    for name in ("", "commitlog", "consumequeue", "index", "ha", "config"):
        path = store / name
        if path.exists():
            devices[name or "store"] = path.stat().st_dev
    if not devices:
        return at.unknown("there is no store yet")
    finding = at.warning(
        "doctor-split-store",
        "file systems differ: " + ", ".join(f"{name} on {dev}" for name, dev in devices.items()),
        "Put the whole store on one file system: free space is measured for the log's only.",
        value=len(set(devices.values())),
        limit=1,
        unit="file systems",
    )
    is_one = len(set(devices.values())) == 1
    return finding.unless(is_one, "log, queues and index are on one file system")


def mounted_at(place: Path, mountinfo: str) -> tuple[str, str] | None:
    """Return (file system type, mount point) of the longest mount point above; None if none.

    mountinfo: in the format of proc(5), where blanks in paths are octal escapes.
    """
    real = str(place.resolve())
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = fields[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # A later mount at the same point hides the earlier one.
        if inside and (best is None or len(point) >= len(best[1])):
            best = (after.split(" ")[0], point)
    return best


def _nameless(place: Path) -> int:
    return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest existing directory above it."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _not_writable(check: str, place: Path, error: OSError) -> Finding:
    at = About(check, str(place))
    if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
        return at.unknown(f"no unnamed file can be created: {error.strerror}")
    return at.error(
        "doctor-not-writable",
        f"cannot be written: {error.strerror}",
        "Run as the user that owns the store (in the image 10001); check the mount, "
        "which may have become read-only after a disk failure.",
    )
