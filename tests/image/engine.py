"""A Docker engine of our own, in namespaces of its own, that leaves nothing behind.

The engine is process 1 of a PID namespace: when it ends, however, so does everything that it
started, and its mounts go with its mount namespace. Its files lie in one directory, its groups of
processes below one name. It never touches this machine's packet filter: for a build, which uses
this machine's network, an option disables that; for a run it has a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from tests.support.dockerfile import ROOT
from tidemark.testing.waiting import wait_until

Network = Literal["machine", "own"]
START_S: Final = 60.0
STOP_S: Final = 30.0
POLL_S: Final = 0.1
CGROUP: Final = "tidemark-image-proof"
PROGRAMS: Final = {
    "dockerd": "apt-get install docker.io",
    "docker": "apt-get install docker.io",
    "docker-compose": "apt-get install docker-compose",
    "debootstrap": "apt-get install debootstrap",
    "unshare": "apt-get install util-linux",
}
COMPOSE: Final = ROOT / "deploy/docker/compose.yaml"


def missing() -> list[str]:
    """Return what prevents a proof on this machine, each with its remedy; empty if nothing does."""
    found = [
        f"{program} is missing: {remedy}"
        for program, remedy in PROGRAMS.items()
        if shutil.which(program) is None
    ]
    return found if os.geteuid() == 0 else [*found, "an engine is started by root alone"]


class EngineFailed(Exception):
    """The engine did not start, or a command of it failed."""


class Engine:
    """One engine, from ``with`` to its end."""

    def __init__(self, directory: Path, network: Network) -> None:
        """directory: holds images, containers and the log; kept, so that the next engine has them.

        network: ``machine`` for a build, which reaches what this machine reaches; ``own`` for a
        run, with bridges, ports and filter rules that are visible to it only.
        """
        self._directory = directory.resolve()
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{self._directory / 'sock'}",
            "DOCKER_CONFIG": str(self._directory / "client"),
            "DOCKER_BUILDKIT": "0",  # both builders take the Dockerfile; this one needs no plugin
            "COMPOSE_PROJECT_NAME": "tidemark",
        }

    def __enter__(self) -> Engine:
        self._directory.mkdir(parents=True, exist_ok=True)
        # Bridges of a run that was kept: an engine in this machine's network would make them here.
        shutil.rmtree(self._directory / "data/network", ignore_errors=True)
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *self._namespaces(), "sh", "-euc", self._start_line()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        try:
            wait_until(self._answers, "the engine to answer", START_S, POLL_S)
        except AssertionError as error:
            said = (self._directory / "log").read_text(errors="replace").splitlines()[-5:]
            self._end()
            raise EngineFailed(
                "\n  ".join([f"the engine does not start: {error}", *said])
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def docker(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 600) -> str:
        """Standard output of a docker command that must succeed. Raises EngineFailed."""
        return self._must("docker", *arguments, stdin=stdin, timeout_s=timeout_s)

    def compose(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 300) -> str:
        """As ``docker``, for a docker-compose command of the laptop's cluster."""
        command = ("docker-compose", "--file", str(COMPOSE), *arguments)
        return self._must(*command, stdin=stdin, timeout_s=timeout_s)

    def tries(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a docker command that may fail."""
        return self._call("docker", *arguments)

    def load(self, image: str, archive: Path) -> None:
        """Import a file system as an image."""
        self.docker("import", str(archive), image)

    def _answers(self) -> bool:
        """Whether the engine takes commands yet. AssertionError if it has ended."""
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"it ended with status {status}"
        return self._call("docker", "version").returncode == 0

    def _must(self, *command: str, stdin: bytes, timeout_s: float) -> str:
        done = self._call(*command, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")[-4000:]
            raise EngineFailed(f"{' '.join(command)}: status {done.returncode}\n{said}")
        return done.stdout.decode()

    def _call(
        self, *command: str, stdin: bytes = b"", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def _namespaces(self) -> list[str]:
        own = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return own if self._network == "machine" else [*own, "--net"]

    def _start_line(self) -> str:
        place = self._directory
        words = [
            "exec dockerd",
            *(f"--data-root {place}/data", f"--exec-root {place}/exec"),
            *(f"--pidfile {place}/pid", f"--host unix://{place}/sock"),
            f"--cgroup-parent /{CGROUP}",
        ]
        if self._network == "own":
            return "ip link set lo up; " + " ".join(words)
        hands_off = "--iptables=false --ip6tables=false --ip-forward=false --ip-masq=false"
        return " ".join([*words, hands_off, "--bridge=none"])

    def _end(self) -> None:
        """SIGTERM to the engine, which stops its containers; then the end of its namespace."""
        process = self._process
        assert process is not None
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # --kill-child: everything in the namespace goes with it
            process.wait()
        for directory in _cgroups():
            with contextlib.suppress(OSError):  # not empty: another proof runs
                directory.rmdir()


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(each) for each in text.split()]


def _cgroups() -> Iterator[Path]:
    """Directories of control groups that the engine made, the deepest first."""
    for root in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]:
        top = root / CGROUP
        if top.is_dir():
            yield from sorted(
                (path for path in top.rglob("*") if path.is_dir()), key=str, reverse=True
            )
            yield top
