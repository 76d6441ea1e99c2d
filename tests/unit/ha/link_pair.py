"""Two nodes' links in one process, over real sockets of the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, cast

from services.ha.core.events import Event, LinkDown, LinkUp, Received
from services.ha.shell.links import Credentials, Links, LinkSettings
from services.ha.shell.streaming import LogViews
from services.ha.wire.handshake import Identity
from shared.cluster.group_secret import Secrets
from shared.cluster.nodes import Node
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tests.support.node import free_port

SECRET: Final = b"a secret of the group"
FILE_SIZE: Final = 1 << 20


class OneLog:
    """Bytes in place of a mapped log."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def views(self, offset: int, size: int) -> list[memoryview] | None:
        if offset + size > len(self.data):
            return None
        half = offset + size // 2
        view = memoryview(self.data)
        return [view[offset:half], view[half : offset + size]]


class End:
    """One node: its links, and the events that they posted."""

    def __init__(
        self,
        name: str,
        nodes: dict[str, Node],
        *,
        secret: bytes = SECRET,
        accepted: tuple[bytes, ...] = (),
        cluster: str = "test",
        file_size: int = FILE_SIZE,
        connections_max: int = 8,
        proof_timeout_s: float = 5.0,
        buffer_max: int = 16 << 20,
        log: OneLog | None = None,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = name
        self.node = nodes[name]
        self.events: list[Event] = []
        self.took: list[tuple[str, float]] = []
        self.news = asyncio.Event()
        self.paced = RateLimitedLogger(monotonic)
        self.credentials = Credentials(Secrets(secret, accepted or (secret,)), None)
        self.links = Links(
            Identity(cluster, "g0", name, name.encode().hex().rjust(32, "0"), file_size),
            self.credentials,
            LinkSettings(
                nodes=nodes,
                connect_timeout_s=2.0,
                proof_timeout_s=proof_timeout_s,
                connections_max=connections_max,
                buffer_max=buffer_max,
            ),
            cast(LogViews, log or OneLog()),
            self._post,
            self.paced,
            lambda node, seconds: self.took.append((node, seconds)),
        )

    def _post(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()

    async def listen(self) -> None:
        await self.links.listen(self.node.host, self.node.port)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until condition() holds; it changes only with events, links or connections."""
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                waiter = asyncio.ensure_future(self.news.wait())
                await asyncio.wait({waiter}, timeout=0.02)
                waiter.cancel()
        assert condition(), what

    def ups(self) -> list[LinkUp]:
        return [event for event in self.events if isinstance(event, LinkUp)]

    def downs(self) -> list[LinkDown]:
        return [event for event in self.events if isinstance(event, LinkDown)]

    def frames(self) -> list[Received]:
        return [event for event in self.events if isinstance(event, Received)]

    async def __aenter__(self) -> End:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.links.close()


def two_nodes() -> dict[str, Node]:
    """Addresses of n0 and n1."""
    return {
        name: Node(name, "127.0.0.1", free_port(), "http://api", "http://admin")
        for name in ("n0", "n1")
    }
