"""The broker process: opens the store and the ports, runs the node, closes them in reverse.

The API port listens from the start and reports the progress of the start. A standalone node takes
its locks here; in a group the ports open first, because the ha process creates the store and
assigns the role. A failed flush, or a component that ends, ends the process. Step after:
``replication`` runs the node (``standalone``, ``node``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from services.broker.api.cluster_calls import starting
from services.broker.api.connections import ApiServer
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.api.own_route import OwnRoute
from services.broker.api.role_probes import role_probes
from services.broker.config import BrokerConfig
from services.broker.context import BrokerContext
from services.broker.log.open_store import OpenStore
from services.broker.log.volumes import Volumes
from services.broker.metrics import BrokerMetrics
from services.broker.registrar import Registrar
from services.broker.replication.cluster_view import ClusterView
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.node import GroupNode
from services.broker.replication.standalone import StandaloneNode
from services.broker.roles import RoleContext
from services.broker.send.unique_ids import UniqueIds
from services.broker.watch import Watch
from shared.files.os_disk import OsDisk
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime import collector
from shared.runtime.clock import SystemClock
from shared.runtime.connections import Bounds
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import (
    descriptor_limit,
    raise_descriptor_limit,
    run_parts,
    stop_on_signals,
)
from tidemark import __version__
from tidemark.clock import Clock

log = logging.getLogger(__name__)

SERVICE = "broker"


async def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or until a component fails."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    await Broker(config, stop, on_serving=collector.settle).run()


class Broker:
    """One broker process."""

    def __init__(
        self,
        config: BrokerConfig,
        stop: asyncio.Event,
        clock: Clock | None = None,
        *,
        on_serving: Callable[[], None] = lambda: None,
    ) -> None:
        """clock: clock of all components; None: the system clock. on_serving: called when
        sends open; in a group 2 s after each role begins.
        """
        self._on_serving = on_serving
        self._config = config
        self._stop = stop
        self._clock = clock if clock is not None else SystemClock()
        self._health = Health(self._clock)
        self._gate = Gate(self._health)
        self._own_route = OwnRoute(config, self._gate, self._clock)
        self._node: StandaloneNode | GroupNode | None = None
        self.registry = Registry(SERVICE, config.series_limits)
        """A program that runs the service inside itself may register metrics of its own here."""
        add_process_facts(self.registry, is_ready=lambda: self._health.ready)
        self._metrics = BrokerMetrics(
            self.registry,
            self._clock,
            group_delays=config.group_delay_histograms,
            queue_series_max=config.queue_series_max,
        )

    async def run(self) -> None:
        """Run the broker, from taking the locks to releasing them."""
        raise_descriptor_limit()
        async with AsyncExitStack() as closing:
            if self._config.cluster.grouped:
                await self._run_in_group(closing)
            else:
                await self._run_alone(closing)

    async def _run_alone(self, closing: AsyncExitStack) -> None:
        config = self._config
        store = await asyncio.to_thread(OpenStore.open, config, OsDisk(), self._clock)
        closing.callback(store.close)
        doorbell = Doorbell(config.sockets_dir, SERVICE)
        closing.callback(doorbell.close)
        self._show_store(store)
        api = self._api()
        api.traces.connect(doorbell.ring)
        self._show_delayed(api)
        server = await self._listen(closing, api)
        watch = Watch(store, self._health, self._stop, config.dispatch_lag_max)
        node = StandaloneNode(self._role_context(doorbell, api, server, watch), store)
        await self._run_node(node, store, server, doorbell, {"watch": watch.run})

    async def _run_in_group(self, closing: AsyncExitStack) -> None:
        """Run as a node of a group.

        The ports open first, so that the node can report that ha creates or clears its store."""
        config = self._config
        api = self._api()
        api.show_cluster(starting(config.cluster))
        self._show_delayed(api)
        server = await self._listen(closing, api)
        store = await GroupedStore.wait_open(
            config, OsDisk(), self._clock, self._health, self._stop
        )
        if store is None:
            return
        closing.callback(store.close)
        doorbell = Doorbell(config.sockets_dir, SERVICE)
        closing.callback(doorbell.close)
        api.traces.connect(doorbell.ring)
        self._show_store(store)
        view = ClusterView(config.cluster, config.sockets_dir, store.positions, self._clock)
        api.show_cluster(view)
        self._own_route.follow(view)
        watch = Watch(store, self._health, self._stop, config.dispatch_lag_max)
        node = GroupNode(self._role_context(doorbell, api, server, watch), store, view)
        parts = {"cluster-view": lambda: view.run(self._stop), "watch": watch.run}
        await self._run_node(node, store, server, doorbell, parts)

    async def _run_node(
        self,
        node: StandaloneNode | GroupNode,
        store: OpenStore,
        server: ApiServer,
        doorbell: Doorbell,
        parts: Mapping[str, Callable[[], Awaitable[None]]],
    ) -> None:
        """Run the node and the other parts until stop; then answer the requests in progress, and
        mark the store as cleanly stopped."""
        self._node = node
        own_route = self._own_route
        registrar = await Registrar.prepare(
            self._config, own_route, store, self._metrics, self._clock
        )
        await run_parts(
            self._stop,
            {
                "node": lambda: node.run(self._stop),
                "own-route": lambda: own_route.run(self._stop),
                "registrar": lambda: registrar.run(self._stop),
                **parts,
            },
        )
        if node.closed_in_order:
            await server.close()
            doorbell.close()
            await asyncio.to_thread(store.stopped_clean)

    def _role_context(
        self, doorbell: Doorbell, api: Api, server: ApiServer, watch: Watch
    ) -> RoleContext:
        broker = BrokerContext(
            self._config, self._clock, self._metrics, self._health, doorbell, server.port
        )
        return RoleContext(
            broker, self._metrics, self._gate, api, watch, self._own_route, self._on_serving
        )

    async def _listen(self, closing: AsyncExitStack, api: Api) -> ApiServer:
        """Open both ports, and log their addresses."""
        config = self._config
        pauses = api.request_classes.behind_sends()
        server = ApiServer(
            api.app, self._metrics, self._bounds(), api.fast_path, pauses, api.direct_sends
        )
        self._metrics.show_requests(api.request_classes, server.roles)

        def is_awaited() -> bool:
            return api.request_classes.is_awaited() or server.has_recent_input

        self._metrics.pause_while(is_awaited)
        admin = AdminServer(
            self._health,
            self.registry,
            host=config.admin_host,
            port=config.admin_port,
            routes=role_probes(lambda: self._is_primary, lambda: self._is_replica),
            before_scrape=self._metrics.refresh,
            is_awaited=is_awaited,
        )
        await closing.enter_async_context(admin)
        await server.start(config.host, config.port)
        self._own_route.listen_on(server.port)
        closing.push_async_callback(server.close)
        log.info(
            "listening",
            extra={
                "event": "listening",
                "api": f"http://{config.host}:{server.port}",
                "admin": f"http://{config.admin_host}:{admin.port}",
                "store": str(config.store_dir),
            },
        )
        return server

    def _bounds(self) -> Bounds:
        """Return the limits of the API port.

        Half of the process's descriptors are reserved for the store's files, so that many
        connections cannot prevent the creation of the next log file."""
        config, limit = self._config, descriptor_limit() // 2
        if limit < config.connections_max:
            log.warning(
                "fewer connections are taken than connections_max: the limit of open files is low",
                extra={
                    "event": "descriptors-low",
                    "limit": limit,
                    "connections_max": config.connections_max,
                },
            )
        return Bounds(
            min(config.connections_max, limit),
            config.read_timeout_s,
            config.idle_timeout_s,
            config.write_timeout_s,
        )

    @property
    def _is_primary(self) -> bool:
        """Whether this node accepts sends, as a master or as a standalone node."""
        return self._node is not None and self._node.is_master

    @property
    def _is_replica(self) -> bool:
        """Whether this node is a slave that serves reads."""
        return self._node is not None and self._node.is_slave

    def _api(self) -> Api:
        config = self._config
        rules = Rules(
            config.message_size_max,
            config.store.record_crc,
            delay_levels_ms=config.store.delay_levels_ms,
        )
        if config.cluster.grouped:
            limit_ms = config.cluster.time_rules.ack_limit_ms
            rules = rules._replace(ack_default=None, timeout_ms_default=limit_ms)
        return Api(
            self._gate,
            rules,
            self._clock,
            self._metrics,
            UniqueIds(self._clock, config.store_host(config.port)),
            BodyBounds(config.request_size_max, config.waiting_bytes_max, config.read_timeout_s),
            self._own_route,
            version=__version__,
        )

    # -- metrics --------------------------------------------------------------------------------

    def _show_store(self, store: OpenStore) -> None:
        self._metrics.show_store(
            store.positions,
            store.confirm_slot,
            self._health.recovery,
            Volumes(store.directory, self._clock),
        )

    def _show_delayed(self, api: Api) -> None:
        self._metrics.show_delayed(
            lambda: None if api.components is None else api.components.delayed
        )
