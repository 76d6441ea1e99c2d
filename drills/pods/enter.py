"""Turn this process into a container: namespaces, mounts, an unprivileged user, then the command.

This is a separate program that uses only the standard library, because it runs as root between a
fork and an exec. It reads its instructions as JSON from standard input and stays as the container's
keeper: it ends with the container, and the container ends with it.

``{"do": "start"}`` starts a container: ``network`` (descriptor of its pod's network namespace),
``root`` (an empty directory), ``tree`` (directories and symbolic links to create), ``mounts``
(source, target, read_only), ``read_only_root``, ``hostname``. ``{"do": "join"}`` runs a command in
the container whose first process is ``pid``. Both have ``command``, ``environment``, ``directory``,
``user``, ``group``, ``groups``, ``no_new_privileges``, ``report`` (descriptor to which the process
id is written).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x0002_0000,
    0x0400_0000,
    0x0800_0000,
    0x2000_0000,
    0x4000_0000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_MAX = 63
EXIT_NOT_STARTED = 128
"""Exit status like that of a container runtime's own failure: the command did not run."""
LIBC = ctypes.CDLL(None, use_errno=True)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2)."""
    check(
        LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode() or None),
        f"mount {source} at {target}",
    )


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Bind-mount source at target, which is created."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a", encoding="ascii"):
            pass
    mount(source, target, "", MS_BIND | MS_REC)
    if read_only:
        mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def build_root(spec: dict[str, Any]) -> None:
    """Create a root file system on a tmpfs, with its mounts."""
    root = spec["root"]
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755,size=16m")
    for path, target in spec["tree"]:
        place = root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if target is None:
            os.makedirs(place, exist_ok=True)
        else:
            os.symlink(target, place)
    for directory in ("proc", "dev", "sys", "tmp"):
        os.makedirs(f"{root}/{directory}", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for device in DEVICES:
        bind(f"/dev/{device}", f"{root}/dev/{device}", read_only=False)
    os.makedirs(f"{root}/dev/shm")
    mount("shm", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    for source, target, read_only in spec["mounts"]:
        bind(source, root + target, read_only=read_only)
    os.makedirs(f"{root}/.old")
    os.chdir(root)
    pivot_root(".", ".old")
    os.chdir("/")
    check(LIBC.umount2(b"/.old", MNT_DETACH), "umount the old root")
    os.rmdir("/.old")
    if spec["read_only_root"]:
        mount("", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def pivot_root(new: str, old: str) -> None:
    """Call pivot_root(2), for which libc has no function."""
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    check(LIBC.syscall(number, new.encode(), old.encode()), "pivot_root")


def become(spec: dict[str, Any]) -> None:
    """Drop all privileges and run the command. Does not return."""
    for number in range(CAPABILITY_MAX + 1):
        # Numbers above the kernel's last capability are rejected, which is harmless.
        LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setresgid(spec["group"], spec["group"], spec["group"])
    os.setresuid(spec["user"], spec["user"], spec["user"])
    if spec["no_new_privileges"]:
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # Set it again, because a change of user clears it. Otherwise a container survives its keeper.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(spec["directory"])
    os.umask(0o022)
    command = spec["command"]
    os.execvpe(command[0], command, spec["environment"])


def start(spec: dict[str, Any]) -> None:
    """Enter new namespaces; the next fork creates the first process in them."""
    check(LIBC.setns(spec["network"], CLONE_NEWNET), "enter the network")
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID
    check(LIBC.unshare(flags), "make namespaces")


def join(spec: dict[str, Any]) -> None:
    """Enter the namespaces of a running container; the next fork creates a process in them."""
    kinds = ("uts", "ipc", "net", "pid", "mnt")
    opened = [os.open(f"/proc/{spec['pid']}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for kind, descriptor in zip(kinds, opened, strict=True):
        check(LIBC.setns(descriptor, 0), f"enter {kind}")
        os.close(descriptor)


def main() -> int:
    """Run the command; return its exit status, 128 + n for signal n."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    spec = json.load(sys.stdin)
    starts = spec["do"] == "start"
    for kept in ("report", "network"):
        if spec.get(kept) is not None:
            os.set_inheritable(spec[kept], False)
    (start if starts else join)(spec)
    child = os.fork()
    if child == 0:
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if starts:
                socket.sethostname(spec["hostname"])
                build_root(spec)
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            become(spec)
        except BaseException as error:  # noqa: BLE001 (this process must end here after any error)
            print(f"the container cannot be started: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_NOT_STARTED)
    if spec["report"] is not None:
        os.write(spec["report"], b"%d\n" % child)
        os.close(spec["report"])
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
