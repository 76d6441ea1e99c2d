"""Collects data of the machine: versions, kernel, limits, the store's mount, logs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

from tidemark import __version__
from tidemark.cli.doctor.disk import mounted_at
from tidemark.cli.support import redact
from tidemark.cli.support.bundle import Bundle
from tidemark.formats import native

PROC: Final = Path("/proc")
KERNEL_FILES: Final = (
    "sys/kernel/osrelease",
    "sys/kernel/random/boot_id",
    "sys/vm/max_map_count",
    "sys/vm/overcommit_memory",
    "sys/vm/dirty_ratio",
    "sys/vm/dirty_background_ratio",
    "uptime",
    "loadavg",
    "meminfo",
    "self/limits",
    "self/cgroup",
    "pressure/io",
    "pressure/memory",
    "pressure/cpu",
)
OUTSIDE_PROC: Final = (
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/etc/os-release",
)
FACT_SIZE_MAX: Final = 16 << 10
LINES_MAX: Final = 20_000
LOG_SIZE_MAX: Final = 32 << 20
"""Number of bytes at the end of a log that are read."""


def versions(bundle: Bundle) -> None:
    """Add the versions of Tidemark, Python and all installed packages."""
    packages = {
        each.metadata["Name"]: each.version
        for each in importlib.metadata.distributions()
        if each.metadata["Name"]
    }
    bundle.add_json(
        "versions.json",
        {
            "tidemark": __version__,
            "python": sys.version,
            "machine": platform.machine(),
            "why_pure": native.WHY_PURE or None,
            "packages": dict(sorted(packages.items())),
        },
    )


def kernel(bundle: Bundle) -> None:
    """Add kernel settings for mapped files, memory, load, and this process' limits."""
    paths = [*(PROC / name for name in KERNEL_FILES), *map(Path, OUTSIDE_PROC)]
    facts: dict[str, Any] = {"uname": " ".join(os.uname())}
    for path in paths:
        try:
            with path.open("rb") as file:
                facts[str(path)] = file.read(FACT_SIZE_MAX).decode(errors="replace").splitlines()
        except OSError as error:
            facts[str(path)] = f"not readable: {error.strerror}"
    bundle.add_json("machine/kernel.json", facts)


def mount(bundle: Bundle, store: Path) -> None:
    """Add the file system of the store only, because the others are private."""
    mountinfo = (PROC / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    found = mounted_at(store, mountinfo)
    if found is None:
        bundle.leave_out("machine/mount.json", f"no mount point is above {store}")
        return
    kind, point = found
    options = [
        line
        for line in mountinfo.splitlines()
        if line.split(" ")[4:5] == [point.replace(" ", "\\040")]
    ]
    facts = os.statvfs(store)
    bundle.add_json(
        "machine/mount.json",
        {
            "kind": kind,
            "point": point,
            "mountinfo": [redact.text(line) for line in options[-1:]],
            "block_size": facts.f_bsize,
            "size": facts.f_blocks * facts.f_frsize,
            "free": facts.f_bavail * facts.f_frsize,
            "inodes": facts.f_files,
            "inodes_free": facts.f_favail,
        },
    )


def log(bundle: Bundle, path: Path, name: str) -> None:
    """Add the last lines of a service's log, without values that may come from messages."""
    kept: deque[str] = deque(maxlen=LINES_MAX)
    others = whole = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LOG_SIZE_MAX:
            file.seek(size - LOG_SIZE_MAX)
            file.readline(redact.LINE_SIZE_MAX)  # skip the partial line
        while raw := file.readline(redact.LINE_SIZE_MAX + 1):
            line = redact.log_line(raw.decode("utf-8", "replace"))
            if line is None:
                others += 1
            else:
                whole += 1
                kept.append(line)
    if others:
        bundle.leave_out(f"{others} lines of {name}", "they are not lines of a service's log")
    if whole > len(kept):
        bundle.leave_out(f"{whole - len(kept)} older lines of {name}", f"{LINES_MAX} are kept")
    bundle.add_text(name, "".join(f"{line}\n" for line in kept))
