"""ha as a whole: waits for its store, recovers it, runs the replica, closes in reverse.

Probes and commands are answered from the start. The order is the one in which a volume may be
trusted: byte 3 of the lock, the fenced page, byte 0 from the broker, recovery; only then the
replica, its links and its watch. Step before: configuration. Step after: ``effect_runner``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from services.ha.config import HaConfig
from services.ha.core.events import Command, Event
from services.ha.core.replica import Replica
from services.ha.core.setup import Found
from services.ha.core.states import State
from services.ha.lease import stores
from services.ha.metrics import AckDuration, HaMetrics, counted, skews
from services.ha.shell.control import Control, ControlSocket
from services.ha.shell.effect_runner import EffectRunner
from services.ha.shell.lease_client import LeaseClient
from services.ha.shell.links import Credentials, Links, LinkSettings
from services.ha.shell.page_writer import PageWriter
from services.ha.shell.probes import Probes
from services.ha.shell.replica_disk import ReplicaDisk
from services.ha.shell.replica_store import ReplicaStore
from services.ha.shell.secret_rotation import SecretRotation
from services.ha.shell.streaming import LogViews
from services.ha.shell.trace_log import log_confirmed
from services.ha.shell.watch import SnapshotReader, Watch
from services.ha.startup import load_credentials, secret_files, setup_from, status_before
from services.ha.wire.handshake import Identity
from services.ha.wire.versions import SPOKEN
from shared.cluster.group_secret import Recipient
from shared.files.lock_probe import LockProbe
from shared.files.os_disk import OsDisk
from shared.files.store_dir import StoreDir
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import raise_descriptor_limit, run_parts, stop_on_signals
from shared.runtime.rate_limited_logger import RateLimitedLogger
from shared.runtime.traced_ranges import TracedRanges
from tidemark.errors import NotServing, TidemarkError

log = logging.getLogger(__name__)

SERVICE: Final = "ha"
LEAVE_S: Final = 2.5
"""A planned switch takes less than a second; beyond this limit the lease expires instead."""


async def run(config: HaConfig) -> None:
    """Replicate until SIGTERM or until a part fails."""
    asked = asyncio.Event()
    stop_on_signals(asked)
    await Ha(config, asked).run()


class Ha:
    """One ha process."""

    def __init__(self, config: HaConfig, asked: asyncio.Event) -> None:
        """asked: set when this process is to end."""
        self._config, self._asked = config, asked
        self._stop = asyncio.Event()
        self._clock = SystemClock()
        self._health = Health(self._clock)
        self.registry = Registry(SERVICE)
        """A program that runs the service inside itself may register metrics of its own here."""
        add_process_facts(
            self.registry, wire_version=str(SPOKEN.highest), is_ready=lambda: self._health.ready
        )
        self._limited_log = RateLimitedLogger(self._clock.monotonic)
        self._traced = TracedRanges(self._clock.monotonic)
        self._setup = setup_from(config)
        self._replica: Replica | None = None
        self._runner: EffectRunner | None = None
        self._rotation: SecretRotation | None = None
        self._control = Control(self._command, self._status, timeout_s=config.command_timeout_s)

    async def run(self) -> None:
        """Run everything, from the probes to the locks."""
        config = self._config
        raise_descriptor_limit()
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        credentials = await asyncio.to_thread(load_credentials, config)
        await asyncio.to_thread(stores.check_files, config.cluster)
        setup = self._setup
        recipient = Recipient(setup.cluster, setup.group, setup.own.name)
        self._rotation = SecretRotation(secret_files(config), credentials, recipient)
        async with AsyncExitStack() as closing:
            probes = Probes(self._clock, self._state)
            admin = AdminServer(
                self._health,
                self.registry,
                host=config.admin_host,
                port=config.admin_port,
                routes=[
                    *probes.routes(),
                    *self._rotation.routes(),
                    *self._control.port_routes(config.order_hosts),
                ],
            )
            await closing.enter_async_context(admin)
            prepared = asyncio.ensure_future(asyncio.to_thread(stores.prepare, config.cluster))
            held = await asyncio.to_thread(self._open)
            closing.callback(held.close)
            doorbell = Doorbell(config.sockets_dir, SERVICE, self._traced.note)
            closing.callback(doorbell.close)
            control = ControlSocket(self._control, config.sockets_dir)
            await closing.enter_async_context(control)
            log.info(
                "listening",
                extra={
                    "event": "listening",
                    "admin": f"http://{config.admin_host}:{admin.port}",
                    "store": str(config.store_dir),
                    "node": self._setup.own.name,
                },
            )
            found = await self._recover(held)
            await prepared
            if found is not None:
                probes.open(held.positions)
                await self._serve(held, found, doorbell, credentials)
            await control.close()
            doorbell.close()
            await asyncio.to_thread(held.stopped_clean)

    # -- start ----------------------------------------------------------------------------------

    def _open(self) -> ReplicaStore:
        config, disk = self._config, OsDisk()
        disk.make_directory(config.store_dir)
        directory = StoreDir(disk, config.store_dir, config.store, run_dir=config.sockets_dir)
        return ReplicaStore.open(directory, self._setup, self._clock)

    async def _recover(self, held: ReplicaStore) -> Found | None:
        """Wait for the log and recover it; None if stopped first."""
        self._health.enter("recovering")
        found = await asyncio.to_thread(
            lambda: held.recover(
                boot_id=self._setup.boot,
                progress=self._health.recovery.progress,
                stopping=self._asked.is_set,
            )
        )
        if found is not None:
            log.info(
                "recovered",
                extra={
                    "event": "recovered",
                    "incarnation": found.incarnation,
                    "end_offset": found.end,
                    "confirm_offset": found.confirm,
                    "promised_epoch": found.promised,
                    "halted": None if found.halted is None else str(found.halted),
                },
            )
        return found

    async def _serve(
        self, held: ReplicaStore, found: Found, doorbell: Doorbell, credentials: Credentials
    ) -> None:
        """Run the replica until stop."""
        config, positions, rotation = self._config, held.positions, self._rotation
        assert rotation is not None, "the credentials were read before the store"
        async with AsyncExitStack() as closing:
            views = LogViews(held.directory, positions)
            closing.callback(views.close)
            probe = LockProbe(held.directory.lock_path)
            closing.callback(probe.close)
            # In a thread: it reads certificates.
            lease = await asyncio.to_thread(stores.open_store, config.cluster)
            closing.push_async_callback(lease.close)
            links = self._links(found.incarnation, credentials, views)
            closing.push_async_callback(links.close)
            disk = ReplicaDisk(held, self._post_from_thread, self._crashed)
            closing.push_async_callback(asyncio.to_thread, disk.close)
            replica = Replica(self._setup, found, log=held, random=random.random)

            runner = EffectRunner(
                replica,
                self._clock,
                PageWriter(positions, self._setup.boot, self._clock, doorbell),
                links,
                disk,
                LeaseClient(lease, request_timeout_ms=self._setup.times.request_timeout_ms),
                self._health,
                self._control.replied,
            )
            closing.callback(runner.close)
            closing.callback(self._control.close)
            self._replica, self._runner = replica, runner
            own = self._setup.own
            await links.listen(config.host or own.host, own.port)
            disk.start()
            watch = Watch(
                SnapshotReader(positions, probe, self._clock, self._clock.wall_ms),
                positions,
                doorbell,
                self._clock,
                runner.post,
                interval_ms=config.sense_interval_ms,
                turned=lambda: log_confirmed(self._traced, replica),
            )
            HaMetrics(
                self.registry,
                own.name,
                self._status,
                lambda: counted(replica, loop_stalls=watch.loop_stalls),
                links,
                lambda: skews(replica),
            )
            self._health.enter("serving")
            await run_parts(
                self._stop,
                {
                    "replica": lambda: runner.run(self._stop),
                    "watch": lambda: watch.run(self._stop),
                    "secret": lambda: rotation.watch(self._stop),
                    "leave": self._leave,
                },
            )

    async def _leave(self) -> None:
        """Give the lease to another node once this process is to end, if one can take it.

        Not after another part has failed: then no replica is left that could hand over.
        """
        waits = [asyncio.create_task(each.wait()) for each in (self._asked, self._stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._stop.is_set():
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._control.command("switchover", {"reason": "stopping"})
        except (TimeoutError, TidemarkError) as error:
            log.info("not handed over", extra={"event": "not-handed-over", "detail": str(error)})
        self._stop.set()

    def _links(self, incarnation: str, credentials: Credentials, views: LogViews) -> Links:
        config, setup = self._config, self._setup
        return Links(
            Identity(setup.cluster, setup.group, setup.own.name, incarnation, setup.file_size),
            credentials,
            LinkSettings(
                nodes={node.name: node for node in setup.nodes},
                connect_timeout_s=setup.times.link_dead_ms / 1000,
                proof_timeout_s=config.proof_timeout_ms / 1000,
                connections_max=config.connections_max,
                buffer_max=config.link_buffer_max,
            ),
            views,
            self._post,
            self._limited_log,
            AckDuration(self.registry).observe,
        )

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error in a callback. Errors that peers can cause are logged; a bug ends the
        process."""
        error = context.get("exception")
        message = str(context.get("message", ""))
        if error is None or isinstance(error, (OSError, TimeoutError)):  # ssl.SSLError is one
            self._limited_log.say(
                "loop", "connection-error", "a connection failed", what=message, detail=repr(error)
            )
            return
        log.error(
            "a callback of the loop failed",
            exc_info=error,
            extra={"event": "callback-failed", "what": message},
        )
        if self._runner is not None:
            self._runner.fail(error)
        else:
            self._asked.set()

    # -- between the parts ----------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        if self._runner is not None:
            self._runner.post(event)

    def _crashed(self, error: BaseException) -> None:
        """End the process after a thread of the disk failed with an unexpected error."""
        if self._runner is not None:
            self._runner.fail_from_thread(error)

    def _post_from_thread(self, event: Event) -> None:
        if self._runner is not None:
            self._runner.post_from_thread(event)

    def _command(self, command: Command) -> None:
        if self._runner is None:
            raise NotServing("the node recovers its log. Nothing was done.", "Try again later.")
        self._runner.post(command)

    def _state(self) -> State:
        return State.RECOVERING if self._replica is None else self._replica.context.state

    def _status(self) -> Mapping[str, Any]:
        if self._replica is None:
            found = status_before(self._setup, self._health.state)
        else:
            found = self._replica.status(self._clock.boot_ms())
        return found if self._rotation is None else {**found, "secret": self._rotation.status()}
