"""One instance of the name service: its own table, completeness, answers and long polls.

Only HTTP is replaced. A restart begins with an empty table, as in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from yarl import URL

from services.names.config import NamesConfig
from services.names.core.directory import Directory
from services.names.service import EXPIRE_INTERVAL_S
from services.names.shell.route_polls import RoutePolls
from shared.cluster.routes import Registration, Route, TopicRoute
from shared.runtime.connections import error_fields
from shared.runtime.media_types import Encoding
from tests.simulation.cluster.loop import Host, Loop
from tests.simulation.cluster.network import Broken, Network, Refused, Reply, Request
from tidemark.errors import TidemarkError, UnknownCall

if TYPE_CHECKING:
    from tests.simulation.cluster.judge import Judge

CLUSTER: Final = "shop"
SETTINGS: Final = NamesConfig()
_REGISTRATION: Final = msgspec.json.Decoder(Registration)
_ROUTE: Final = msgspec.msgpack.Decoder(Route)


class Shown(NamedTuple):
    """A broker group as routes show it."""

    epoch: int
    master: str | None
    topics: Mapping[str, TopicRoute]


def without_system_topics(topics: Mapping[str, TopicRoute]) -> Mapping[str, TopicRoute]:
    """Return the topics without those that broker groups make for consumer groups."""
    return {name: topic for name, topic in topics.items() if not name.startswith("%")}


class NamesInstance:
    """A process of the name service that can be restarted."""

    def __init__(
        self, loop: Loop, network: Network, name: str, urls: Sequence[str], judge: Judge
    ) -> None:
        """urls: of all instances."""
        self._loop, self._network, self.name, self._judge = loop, network, name, judge
        self.url = f"http://{name}.example:9870"
        self._urls = urls
        self.host = Host(name)
        self.runs = False
        self._directory: Directory
        self._polls: RoutePolls

    def start(self, groups: Sequence[str]) -> None:
        """Start with an empty table. groups: those of the configuration."""
        self.host, self.runs = Host(self.name), True
        self._judge.names_started(self.name)
        self._directory = Directory(
            CLUSTER,
            SETTINGS.table_bounds,
            expected=groups,
            names=sorted(self._urls),
            kept_max=SETTINGS.answers_max,
            now_s=self._loop.time(),
        )
        self._polls = RoutePolls(self._directory, SETTINGS.held_polls_max)
        self._network.listen(self.url, self)
        self._loop.start(self._keep(), self.host)

    def kill(self) -> None:
        """End the process."""
        self.host.kill()
        self.runs = False
        self._network.close(self.url, self.host)

    async def _keep(self) -> None:
        """Ask the peers, then drop what is not renewed."""
        named = set[str]().union(
            *[await self._groups_of(url) for url in self._urls if url != self.url]
        )
        self._polls.wake(self._directory.note_peers(named))
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            self._polls.wake(self._directory.expire(self._loop.time()))
            for name in self._judge.known_groups(self.name):
                if name not in self._directory.table.groups:
                    self._judge.registered(self.name, None, name)

    async def _groups_of(self, peer: str) -> set[str]:
        limit_s = SETTINGS.peers_timeout_s
        try:
            reply = await self._network.call(
                self.name,
                "GET",
                URL(peer + "/v1/route"),
                b"",
                timeout_s=limit_s,
                connect_timeout_s=limit_s,
            )
        except (Refused, Broken):
            return set()
        route = _ROUTE.decode(reply.body)
        return {*(each.group for each in route.groups), *route.missing}

    async def handle(self, request: Request) -> Reply:
        """Answer a call. Raises TidemarkError."""
        match request.method, request.parts:
            case "GET", ["route", *topic]:
                after = request.query.get("after", "")
                wait_ms = int(request.query.get("wait_ms", 0))
                answer = await self._polls.awaited(topic[0] if topic else None, after, wait_ms)
                is_changed = answer.route.version != after
                return Reply(200, answer.body(Encoding.MSGPACK, is_changed=is_changed))
            case "PUT", ["groups", group, "nodes", node]:
                return self._register(group, node, request.body)
        raise UnknownCall(f"there is no call {request.method} {request.path}")

    def _register(self, group: str, node: str, body: bytes) -> Reply:
        said = _REGISTRATION.decode(body)
        try:
            self._polls.wake(self._directory.register(group, node, said, self._loop.time()))
        except TidemarkError as error:
            return Reply(error.status, msgspec.json.encode(error_fields(error)))
        finally:
            self._judge.registered(self.name, self._directory.table.groups.get(group), group)
        return Reply(204)

    @property
    def is_complete(self) -> bool:
        """Whether it knows all broker groups."""
        return self._directory.completeness.complete

    def shown(self, group: str) -> Shown | None:
        """Return what it shows of a broker group; None: nothing."""
        found = self._directory.table.groups.get(group)
        if found is None:
            return None
        return Shown(found.epoch, found.master, without_system_topics(found.topics))
