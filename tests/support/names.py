"""Name services as processes, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drills.node_group import ask
from shared.runtime import programs
from tests.support.node import wait_until
from tidemark.testing.child import ChildProcess
from tidemark.testing.node import is_ready
from tidemark.testing.ports import free_ports


class NamesProcesses:
    """Several instances that name each other as peers."""

    def __init__(self, directory: Path, count: int, **settings: str) -> None:
        """settings: of all instances, as variables without their prefix."""
        ports = free_ports(2 * count)
        self.ports, self._admin_ports = ports[:count], ports[count:]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.processes = [
            ChildProcess(directory / f"names-{number}.log") for number in range(count)
        ]
        for own, process in zip(self.urls, self.processes, strict=True):
            peers = ",".join(url for url in self.urls if url != own)
            process.environment["TIDEMARK_NAMES_PEERS"] = peers
        self.configure(**settings)

    def __enter__(self) -> NamesProcesses:
        try:
            self.start(range(len(self.urls)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()

    def configure(self, **settings: str) -> None:
        """Change settings of all instances; each has them from its next start on."""
        for process in self.processes:
            for name, value in settings.items():
                process.environment[f"TIDEMARK_NAMES_{name.upper()}"] = value

    def start(self, numbers: Sequence[int]) -> None:
        """Start instances, and wait until they serve."""
        for number in numbers:
            ports = ("--port", str(self.ports[number]), "--admin-port")
            command = [*programs.service("names"), *ports, str(self._admin_ports[number])]
            self.processes[number].start(command)
        for number in numbers:
            self._wait_ready(number)

    def _wait_ready(self, number: int) -> None:
        process, admin = self.processes[number], f"http://127.0.0.1:{self._admin_ports[number]}"

        def ready() -> bool:
            process.check_alive()
            return is_ready(admin)

        wait_until(ready, f"names-{number}")

    def route(self, number: int, path: str = "", query: str = "") -> tuple[int, dict[str, Any]]:
        """Ask an instance for a route; path: with a slash, or empty for all broker groups."""
        return ask(f"{self.urls[number]}/v1/route{path}{query}", timeout_s=70)
