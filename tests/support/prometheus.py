"""Debian's Prometheus and Alertmanager for tests: their tools, and servers on the loopback.

    with Prometheus(tmp_path, config, rules) as prometheus:
        prometheus.query("up")
    with over_blocks(tmp_path, make_blocks(samples, tmp_path / "blocks")) as prometheus:
        ... samples of an OpenMetrics file, as if they had been scraped ...

Everything that is waited for is a condition with a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from tidemark.testing.ports import free_ports
from tidemark.testing.waiting import wait_until

START_TIMEOUT_S: Final = 60.0
REQUEST_TIMEOUT_S: Final = 20.0
KEPT: Final = "--storage.tsdb.retention.time=100y"
"""Generated samples are of a day long ago: blocks older than 15 days would go as it starts."""


def tool(name: str) -> str:
    """Path of a program of Debian's packages prometheus and prometheus-alertmanager.

    Skips the test where it is not installed, or fails it if nothing may be skipped.
    """
    found = shutil.which(name)
    if found is None:
        problem = f"{name} is not installed: apt-get install prometheus prometheus-alertmanager"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(problem)
        pytest.skip(problem)
    return found


def check(name: str, *arguments: str, text: str | None = None) -> str:
    """Run a checking tool; return its output. Fails the test if it finds errors."""
    done = subprocess.run(
        [tool(name), *arguments], input=text, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


class Server:
    """A program with an HTTP interface, in the background. Its log is printed when a body fails."""

    def __init__(self, directory: Path, command: Sequence[str], port: int, ready: str) -> None:
        """ready: path that answers 200 once it serves."""
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "log"
        self._ready = ready
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        try:
            wait_until(self._is_ready, f"{self.url} to serve", START_TIMEOUT_S)
        except BaseException:
            self.close()
            print(self._log.read_text())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            print(f"=== {self._log}\n{self._log.read_text()[-5000:]}")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"it ended: {self._log.read_text()}"
        with contextlib.suppress(OSError):
            return self.get(self._ready) is not None
        return False

    def get(self, path: str, **query: str) -> bytes:
        """Return the body of an answer. Raises OSError if there is none, or if it is an error."""
        url = f"{self.url}{path}"
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: object) -> bytes:
        """Send JSON; return the body of the answer."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return bytes(answer.read())

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Alertmanager(Server):
    """Alertmanager with a configuration of ours."""

    def __init__(self, directory: Path, config: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_ports(1)[0]
        super().__init__(
            directory,
            [
                tool("prometheus-alertmanager"),
                f"--config.file={config}",
                f"--storage.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            port,
            "/-/ready",
        )

    def alerts(self) -> list[dict[str, Any]]:
        """Everything that fires, inhibited or not."""
        found: list[dict[str, Any]] = json.loads(self.get("/api/v2/alerts"))
        return found

    def notified(self) -> set[tuple[str, str]]:
        """(alert, cluster) of notified alerts."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("cluster", ""))
            for alert in self.alerts()
            if alert["status"]["state"] == "active"
        }


class Prometheus(Server):
    """Prometheus with a configuration of ours."""

    def __init__(
        self, directory: Path, config: Path, *options: str, port: int | None = None
    ) -> None:
        """port: None takes a free one."""
        directory.mkdir(parents=True, exist_ok=True)
        port = port or free_ports(1)[0]
        super().__init__(
            directory,
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                *options,
            ],
            port,
            "/-/ready",
        )

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an instant query. Raises AssertionError with Prometheus' error."""
        try:
            answer = json.loads(self.get("/api/v1/query", query=expr))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from error
        found: Any = answer["data"]["result"]
        if answer["data"]["resultType"] in ("scalar", "string"):
            return [{"metric": {}, "value": found}]
        return list(found)

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health, and the active alerts of each."""
        groups = json.loads(self.get("/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def firing(self) -> dict[tuple[str, str], list[Mapping[str, str]]]:
        """Labels of what fires, by (alert, cluster)."""
        found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for alert in json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]:
            if alert["state"] == "firing":
                labels = alert["labels"]
                key = (labels["alertname"], labels.get("cluster", ""))
                found.setdefault(key, []).append(labels)
        return found


def make_blocks(openmetrics: Path, blocks: Path) -> Path:
    """Make blocks of Prometheus with the samples of a file, in a directory of their own; return
    it."""
    check("promtool", "tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(blocks))
    return blocks


def over_blocks(
    directory: Path, blocks: Path, *options: str, port: int | None = None
) -> Prometheus:
    """Prometheus that holds a copy of blocks and scrapes nothing.

    Another server over the same directory continues with the data of the previous one. port: as for
    ``Prometheus``.
    """
    data, config = directory / "data", directory / "prometheus.yml"
    if not data.exists():
        shutil.copytree(blocks, data)
    config.write_text("global: {scrape_interval: 15s}\n")
    return Prometheus(directory, config, KEPT, *options, port=port)
