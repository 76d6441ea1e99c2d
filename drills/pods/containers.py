"""Run a container as a process of this machine: start it, run commands in it, signal and kill it.

Its root is a tmpfs that shows this machine's ``/usr``, the interpreter and the project, read-only;
``/opt/tidemark/bin`` is the environment's ``bin``, as in the image. Another image of the same name
is another copy of the project. ``enter`` runs in a child of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from drills.pods.plans import Container

PROJECT: Final = Path(__file__).resolve().parents[2]
ENTER: Final = Path(__file__).with_name("enter.py")
TREES: Final = ("tidemark", "shared", "services")
"""Parts of the project in an image."""
PASSWD: Final = (
    "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    "tidemark:x:10001:10001:tidemark:/var/lib/tidemark:/usr/sbin/nologin\n"
)
GROUP: Final = "root:x:0:\ntidemark:x:10001:\n"
NSSWITCH: Final = "passwd: files\ngroup: files\nhosts: files\n"
SYSTEM: Final = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib64")))
SHOWN_OF_HOST: Final = ("/etc/ld.so.cache", "/etc/localtime")
OUTPUT_MAX: Final = 4000


class Image(NamedTuple):
    trees: Mapping[str, Path]
    """Parts of the project that come from other directories."""


class Ended(NamedTuple):
    status: int | None
    """Exit status; None if the command timed out."""
    output: str


class ContainerProcess:
    """One run of one container."""

    def __init__(self, process: subprocess.Popen[bytes], pid: int, spec: dict[str, Any]) -> None:
        """process: the container's keeper. pid: process id of the container's first process in this
        machine's namespace."""
        self._keeper, self.pid, self._spec = process, pid, spec
        self.started_at = time.monotonic()

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n for signal n; None while it runs."""
        return self._keeper.poll()

    def send(self, signum: signal.Signals) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def send_all(self, signum: signal.Signals) -> None:
        for pid in processes_of(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    async def ended(self, timeout_s: float) -> None:
        """Wait until it has ended, at most timeout_s."""
        if self.status is not None:
            return
        # Not with a wait in a thread, because that would reap the keeper and take its exit status.
        end = os.pidfd_open(self._keeper.pid)
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(end, over.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(0.0, timeout_s))
        finally:
            loop.remove_reader(end)
            os.close(end)

    def kill(self) -> None:
        """SIGKILL all processes, and wait for the end."""
        self.send(signal.SIGKILL)
        self._keeper.wait()

    async def run(self, command: Sequence[str], timeout_s: float) -> Ended:
        """Run a command in the container as its user; kill it after the timeout."""
        spec = {**self._spec, "do": "join", "pid": self.pid, "command": list(command)}
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(ENTER)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        text = json.dumps({**spec, "report": None, "network": None}).encode()
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await keeper.communicate(text)
            status = keeper.returncode
        except TimeoutError:
            output, status = b"", None
        finally:
            if keeper.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    keeper.kill()
                await keeper.wait()
        return Ended(status, output[-OUTPUT_MAX:].decode("utf-8", "replace"))


def processes_of(pid: int) -> list[int]:
    """Return the processes in the PID namespace whose first process is pid."""
    wanted = _namespace(pid)
    found = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    return [one for one in found if wanted and _namespace(one) == wanted]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def start_container(
    container: Container,
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    hostname: str,
    network: int,
    groups: Iterable[int],
    mounts: Sequence[tuple[str, str, bool]],
    image: Image,
    directory: Path,
    log_path: Path,
) -> ContainerProcess:
    """Start a container.

    Call this in the main thread: containers end with the thread that started them.
    network: descriptor of the pod's network namespace. mounts: (source, target, read_only) of the
    volumes. directory: private to this container, for files in its root. Raises RuntimeError with
    the output if the container cannot be started.
    """
    root = directory / "root"
    root.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    spec: dict[str, Any] = {
        "do": "start",
        "network": network,
        "root": str(root),
        "tree": _tree(),
        # Sorted by depth, so that none hides another: a project may be in /tmp, below a pod's /tmp.
        "mounts": sorted(
            [*_image_mounts(image, directory), *mounts], key=lambda mount: len(Path(mount[1]).parts)
        ),
        "read_only_root": container.read_only_root,
        "hostname": hostname,
        "command": list(command),
        "environment": dict(environment),
        "directory": container.working_dir,
        "user": container.user,
        "group": container.group,
        "groups": sorted(groups),
        "no_new_privileges": container.no_new_privileges,
        "report": writing,
    }
    with log_path.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ENTER)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(network, writing),
            start_new_session=True,
        )
    os.close(writing)
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps(spec).encode())
    keeper.stdin.close()
    with os.fdopen(reading, "rb") as report:
        line = report.readline()
    if not line:
        keeper.wait()
        raise RuntimeError(log_path.read_text(encoding="utf-8", errors="replace")[-OUTPUT_MAX:])
    return ContainerProcess(keeper, int(line), spec)


def _tree() -> list[tuple[str, str | None]]:
    """Return the directories of a container's root, and the symbolic links of this machine's
    root."""
    links = [(str(here), str(here.readlink())) for here in SYSTEM if here.is_symlink()]
    return [*links, ("/run", None), ("/var/lib", None), ("/var/run", "../run"), ("/etc", None)]


def _image_mounts(image: Image, directory: Path) -> list[tuple[str, str, bool]]:
    shown = ["/usr", *(str(here) for here in SYSTEM if here.is_dir() and not here.is_symlink())]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        shown.append(sys.base_prefix)
    shown += [path for path in SHOWN_OF_HOST if Path(path).exists()]
    found = [(path, path, True) for path in (*shown, sys.prefix)]
    files = directory / "etc"
    files.mkdir(exist_ok=True)
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("nsswitch.conf", NSSWITCH)):
        (files / name).write_text(text, encoding="ascii")
        found.append((str(files / name), f"/etc/{name}", True))
    # Not the whole project, because it may contain stores or secrets.
    for name in TREES:
        source = image.trees.get(name, PROJECT / name)
        found.append((str(source), str(PROJECT / name), True))
    return [*found, (f"{sys.prefix}/bin", "/opt/tidemark/bin", True)]
