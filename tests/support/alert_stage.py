"""Clusters of real processes, watched by Debian's Prometheus and Alertmanager, at any speed.

The configuration is the project's own (``deploy/prometheus``), except for the places of targets,
the receiver and the speed of watching. Clusters are distinguished by their label ``cluster``. All
notifications go to a receiver in this process, so it has exactly those that an operator would get.
``factor``: all times of rules, scrapes and notifications are divided by it, bounds are not.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import yaml

from deploy.prometheus.rules import ROOT
from tests.support.fast_rules import rule_file
from tests.support.prometheus import Alertmanager, Prometheus
from tests.support.promql_tokens import faster, milliseconds

LOOKBACK: Final = "5m"
"""Prometheus' default: how long a value without a successor counts."""
SERVICES: Final = ("broker", "reput", "ha")


class Target(NamedTuple):
    """One process to ask."""

    cluster: str
    broker: str
    replica: str
    service: str
    port: int


class Notification(NamedTuple):
    """One alert of one notification."""

    at_s: float
    """Time since the stage was set."""
    status: str
    """``firing`` or ``resolved``."""
    labels: Mapping[str, str]
    summary: str

    @property
    def key(self) -> tuple[str, str, str]:
        """(alert, cluster, consumer group)."""
        return key_of(self.labels)


def key_of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    """(alert, cluster, consumer group) of an alert's labels."""
    return labels["alertname"], labels.get("cluster", ""), labels.get("group", "")


class Receiver:
    """Receives Alertmanager's notifications."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        began = time.monotonic()
        notifications = self.notifications

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    notifications.append(
                        Notification(
                            time.monotonic() - began,
                            alert["status"],
                            alert["labels"],
                            alert["annotations"].get("summary", ""),
                        )
                    )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more notifications."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class Stage:
    """Prometheus, Alertmanager and the receiver. Targets can change while it runs."""

    def __init__(self, directory: Path, factor: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.factor = factor
        self.receiver = Receiver()
        self._targets: list[Target] = []
        (directory / "rules").mkdir()
        (directory / "targets").mkdir()
        (directory / "rules" / "all.yml").write_text(rule_file(factor))
        self.watch([])
        self.alertmanager = Alertmanager(
            directory / "alertmanager", self._written("alertmanager.yml", self._telling())
        )
        self.prometheus = Prometheus(
            directory / "prometheus",
            self._written("prometheus.yml", self._asking()),
            f"--query.lookback-delta={faster(LOOKBACK, factor)}",
        )

    def __enter__(self) -> Self:
        self.alertmanager.__enter__()
        self.prometheus.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.prometheus.__exit__(kind, error, trace)
        self.alertmanager.__exit__(kind, error, trace)
        self.receiver.close()

    def seconds(self, duration: str) -> float:
        """Return a time of a rule at this speed."""
        return milliseconds(duration) / self.factor / 1000

    def watch(self, targets: Sequence[Target]) -> None:
        """Set the targets; Prometheus notices the change by itself."""
        self._targets = list(targets)
        for service in SERVICES:
            entries = [
                {
                    "targets": [f"127.0.0.1:{target.port}"],
                    "labels": {
                        "cluster": target.cluster,
                        "broker": target.broker,
                        "replica": target.replica,
                    },
                }
                for target in targets
                if target.service == service
            ]
            path = self.directory / "targets" / f"{service}.yml"
            # Renamed into place: half a file would be no targets.
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(entries))
            beside.rename(path)

    @property
    def targets(self) -> list[Target]:
        """The present targets."""
        return list(self._targets)

    def _asking(self) -> dict[str, Any]:
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        times = config["global"]
        for name in ("scrape_interval", "evaluation_interval"):
            times[name] = faster(times[name], self.factor)
        # Frequent requests do not make a process on a loaded machine answer faster.
        times["scrape_timeout"] = min(times["scrape_timeout"], times["scrape_interval"],
                                      key=milliseconds)  # fmt: skip
        (manager,) = config["alerting"]["alertmanagers"]
        manager["static_configs"] = [{"targets": [self.alertmanager.url.removeprefix("http://")]}]
        return dict(config)

    def _telling(self) -> dict[str, Any]:
        config = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())
        for route in (config["route"], *config["route"]["routes"]):
            for name in ("group_wait", "group_interval", "repeat_interval"):
                if name in route:
                    route[name] = faster(route[name], self.factor)
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [
                {"url": f"http://127.0.0.1:{self.receiver.port}/", "send_resolved": True}
            ]
        return dict(config)

    def _written(self, name: str, config: Mapping[str, Any]) -> Path:
        path = self.directory / name
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path
