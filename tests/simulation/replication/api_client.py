"""Clients of one node's API and probes: the broker's own API without sockets.

Requests go through the API's router and handlers, and ``GET /v1/cluster`` asks ha of the node.
Every answer is compared with the state of the world at that moment (``view_rules``): the master,
the probes, and whether the group has confirmed what was answered as done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import HttpVersion11, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig
from services.broker.metrics import BrokerMetrics
from services.broker.replication import cluster_view
from services.broker.replication.cluster_view import ClusterView
from services.broker.schema.calls import ANYWHERE, READ_FROM
from services.broker.schema.groups import GroupConfig
from services.broker.send.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from tests.simulation.replication import view_rules
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.store_view import ROOT
from tests.simulation.replication.violation import Violation
from tidemark.errors import NotMaster, SwitchingOver, TidemarkError
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from services.broker.replication.grouped_store import GroupedStore
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.ha import Ha

CHECK_S: Final = 0.2
"""Average time between two checks of the probes."""
ASK_SHARE: Final = 0.15
"""Share of these checks that also request ``GET /v1/cluster``. More requests would hide that the
broker itself asks too rarely."""
CHANGE_SHARE: Final = 0.1
"""Share of these checks at which a client creates or deletes a topic, if no such request waits."""
GROUP_SHARE: Final = 0.4
"""Share of these changes that create or delete a group instead."""
CHANGED_TOPICS: Final = 3
"""Topics, and groups, that the clients of one node create and delete."""
ANYWHERE_HEADERS: Final = {READ_FROM: ANYWHERE}
PORT: Final = 8080
_PROTOCOL: Final = SimpleNamespace(
    transport=SimpleNamespace(
        get_extra_info=lambda name, default=None: ("10.0.0.1", 1) if name == "peername" else None,
        is_closing=lambda: False,
    ),
    ssl_context=None,
    peername=("10.0.0.1", 1),
    sockname=("10.0.0.2", PORT),
    max_field_size=8190,
    max_line_length=8190,
    max_headers=128,
)
_WRITER: Final = SimpleNamespace()


def make_api(config: BrokerConfig, gate: Gate, own_route: OwnRoute, machine: Machine) -> Api:
    """Build the API as ``services.broker.service`` does for a node of a group."""
    rules = Rules(
        config.message_size_max,
        config.store.record_crc,
        delay_levels_ms=config.store.delay_levels_ms,
        ack_default=None,
    )
    return Api(
        gate,
        rules,
        machine,
        BrokerMetrics(Registry("broker"), machine),
        UniqueIds(machine, config.store_host(PORT)),
        BodyBounds(config.request_size_max, config.waiting_bytes_max, config.read_timeout_s),
        own_route,
        version="0",
    )


class View(ClusterView):
    """Requests the status from ha of its node without a socket."""

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        store: GroupedStore,
        ha: Callable[[], Ha | None],
    ) -> None:
        super().__init__(config.cluster, ROOT, store.positions, machine)
        self._machine, self._ha = machine, ha
        self.ha_answer: Mapping[str, Any] | None = None
        """Last answer of ha; None if it gave none."""
        self.answered_us = 0
        """When that answer came."""

    async def _of_ha(self) -> Mapping[str, Any]:
        ha_answer: Mapping[str, Any] | None = None
        try:
            ha_answer = await self._asked()
        finally:
            self.ha_answer, self.answered_us = ha_answer, self._machine.timeline.now_us
        return ha_answer

    async def _asked(self) -> Mapping[str, Any]:
        ha, loop = self._ha(), asyncio.get_running_loop()
        if ha is None:
            raise ConnectionRefusedError("connection refused")
        answered: asyncio.Future[str] = loop.create_future()

        def settle(answer: str) -> None:
            if not answered.done():
                answered.set_result(answer)

        ha.show(lambda answer: _call_in(loop, settle, answer))
        async with asyncio.timeout(cluster_view.TIMEOUT_S):
            return cast(Mapping[str, Any], json.loads(await answered))


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[str], None], answer: str) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, answer)


class ApiClient:
    """The clients of one start of a broker."""

    def __init__(self, broker: Broker, api: Api, gate: Gate) -> None:
        self._broker, self._api, self._gate = broker, api, gate
        self._machine, self._history = broker.machine, broker.history
        self._random = broker.machine.timeline.random
        self.view: View | None = None
        self._not_master_us = self._machine.timeline.now_us
        """When the page last had the role master."""
        self.change: asyncio.Task[None] | None = None
        """The task that creates or deletes a topic."""

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until stop."""
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, 2 * CHECK_S))
            if self._broker.node is None or stop.is_set():
                continue
            self._check_probes()
            self._be_refused()
            if self._random.random() < ASK_SHARE:
                await self._ask_for_the_group()
            if self._random.random() < CHANGE_SHARE:
                self._change_a_topic()

    async def call(
        self, method: str, path: str, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """One request. Raises TidemarkError, as the handler does."""
        fields = CIMultiDictProxy(CIMultiDict(headers or {}))
        message = RawRequestMessage(
            method, path, HttpVersion11, fields, (), False, None, False, False, URL(path)
        )
        request = web.Request(
            message,
            EMPTY_PAYLOAD,
            cast(Any, _PROTOCOL),
            cast(Any, _WRITER),
            cast(Any, None),
            asyncio.get_running_loop(),
        )
        match_info = await self._api.app.router.resolve(request)
        request._match_info = match_info
        return await match_info.handler(request)

    # -- probes ----------------------------------------------------------------------------

    def _check_probes(self) -> None:
        """Check that GET /primary agrees with the answer to a send in the same step."""
        node, name = self._broker.node, self._machine.name
        assert node is not None
        before, refusal, is_primary = node.is_master, self._refusal(), node.is_master
        takes_sends = refusal is None or isinstance(refusal, SwitchingOver)
        if before == is_primary != takes_sends:
            raise Violation(
                f"GET /primary of {name} returns {is_primary}, and a send is answered with "
                f"{refusal}"
            )
        if is_primary:
            self._history.answers(self._machine, "reports that it is the primary")

    def _refusal(self) -> TidemarkError | None:
        try:
            self._gate.check_sends()
        except TidemarkError as error:
            return error
        return None

    # -- the master ------------------------------------------------------------------------

    def _be_refused(self) -> None:
        """Check that a refusal names the master that ha of this node has reported lately."""
        now_us, machine, view = self._machine.timeline.now_us, self._machine, self.view
        if machine.slot(Slot.ROLE) == view_rules.MASTER:
            self._not_master_us = now_us
        refusal = self._refusal()
        if isinstance(refusal, NotMaster) and view is not None:
            quiet_us = max(self._not_master_us, self._broker.process.resumed_us)
            view_rules.check_refusal(
                machine, refusal, view.ha_answer, view.answered_us, since_us=quiet_us
            )

    async def _ask_for_the_group(self) -> None:
        """Request GET /v1/cluster and check the answer."""
        answer = await self.group()
        if answer is not None and self.view is not None:
            view_rules.check_answer(
                self._history, self._machine, self._broker.process, answer, self.view
            )

    async def group(self) -> dict[str, Any] | None:
        """Answer of GET /v1/cluster; None before the view exists."""
        if self.view is None:
            return None
        answered = await self.call("GET", "/v1/cluster")
        assert isinstance(answered, web.Response)
        assert isinstance(answered.body, bytes)
        return cast(dict[str, Any], json.loads(answered.body))

    # -- changes of topics and groups ------------------------------------------------------

    def _change_a_topic(self) -> None:
        waits = self.change is not None and not self.change.done()
        if not waits and not self._history.producers_paused and self._refusal() is None:
            self.begin_change()

    def begin_change(self) -> None:
        """Create a topic or a group, or delete it if it exists."""
        name = f"{self._machine.name}-{self._random.randrange(CHANGED_TOPICS)}"
        change = self._change_group if self._random.random() < GROUP_SHARE else self._change_topic
        task = self.change = asyncio.create_task(change(name), name=CLIENT)
        self._broker.requests.wait_for_group(task)

    async def _change_topic(self, name: str) -> None:
        is_there = name in self._broker.state.topics
        with contextlib.suppress(TidemarkError):
            await self.call("DELETE" if is_there else "PUT", f"/v1/topics/{name}")
            self._must_be_confirmed("topics", name, is_there=not is_there)

    async def _change_group(self, name: str) -> None:
        is_there = name in self._broker.state.groups
        configs = self._broker.api.components.groups.configs
        with contextlib.suppress(TidemarkError):
            await (configs.delete(name) if is_there else configs.put(name, GroupConfig()))
            self._must_be_confirmed("groups", name, is_there=not is_there)

    def _must_be_confirmed(self, table: str, name: str, *, is_there: bool) -> None:
        """Check that success is answered only after the group has confirmed the change, by a node
        that may answer for it."""
        what = f"answers that {name} of the {table} is {'made' if is_there else 'deleted'}"
        view_rules.check_in_time(self._machine, self._broker.process, what)
        if (name in getattr(self._history.records.now, table)) != is_there:
            raise Violation(f"{self._machine.name} {what} before the group has confirmed that")
