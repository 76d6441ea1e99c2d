"""The route of a node's own broker group, and its registrations with name services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from services.broker.api import own_route
from services.broker.api.gate import Gate
from services.broker.api.own_route import CHANGES_KEPT, OwnRoute
from services.broker.config import BrokerConfig, NamesSettings
from services.broker.metrics import BrokerMetrics
from services.broker.read.topic_views import TopicViews, is_routed
from services.broker.registrar import Registrar
from services.broker.schema.routes import RouteQuery
from services.names.config import NamesConfig
from services.names.core.directory import Directory
from services.names.metrics import NamesMetrics
from services.names.shell.http_api import NamesApi
from services.names.shell.registrations import Registrations
from services.names.shell.route_polls import RoutePolls
from shared.cluster.config import ClusterConfig
from shared.cluster.routes import RENEW_S, RouteNode, TopicRoute
from shared.files.store_config import StoreConfig
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tests.unit.names.registering import directory, said
from tidemark.errors import NotServing, StaleRegistration, UnknownTopic

SECRET = b"0123456789abcdef"


class Views:
    """Topics without a store."""

    def __init__(self, *names: str) -> None:
        self.topics = {name: TopicRoute(4, True, True) for name in names}
        self._changed: Callable[[str | None], None] = lambda topic: None

    @property
    def count(self) -> int:
        return len(self.topics)

    def route(self, name: str) -> TopicRoute | None:
        return self.topics.get(name)

    def routed(self) -> Iterator[str]:
        return iter(self.topics)

    def check_known(self, name: str) -> None:
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic {name!r}.")

    def report_changes_to(self, listener: Callable[[str | None], None]) -> None:
        self._changed = listener

    def put(self, name: str, queues: int = 4) -> None:
        self.topics[name] = TopicRoute(queues, True, True)
        self._changed(name)

    def drain(self) -> None:
        self.topics = {name: TopicRoute(4, True, False) for name in self.topics}
        self._changed(None)

    def delete(self, name: str) -> None:
        del self.topics[name]
        self._changed(name)


class Rig:
    """A node without a store."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.clock = SystemClock()
        self.gate = Gate(Health(self.clock))
        self.config = config or BrokerConfig()
        self.own = OwnRoute(self.config, self.gate, self.clock)
        self.views = Views("orders")

    def serve(self) -> None:
        self.own.serve(cast(TopicViews, self.views))
        self.gate.open_sends()


async def test_a_standalone_node_is_the_master_of_its_broker_group_while_it_serves() -> None:
    rig = Rig()
    await rig.own.refresh()
    assert rig.own.route(None).groups[0].master is None
    with pytest.raises(NotServing):
        rig.own.route("orders")
    rig.serve()
    await rig.own.refresh()
    group = rig.own.route("orders").groups[0]
    assert (group.group, group.master, group.queues) == ("g0", "n0", 4)
    assert [(node.node, node.role, node.api) for node in group.nodes] == [
        ("n0", "master", "http://127.0.0.1:8080")
    ]
    assert rig.own.route(None).groups[0].topics == 1
    with pytest.raises(UnknownTopic):
        rig.own.route("none")


class View:
    """What ha says of a group."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {
            "epoch": 3,
            "master": "n1",
            "nodes_version": 0,
            "nodes": [
                {"node": "n0", "role": "slave", "api": "http://a:1", "admin": "http://a:2"},
                {"node": "n1", "role": "master", "api": "http://b:1", "admin": "http://b:2"},
            ],
        }

    async def now(self) -> Mapping[str, Any]:
        return self.answer


def grouped() -> Rig:
    cluster = ClusterConfig(
        node="n0",
        nodes=("n0=127.0.0.1:1", "n1=127.0.0.1:2"),
        api=("n0=http://a:1", "n1=http://b:1"),
        admin=("n0=http://a:2", "n1=http://b:2"),
        secret_file=Path("secret"),
        lease_dir=Path("lease"),
    )
    return Rig(BrokerConfig(cluster=cluster, store=StoreConfig(visible_after="confirmed")))


async def test_in_a_group_the_nodes_are_those_that_ha_names() -> None:
    rig, view = grouped(), View()
    await rig.own.refresh()
    starting = rig.own.route(None).groups[0]
    assert [(node.node, node.role) for node in starting.nodes] == [
        ("n0", "unknown"),
        ("n1", "unknown"),
    ]
    rig.own.follow(view)
    await rig.own.refresh()
    group = rig.own.route(None).groups[0]
    assert (group.epoch, group.master, rig.own.role) == (3, "n1", "slave")
    assert [(node.node, node.role, node.api, node.admin) for node in group.nodes] == [
        ("n0", "slave", "http://a:1", "http://a:2"),
        ("n1", "master", "http://b:1", "http://b:2"),
    ]
    # ha does not answer: only this node is known, by its page.
    view.answer = {"epoch": 3, "master": None, "nodes": [{"node": "n0", "role": "follower"}]}
    await rig.own.refresh()
    assert {node.role for node in rig.own.route(None).groups[0].nodes} == {"unknown"}
    view.answer = {"epoch": 4, "master": "n0", "nodes": [{"node": "n0", "role": "master"}]}
    await rig.own.refresh()
    roles = [rig.own.role]
    rig.own.changed.clear()
    rig.gate.open_sends()
    await rig.own.refresh()
    assert rig.own.changed.is_set(), "it registers as the master at once"
    assert [*roles, rig.own.role] == ["unknown", "master"], "the master once it accepts sends"


async def test_the_route_has_the_nodes_that_an_operator_has_changed() -> None:
    rig, view = grouped(), View()
    rig.own.follow(view)
    own, new = view.answer["nodes"][0], {"api": "http://c:1", "admin": "http://c:2"}
    added = {"node": "n2", "role": "master", **new}
    view.answer |= {"master": "n2", "nodes_version": 2, "nodes": [added, own]}
    await rig.own.refresh()
    present = [
        RouteNode("n0", "slave", "http://a:1", "http://a:2"),
        RouteNode("n2", "master", "http://c:1", "http://c:2"),
    ]
    assert rig.own.route(None).groups[0].nodes == present
    # ha does not answer: the nodes remain, without roles.
    view.answer = {"epoch": 3, "master": None, "nodes": [{"node": "n0", "role": "follower"}]}
    await rig.own.refresh()
    assert rig.own.route(None).groups[0].nodes == [
        replace(each, role="unknown") for each in present
    ]


async def test_a_held_long_poll_sees_another_master_and_another_topic() -> None:
    rig, view = grouped(), View()
    rig.own.follow(view)
    rig.serve()
    stop = asyncio.Event()
    watching = asyncio.create_task(rig.own.run(stop))
    first = await rig.own.awaited("orders", RouteQuery())
    held = asyncio.create_task(
        rig.own.awaited("orders", RouteQuery(after=first.version, wait_ms=20_000))
    )
    await asyncio.sleep(0)
    view.answer = {**view.answer, "master": "n0", "epoch": 4}
    second = await held
    assert (second.groups[0].master, second.changed) == ("n0", True)
    held = asyncio.create_task(
        rig.own.awaited("orders", RouteQuery(after=second.version, wait_ms=20_000))
    )
    await asyncio.sleep(0)
    rig.views.put("other")
    rig.views.put("orders", 9)
    assert (await held).groups[0].queues == 9
    # A stop answers what is held.
    last = await rig.own.awaited(None, RouteQuery())
    held = asyncio.create_task(
        rig.own.awaited(None, RouteQuery(after=last.version, wait_ms=20_000))
    )
    await asyncio.sleep(0)
    stop.set()
    await watching
    assert not (await held).changed


async def test_a_held_long_poll_sees_at_once_that_this_node_has_become_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sends open before ha's view names the node."""
    monkeypatch.setattr(own_route, "WATCH_S", 60.0)
    rig, view, stop = grouped(), View(), asyncio.Event()
    rig.own.follow(view)
    rig.own.serve(cast(TopicViews, rig.views))
    watching = asyncio.create_task(rig.own.run(stop))
    first = await rig.own.awaited(None, RouteQuery())
    held = asyncio.create_task(
        rig.own.awaited(None, RouteQuery(after=first.version, wait_ms=20_000))
    )
    await asyncio.sleep(0)
    rig.gate.open_sends()
    await asyncio.sleep(0)
    view.answer = {**view.answer, "master": "n0", "epoch": 4}
    async with asyncio.timeout(10):
        assert (await held).groups[0].master == "n0"
    assert rig.own.role == "master"
    stop.set()
    async with asyncio.timeout(10):
        await watching


def test_changes_are_known_since_a_counter_until_there_are_too_many() -> None:
    rig = Rig()
    rig.serve()
    begin = rig.own.counter
    assert rig.own.changes_since(begin) == set()
    assert rig.own.changes_since(begin - 1) is None, "topics of an earlier role"
    rig.views.put("a")
    rig.views.delete("a")
    rig.views.put("b")
    assert rig.own.changes_since(begin) == {"a", "b"}
    assert rig.own.changes_since(begin + 2) == {"b"}
    for _ in range(CHANGES_KEPT):
        rig.views.put("c")
    assert rig.own.changes_since(begin + 2) is None
    assert rig.own.changes_since(begin + 3) == {"c"}
    assert rig.own.changes_since(rig.own.counter + 1) is None
    rig.own.raise_counter(rig.own.counter + 10)
    assert rig.own.changes_since(begin + 3) is None


@pytest.mark.parametrize(
    ("name", "routed"),
    [
        ("orders", True),
        ("%RETRY%g", True),
        ("%DLQ%g", True),
        ("rmq_sys_tidemark_state", False),
        ("SCHEDULE_TOPIC_XXXX", False),
    ],
)
def test_clients_are_routed_to_no_topic_of_the_broker_itself(name: str, routed: bool) -> None:
    assert is_routed(name) == routed


# -- registrations with a name service in this process ---------------------------------------------


class Names:
    """A name service without its process."""

    def __init__(self, port: int = 0) -> None:
        clock = SystemClock()
        limited_log = RateLimitedLogger(clock.monotonic)
        metrics = NamesMetrics(Registry("names"))
        self.directory: Directory = directory()
        registrations = Registrations(
            NamesConfig(), SECRET, self.directory, metrics, clock, limited_log
        )
        polls = RoutePolls(self.directory, 10)
        self.api = NamesApi(self.directory, registrations, metrics, limited_log, polls)
        self.server = TestServer(self.api.app, port=port)

    async def __aenter__(self) -> Names:
        await self.server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            for _ in iter(lambda: bool(condition()), True):
                await asyncio.sleep(0.005)

    def topics(self) -> list[str]:
        group = self.directory.table.groups.get("g0")
        return [] if group is None else sorted(group.topics)


@asynccontextmanager
async def registering(rig: Rig) -> AsyncIterator[BrokerMetrics]:
    metrics, stop = BrokerMetrics(Registry("broker")), asyncio.Event()
    registrar = Registrar(rig.config, rig.own, "store a", SECRET, metrics, rig.clock)
    parts = [
        asyncio.create_task(registrar.run(stop)),
        asyncio.create_task(rig.own.run(stop)),
    ]
    try:
        yield metrics
    finally:
        stop.set()
        await asyncio.gather(*parts)


def with_names(*names: Names) -> Rig:
    urls = tuple(f"http://127.0.0.1:{each.server.port}" for each in names)
    return Rig(BrokerConfig(names=NamesSettings(urls=urls)))


async def test_a_broker_registers_and_reports_changes_by_difference() -> None:
    async with Names() as names:
        rig = with_names(names)
        async with registering(rig):
            await names.until(lambda: "g0" in names.directory.table.groups)
            assert names.topics() == [], "it does not serve yet"
            rig.serve()
            await names.until(lambda: names.topics() == ["orders"])
            rig.views.put("new")
            await names.until(lambda: names.topics() == ["new", "orders"])
            rig.views.delete("orders")
            await names.until(lambda: names.topics() == ["new"])
            rig.views.drain()
            await names.until(lambda: not names.directory.table.groups["g0"].topics["new"].writable)
            rig.gate.shut()
            await names.until(lambda: names.directory.table.groups["g0"].master is None)


async def test_a_broker_that_stops_is_no_master_for_clients_any_more() -> None:
    async with Names() as names:
        rig = with_names(names)
        rig.serve()
        async with registering(rig):
            await names.until(lambda: names.topics() == ["orders"])
        group = names.directory.table.groups["g0"]
        assert (group.master, names.topics()) == (None, ["orders"])


async def test_a_late_registration_of_a_broker_that_has_stopped_is_refused() -> None:
    async with Names() as names:
        rig = with_names(names)
        rig.serve()
        async with registering(rig):
            await names.until(lambda: names.topics() == ["orders"])
        late = said("orders", epoch=0, counter=rig.own.counter, identity="store a")
        with pytest.raises(StaleRegistration):
            names.directory.register("g0", "n0", late, rig.clock.monotonic())


async def test_a_renewal_takes_the_connection_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def connector(**settings: Any) -> aiohttp.BaseConnector:
        asked.append(settings)
        return made(**settings)

    made = aiohttp.TCPConnector
    monkeypatch.setattr(aiohttp, "TCPConnector", connector)
    async with Names() as names, registering(with_names(names)):
        await names.until(lambda: asked)
    assert RENEW_S < asked[0]["keepalive_timeout"] < NamesConfig().idle_timeout_s


async def test_a_restarted_name_service_gets_all_topics_with_the_next_registration() -> None:
    async with Names() as names:
        rig = with_names(names)
        rig.serve()
        port = names.server.port
        async with registering(rig):
            await names.until(lambda: names.topics() == ["orders"])
            await names.server.close()
            async with Names(port or 0) as again:
                rig.views.put("new")
                await again.until(lambda: again.topics() == ["new", "orders"])


async def test_a_broker_whose_counter_is_too_low_goes_on_from_the_known_one() -> None:
    # Its clock was set back between two starts.
    async with Names() as names:
        rig = with_names(names)
        rig.serve()
        known = said("old", epoch=0, counter=rig.own.counter + 1000, identity="store a")
        names.directory.register("g0", "n0", known, rig.clock.monotonic())
        async with registering(rig):
            await names.until(lambda: names.topics() == ["orders"])


async def test_a_name_service_that_is_down_does_not_keep_another_from_registrations() -> None:
    async with Names() as names:
        down = Names()
        await down.server.start_server()
        rig = with_names(down, names)
        await down.server.close()
        rig.serve()
        async with registering(rig) as metrics:
            await names.until(lambda: names.topics() == ["orders"])
            await names.until(lambda: metrics.names_refused.labels("unreachable")._value.get())
