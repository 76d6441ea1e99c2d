"""All connections of this node to its peers, made or accepted, by number.

Connects when the replica asks, listens on the replication port, and posts to the replica: links
whose peer is authenticated, their frames, and their end. Limits: connections on the port, time and
bytes before authentication, unsent bytes after it. A new connection replaces the oldest
unauthenticated one, so that silent clients cannot block the port. Step before: the replica's
effects. Step after: ``link`` and the peer.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from services.ha.core.events import Done, Event, LinkDown, LinkUp, Received
from services.ha.shell.link import Link
from services.ha.shell.link_log import UNREACHED, LinkLog
from services.ha.shell.streaming import LogViews
from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.handshake import NONCE_SIZE, Accepting, Connecting, Identity, Peer
from services.ha.wire.payloads import Ack
from services.ha.wire.versions import SPOKEN, Versions
from shared.cluster.group_secret import Secrets
from shared.cluster.nodes import Node
from shared.runtime import connection_errors
from shared.runtime.listening import listening_on
from shared.runtime.rate_limited_logger import RateLimitedLogger

BACKLOG: Final = 64


class Credentials:
    """The secrets and the TLS contexts of this node."""

    def __init__(self, secrets: Secrets, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> None:
        """tls: contexts to accept and to connect with; None: without TLS."""
        self.secrets, self.tls = secrets, tls

    def replace(self, secrets: Secrets) -> None:
        """Use other secrets from the next link on."""
        self.secrets = secrets


class LinkSettings(NamedTuple):
    """The nodes of the group and the limits of links."""

    nodes: Mapping[str, Node]
    """The nodes by name, until ``use_nodes``."""
    connect_timeout_s: float
    proof_timeout_s: float
    connections_max: int
    """Accepted connections at a time."""
    buffer_max: int
    """Unsent bytes of a link; beyond, it is closed."""
    versions: Versions = SPOKEN
    """Versions of the protocol that this node speaks."""


class _Attempt(NamedTuple):
    """A connection that is being made or authenticated."""

    link: Link
    task: asyncio.Task[None]
    """Ends when the connection is made, or failed."""


class Links:
    """Makes, finds and closes links. On the loop only."""

    def __init__(
        self,
        own: Identity,
        credentials: Credentials,
        settings: LinkSettings,
        views: LogViews,
        post: Callable[[Event], None],
        limited_log: RateLimitedLogger,
        acknowledged: Callable[[str, float], None],
    ) -> None:
        """own: identity that this node proves. views: bytes of the log, for streaming. post: hands
        an event to the replica. acknowledged: called with a node's name and the seconds between
        sending bytes to it and its ACK that they are on its disk.
        """
        self._own, self._credentials, self._tls = own, credentials, credentials.tls
        self._settings, self._nodes = settings, settings.nodes
        self._views, self._post, self._log = views, post, LinkLog(limited_log)
        self._acknowledged = acknowledged
        self._next_number = 1
        self._unproved: dict[int, Link] = {}
        """Made or accepted, oldest first, and not authenticated yet."""
        self._proved: dict[int, Link] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._server: asyncio.Server | None = None
        self.accepted_count = 0
        self.refused_count = 0
        """Connections that ended before authentication, and those closed for invalid bytes."""
        self.sent_bytes: dict[str, int] = {}
        """Node → bytes sent on links that have ended; ``sent_to`` adds the present ones."""

    # -- life -----------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> None:
        """Accept connections. Raises CannotListen."""
        loop = asyncio.get_running_loop()
        with listening_on(host, port):
            self._server = await loop.create_server(
                self._accept,
                host,
                port,
                backlog=BACKLOG,
                ssl=None if self._tls is None else self._tls[0],
                ssl_handshake_timeout=None if self._tls is None else self._settings.proof_timeout_s,
            )

    async def close(self) -> None:
        """Stop listening and end all links; no further event is posted."""
        self._post = _ignore
        if self._server is not None:
            self._server.close()
        tasks = [attempt.task for attempt in self._attempts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in [*self._unproved.values(), *self._proved.values()]:
            link.close("this node stops")
        for timer in self._timers.values():
            timer.cancel()

    def disk_changed(self, done: Done) -> None:
        """In later handshakes, use the new incarnation that a resync has written."""
        if done.incarnation:
            self._own = self._own._replace(incarnation=done.incarnation)

    # -- effects --------------------------------------------------------------------------------

    def use_nodes(self, nodes: Iterable[Node]) -> None:
        """Accept and make links of these nodes from now on; existing ones are closed by effects.

        Connections that are being made to nodes that have moved or are gone are given up.
        """
        before, self._nodes = self._nodes, {node.name: node for node in nodes}
        for name, attempt in tuple(self._attempts.items()):
            if self._nodes.get(name) != before.get(name):
                attempt.task.cancel()
                attempt.link.forsake()
                self._settle(attempt.link)
                self._failed(name, f"{UNREACHED}its addresses were changed")

    def connect(self, name: str) -> None:
        """Connect to a node, unless a connection made here exists or is being made."""
        if name in self._attempts or any(
            link.node == name and not link.closing for link in self._proved.values()
        ):
            return
        proof = Connecting(
            self._own,
            secret=self._credentials.secrets.proved,
            nonce=secrets.token_bytes(NONCE_SIZE),
            nodes=self._nodes,
            wanted=name,
            versions=self._settings.versions,
        )
        link = self._link(proof, name)
        attempt = self._attempt(self._nodes[name], link)
        task = asyncio.create_task(attempt, name=f"connect to {name}")
        self._attempts[name] = _Attempt(link, task)

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame. Does nothing if the link has ended; the replica gets its LinkDown."""
        link = self._proved.get(number)
        if link is not None:
            link.send(frame)

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        """Send a frame followed by the log's bytes [offset, offset + size)."""
        link = self._proved.get(number)
        if link is None or link.closing:
            return
        views = self._views.views(offset, size)
        if views is None:
            link.close(f"log-gone: bytes {offset} to {offset + size} are no longer here")
        else:
            link.unacknowledged.append((offset + size, asyncio.get_running_loop().time()))
            link.stream(frame, views)

    def close_link(self, number: int, reason: str) -> None:
        """Close a link after its buffered bytes were sent."""
        link = self._proved.get(number)
        if link is not None:
            link.close(reason)

    # -- called by links -----------------------------------------------------------------------

    def made(self, link: Link) -> None:
        """Register a connection, limited in number and in time until its peer is authenticated."""
        if not link.outbound:
            self.accepted_count += 1
            self._make_room(link)
        self._unproved[link.number] = link
        self._timers[link.number] = asyncio.get_running_loop().call_later(
            self._settings.proof_timeout_s, link.abort, "no-proof: nothing was proved in time"
        )

    def proved(self, link: Link, peer: Peer) -> None:
        """Post an authenticated link to the replica."""
        self._settle(link)
        self._proved[link.number] = link
        self._post(LinkUp(link.number, peer.member, link.outbound, peer.version))

    def received(self, link: Link, frame: Frame) -> None:
        """Post a frame to the replica."""
        if frame.type is FrameType.ACK:
            self._time_ack(link, frame)
        self._post(Received(link.number, frame))

    def _time_ack(self, link: Link, frame: Frame) -> None:
        """Measure an ACK for a metric; the replica decides whether it counts."""
        waiting = link.unacknowledged
        if not waiting or link.peer is None:
            return
        try:
            ack = payloads.parse(frame, link.peer.version)
        except BadFrame:
            return
        longest = None
        while waiting and isinstance(ack, Ack) and waiting[0][0] <= ack.durable:
            _, sent_at = waiting.popleft()
            longest = sent_at if longest is None else longest
        if longest is not None:
            self._acknowledged(link.peer.member.node, asyncio.get_running_loop().time() - longest)

    def lost(self, link: Link, reason: str) -> None:
        """Remove a link that has ended."""
        if link.forsaken:
            return  # it has been reported, and the node may be connected to again
        self._settle(link)
        proved = self._proved.pop(link.number, None) is not None
        peer = link.node if link.peer is None else link.peer.member.node
        if peer is not None:
            self.sent_bytes[peer] = self.sent_bytes.get(peer, 0) + link.sent_bytes
        if proved:
            assert peer is not None
            if reason.startswith(("bad-frame", "slow-peer")):
                self._refused(link, peer, reason)
            self._post(LinkDown(link.number, peer, reason))
        elif link.node is not None:
            self._failed(link.node, reason)
        else:
            self._refused(link, link.address, reason)

    def sent_to(self, node: str) -> int:
        """Return the bytes sent to a node by this process."""
        return self.sent_bytes.get(node, 0) + sum(
            link.sent_bytes
            for link in self._proved.values()
            if link.peer is not None and link.peer.member.node == node
        )

    def connected(self, node: str) -> bool:
        """Return whether an authenticated link to or from a node exists."""
        return any(
            link.peer is not None and link.peer.member.node == node
            for link in self._proved.values()
        )

    @property
    def count(self) -> int:
        """Connections, authenticated or not."""
        return len(self._unproved) + len(self._proved)

    # -- accepting ------------------------------------------------------------------------------

    def _accept(self) -> Link:
        nonce = secrets.token_bytes(NONCE_SIZE)
        proof = Accepting(
            self._own,
            accepted=self._credentials.secrets.accepted,
            nonce=nonce,
            nodes=self._nodes,
            versions=self._settings.versions,
        )
        return self._link(proof, None)

    def _make_room(self, link: Link) -> None:
        accepted = [each for each in self._unproved.values() if not each.outbound]
        proved = sum(not each.outbound for each in self._proved.values())
        if len(accepted) + proved < self._settings.connections_max:
            return
        # The oldest unauthenticated one: a peer authenticates within milliseconds.
        victim = accepted[0] if accepted else link
        victim.abort(f"too-many-connections: {self._settings.connections_max} may be")

    def _refused(self, link: Link, peer: str, reason: str) -> None:
        self.refused_count += 1
        self._log.refused(peer, link.address, reason)

    # -- connecting -----------------------------------------------------------------------------

    async def _attempt(self, node: Node, link: Link) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: link,
                    node.host,
                    node.port,
                    ssl=None if self._tls is None else self._tls[1],
                )
        except (OSError, TimeoutError, UnicodeError) as error:  # a name that no look-up takes
            # The connection may have been made at the moment of the timeout; the loop then drops it
            # without a call.
            link.forsake()
            self._settle(link)
            late = isinstance(error, TimeoutError)
            reason = (
                f"no answer within {self._settings.connect_timeout_s} s"
                if late
                else connection_errors.describe(error)
            )
            self._failed(node.name, f"{UNREACHED}{reason}")

    def _failed(self, name: str, reason: str) -> None:
        """Report a connection to a node that could not be made or authenticated."""
        if self._attempts.pop(name, None) is None:
            return
        if (node := self._nodes.get(name)) is not None:
            self._log.unreached(name, node.host, reason)
        self._post(LinkDown(0, name, reason))

    def _link(self, proof: Accepting | Connecting, node: str | None) -> Link:
        number, self._next_number = self._next_number, self._next_number + 1
        return Link(number, self, proof, node=node, buffer_max=self._settings.buffer_max)

    def _settle(self, link: Link) -> None:
        """Remove a link from the unauthenticated ones."""
        self._unproved.pop(link.number, None)
        timer = self._timers.pop(link.number, None)
        if timer is not None:
            timer.cancel()
        if link.peer is not None and link.node is not None:
            self._attempts.pop(link.node, None)


def _ignore(_: Event) -> None:
    """Drop events after the replica has ended."""
