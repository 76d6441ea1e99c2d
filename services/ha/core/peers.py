"""The other nodes: one connection to each, and the last status of each. Pure.

A node makes one connection to every other node. It carries STATUS, PROMISE of a new master, and
HELLO of a slave to its master. Requests of other nodes arrive on the connections that they made.
Nothing in a status counts as an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from services.ha.core.effects import Close, Connect, Send
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.value import Member
from services.ha.wire import payloads
from services.ha.wire.payloads import Payload, Status, StatusOk
from services.ha.wire.peer_clock import PeerClock
from services.ha.wire.versions import SPOKEN

RECONNECT_MS: Final = 100
RECONNECT_MS_MAX: Final = 1000
"""Longest interval between attempts to connect to a node."""
UNANSWERED_MS: Final = 5000
"""A connection that is neither made nor refused by then is requested again."""


def do_not_answer(nodes: Sequence[str]) -> str:
    """Return the clause that these nodes are silent, e.g. ``a, b and c do not answer``."""
    *most, last = nodes
    return f"{', '.join(most)} and {last} do not answer" if most else f"{last} does not answer"


class Incoming(NamedTuple):
    """A connection that a peer made."""

    link: int
    peer: Member
    version: int


class Peer:
    """One other node, as seen over the connection to it."""

    __slots__ = (
        "asked_ms",
        "clock",
        "closing",
        "connecting_ms",
        "heard_ms",
        "link",
        "member",
        "node",
        "pause_ms",
        "reason",
        "retry_ms",
        "status",
        "status_ms",
        "tried",
        "version",
    )

    def __init__(self, node: str) -> None:
        self.node = node
        self.link: int | None = None
        self.member: Member | None = None
        """Member that answered there last."""
        self.version = SPOKEN.lowest
        self.connecting_ms: int | None = None
        """Since when a connection is being made."""
        self.closing: int | None = None
        """A connection that is being closed; the next one is made after it has ended."""
        self.retry_ms = 0
        self.pause_ms = RECONNECT_MS
        self.heard_ms: int | None = None
        self.asked_ms: int | None = None
        self.status: StatusOk | None = None
        self.status_ms: int | None = None
        """The status is not older than this."""
        self.clock = PeerClock()
        self.tried = False
        """A connection to it was refused or lost."""
        self.reason = "not asked yet"
        """Why there is no connection."""


class Peers:
    """All other nodes of the group."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self.by_node = {node: Peer(node) for node in context.others}
        self.incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Peer] = {}
        self._nodes = context.members.nodes
        self._began_ms: int | None = None

    def follow_members(self) -> None:
        """Connect to new nodes of the group, and leave those that were removed or have moved."""
        context, before = self._context, self._nodes
        self._nodes = context.members.nodes
        gone = {node.name for node in before if node not in self._nodes} - {context.name}
        gone |= self.by_node.keys() - set(context.others)
        for node in gone:
            for link, incoming in tuple(self.incoming.items()):
                if incoming.peer.node == node:
                    self.close(link, f"{node} was removed from the group")
            peer = self.by_node.pop(node, None)
            if peer is not None and peer.link is not None:
                self._outgoing.pop(peer.link)
                context.out.put(Close(peer.link, f"{node} was removed from the group"))
        for node in context.others:
            if node not in self.by_node:
                self.by_node[node] = Peer(node)

    # Connections

    def up(self, link: int, peer: Member, *, outbound: bool, version: int) -> Peer | None:
        """Note a new connection; return the peer that it leads to, if this node made it."""
        if peer.node not in self._context.others:
            self.close(link, "not a node of the group")  # it was removed during the handshake
            return None
        if not outbound:
            # A node makes one connection at a time. If its machine lost power, this end of the
            # last one was never closed, and such ends would fill the port's connections.
            for old, earlier in tuple(self.incoming.items()):
                if earlier.peer.node == peer.node:
                    self.close(old, f"{peer.node} has connected again")
            self.incoming[link] = Incoming(link, peer, version)
            return None
        known = self.by_node[peer.node]
        known.link, known.connecting_ms, known.member = link, None, peer
        known.version, known.pause_ms, known.reason = version, RECONNECT_MS, ""
        known.heard_ms, known.asked_ms = self._context.now_ms, None
        known.clock.forget()
        self._outgoing[link] = known
        return known

    def down(self, link: int, node: str, reason: str) -> None:
        """Note that a connection has ended, or could not be made (link 0)."""
        self.incoming.pop(link, None)
        self._outgoing.pop(link, None)
        known = self.by_node.get(node)
        if known is None:
            return
        if link == 0 and known.connecting_ms is not None:
            known.pause_ms = min(2 * known.pause_ms, RECONNECT_MS_MAX)
            known.connecting_ms = None
        elif link == known.link:
            known.link = None
        elif link == known.closing:
            known.closing = None
        else:
            return
        known.tried, known.reason = True, reason or "connection lost"
        known.retry_ms = self._context.now_ms + known.pause_ms

    def close(self, link: int, reason: str) -> None:
        """Close a connection; frames that still arrive over it are ignored."""
        self.incoming.pop(link, None)
        known = self._outgoing.pop(link, None)
        if known is not None:
            known.link, known.closing, known.reason = None, link, reason
            known.retry_ms = self._context.now_ms + known.pause_ms
        self._context.out.put(Close(link, reason))

    def close_all(self, reason: str) -> None:
        """Close every connection."""
        for link in (*self._outgoing, *self.incoming):
            self.close(link, reason)

    def open(self, link: int) -> bool:
        """Return whether frames of this connection are processed."""
        return link in self._outgoing or link in self.incoming

    def outgoing(self, link: int) -> Peer | None:
        """Return the peer of a connection that this node made; None: it made no such connection."""
        return self._outgoing.get(link)

    def hurry(self, node: str) -> None:
        """Connect without a pause, because a message is waiting."""
        peer = self.by_node.get(node)
        if peer is not None:
            peer.retry_ms, peer.pause_ms = 0, RECONNECT_MS
            if peer.link is None:
                self._connect(peer)

    def send(self, link: int, epoch: int, payload: Payload) -> None:
        """Send a message over a connection."""
        self._context.out.put(Send(link, payloads.frame(epoch, payload, self.version(link))))

    def version(self, link: int) -> int:
        """Return the version of the protocol that was agreed on for a connection."""
        ends = self.incoming.get(link) or self._outgoing.get(link)
        return SPOKEN.lowest if ends is None else ends.version

    # Status of the others

    def tick(self, epoch: int, urgent: str | None) -> None:
        """Connect where there is no connection, request the statuses that are due, close dead
        connections.

        urgent: a node whose status is requested every time, because its state is about to change.
        """
        now, times = self._context.now_ms, self._context.times
        for peer in self.by_node.values():
            if peer.link is None:
                self._connect(peer)
            elif peer.heard_ms is not None and now - peer.heard_ms > times.link_dead_ms:
                self.close(peer.link, f"nothing heard for {now - peer.heard_ms} ms")
            elif (
                peer.asked_ms is None
                or peer.node == urgent
                or now - peer.asked_ms >= times.heartbeat_ms
            ):
                peer.asked_ms = now
                self.send(peer.link, epoch, Status(now))

    def _connect(self, peer: Peer) -> None:
        now, since = self._context.now_ms, peer.connecting_ms
        if peer.closing is not None or now < peer.retry_ms:
            return
        if since is None or now - since > UNANSWERED_MS:
            peer.connecting_ms = now
            self._context.out.put(Connect(peer.node))

    def heard(self, link: int) -> None:
        """Note a frame on a connection of this node."""
        peer = self._outgoing.get(link)
        if peer is not None:
            peer.heard_ms = self._context.now_ms

    def received_status(self, link: int, status: StatusOk) -> None:
        """Take the status of a node; only accepted from the node that the connection leads to."""
        peer = self._outgoing.get(link)
        if peer is None or status.node != peer.node:
            return
        now = self._context.now_ms
        # A frame may have waited for hours while this node stood still. An answer is newer than its
        # request, and a status that was not requested is newer than the last answer.
        if 0 < status.asked_ms <= now:
            peer.status_ms = status.asked_ms
        elif peer.status_ms is None:
            peer.status_ms = now
        peer.status = status
        peer.clock.answered(asked_ms=status.asked_ms, answered_ms=now, wall_ms=status.wall_ms)
        # If the lease shows less than another node has seen of it, it has gone backwards.
        self._context.session.note_seen((status.seen_epoch, status.in_sync_version))

    @property
    def surveyed(self) -> bool:
        """Whether all others were asked since the start: each has sent its status or is
        unreachable.

        A silent node is waited for no longer than a heartbeat.
        """
        now = self._context.now_ms
        if self._began_ms is None:
            self._began_ms = now
        if now - self._began_ms >= self._context.times.heartbeat_ms:
            return True
        return all(peer.status is not None or peer.tried for peer in self.by_node.values())

    def fresh(self, node: str) -> StatusOk | None:
        """Return the status of a node if it is recent and the connection exists; else None."""
        peer = self.by_node.get(node)
        return None if peer is None or peer.link is None else self.recent(node)

    def recent(self, node: str) -> StatusOk | None:
        """Return the status of a node if it is recent; else None."""
        peer = self.by_node.get(node)
        if peer is None or peer.status_ms is None:
            return None
        limit_ms = self._context.times.link_dead_ms + self._context.times.heartbeat_ms
        return peer.status if self._context.now_ms - peer.status_ms <= limit_ms else None
