"""The process of a name service: opens both ports, asks its peers, drops what is not renewed.

It has no files: a start begins with an empty table, which the next registrations fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from typing import Final

from services.names.config import NamesConfig
from services.names.core.directory import Directory
from services.names.metrics import NamesMetrics
from services.names.shell.http_api import NamesApi
from services.names.shell.peers import groups_of_peers
from services.names.shell.registrations import Registrations
from services.names.shell.route_polls import RoutePolls
from shared.cluster.routes import RENEW_S
from shared.cluster.secret_file import read_secret
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.clock import SystemClock
from shared.runtime.connections import BoundedServer
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import raise_descriptor_limit, run_parts, stop_on_signals
from shared.runtime.rate_limited_logger import RateLimitedLogger

log = logging.getLogger(__name__)

SERVICE: Final = "names"
EXPIRE_INTERVAL_S: Final = 5.0
MISSING_SHOWN: Final = 20
"""Missing broker groups that one log line names."""


def secret_of(config: NamesConfig) -> bytes | None:
    """Return the cluster's secret; None without one. Blocks. Raises BadConfig."""
    return None if config.secret_file is None else read_secret(config.secret_file, "secret_file")


async def run(config: NamesConfig) -> None:
    """Serve until SIGTERM or until a part fails."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    await Names(config, secret_of(config), stop).run()


class Names:
    """One process of the name service."""

    def __init__(self, config: NamesConfig, secret: bytes | None, stop: asyncio.Event) -> None:
        """secret: registrations must be signed with it; None: any is taken."""
        self._config = config
        self._stop = stop
        self._clock = SystemClock()
        self.health = Health(self._clock)
        self.registry = Registry(SERVICE)
        """A program that runs the service inside itself may register metrics of its own here."""
        add_process_facts(self.registry, is_ready=lambda: self.health.ready)
        self._metrics = NamesMetrics(self.registry)
        self._limited_log = RateLimitedLogger(self._clock.monotonic)
        self._is_complete = False
        self._late_s = self._clock.monotonic() + RENEW_S
        """When every node that runs has registered."""
        self.directory = Directory(
            config.cluster,
            config.table_bounds,
            expected=config.groups,
            names=sorted({config.own_url, *config.other_urls}),
            kept_max=config.answers_max,
            now_s=self._clock.monotonic(),
        )
        registrations = Registrations(
            config, secret, self.directory, self._metrics, self._clock, self._limited_log
        )
        self._polls = RoutePolls(self.directory, config.held_polls_max)
        self._api = NamesApi(
            self.directory, registrations, self._metrics, self._limited_log, self._polls
        )

    async def run(self) -> None:
        """Run the process from opening the ports to closing them."""
        config = self._config
        raise_descriptor_limit()
        async with AsyncExitStack() as closing:
            admin = AdminServer(
                self.health, self.registry, host=config.admin_host, port=config.admin_port
            )
            await closing.enter_async_context(admin)
            server = BoundedServer(self._api.app, config.connection_bounds, self._api.fast_path)
            self._metrics.show(
                config, self.directory, lambda: self._polls.held, lambda: server.connections
            )
            await server.start(config.host, config.port)
            closing.push_async_callback(server.close)
            closing.callback(self._polls.release)
            log.info(
                "listening",
                extra={
                    "event": "listening",
                    "api": f"http://{config.host}:{server.port}",
                    "admin": f"http://{config.admin_host}:{admin.port}",
                    "cluster": config.cluster,
                },
            )
            collector.settle()
            self.health.enter("serving")
            await run_parts(self._stop, {"table": self._keep})
            self.health.enter("stopping")

    async def _keep(self) -> None:
        """Ask the peers, then drop what is not renewed, until stop."""
        config = self._config
        named = await groups_of_peers(config.cluster, config.other_urls, config.peers_timeout_s)
        self._polls.wake(self.directory.note_peers(named))
        while not self._stop.is_set():
            self._note_complete()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPIRE_INTERVAL_S):
                    await self._stop.wait()
            self._expire()

    def _expire(self) -> None:
        changes = self.directory.expire(self._clock.monotonic())
        for group, node in changes.expired:
            self._metrics.expired_nodes.inc()
            self._limited_log.say(
                f"expired {group}",
                "node-expired",
                "a node has not registered for two minutes and is no longer named to clients",
                group=group,
                node=node,
            )
        self._polls.wake(changes)

    def _note_complete(self) -> None:
        """Log when all expected broker groups are registered, and which are missing."""
        completeness = self.directory.completeness
        was_complete, self._is_complete = self._is_complete, completeness.complete
        if completeness.complete:
            if not was_complete:
                log.info(
                    "every expected broker group is registered",
                    extra={"event": "complete", "groups": len(self.directory.table.groups)},
                )
        elif completeness.missing and self._clock.monotonic() > self._late_s:
            self._note_missing(completeness.missing)

    def _note_missing(self, missing: list[str]) -> None:
        self._limited_log.say(
            "incomplete",
            "incomplete",
            "broker groups are not registered; unknown topics get 503",
            groups=missing[:MISSING_SHOWN],
            count=len(missing),
        )
