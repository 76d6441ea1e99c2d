"""The connections of one start of ha: links to other nodes, and requests to the lease object."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, cast

from services.ha.lease.interface import Outcome
from services.ha.lease.value import Lease, Member, Stored
from services.ha.shell.link import Link
from services.ha.shell.links import Credentials, Links, LinkSettings
from services.ha.shell.streaming import LogViews
from services.ha.wire.frames import Frame
from services.ha.wire.handshake import Accepting, Connecting, Identity, Peer
from services.ha.wire.versions import common
from shared.cluster.group_secret import Secrets
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tests.simulation.replication.frame_checks import check_decoding
from tests.simulation.replication.handshaking import SECRET, check_handshake
from tests.simulation.replication.lease_object import LeaseObject
from tests.simulation.replication.transport import Transport
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

PROOF_TIMEOUT_S: Final = 0.7
"""In proportion to the times of ``plan``."""
CONNECTIONS_MAX: Final = 8
BUFFER_MAX: Final = 60_000
_BODY_SIZE: Final = 24
_BODY: Final = re.compile(rb"[0-9 ]{%d}" % _BODY_SIZE)
"""A pattern that only the body of a message has."""


class JudgedViews(LogViews):
    """The log's bytes for streaming; checks that they are the log's."""

    def __init__(self, ha: Ha, store: StoreDir, positions: Positions) -> None:
        super().__init__(store, positions)
        self._ha = ha
        self.receiver = ""
        """The node that gets the next bytes."""

    def views(self, offset: int, size: int) -> list[memoryview] | None:
        """Return bytes of the log, corrupted once if the network is to corrupt them."""
        ha, machine, views = self._ha, self._ha.machine, super().views(offset, size)
        if views is None:
            if offset >= machine.begins_at:
                raise Violation(f"{ha.node} cannot read {size} bytes at {offset} to send")
            return None
        if b"".join(views) != machine.log(offset, offset + size):
            raise Violation(f"{ha.node} sends {size} bytes at {offset} that differ from its log")
        path = ha.node, self.receiver
        if path in ha.network.to_corrupt and (corrupted := _corrupted(views)):
            ha.network.to_corrupt.discard(path)
            return corrupted
        return views


class JudgedLinks(Links):
    """The product's links; checks the identities and the frames that it receives."""

    def __init__(self, ha: Ha, incarnation: str, views: JudgedViews) -> None:
        """incarnation: the incarnation of the store that was found."""
        self._ha, self._judged_views = ha, views
        self._differed = (0, 0)
        """Connections, and those that are known, at the last check."""
        setup = ha.setup
        super().__init__(
            Identity(setup.cluster, setup.group, ha.node, incarnation, setup.file_size),
            Credentials(Secrets(SECRET, (SECRET,)), None),
            LinkSettings(
                nodes={node.name: node for node in setup.nodes},
                connect_timeout_s=setup.times.link_dead_ms / 1000,
                proof_timeout_s=PROOF_TIMEOUT_S,
                connections_max=CONNECTIONS_MAX,
                buffer_max=BUFFER_MAX,
                versions=ha.versions,
            ),
            views,
            ha.post,
            RateLimitedLogger(ha.machine.monotonic),
            lambda _, seconds: self._check_ack_time(seconds),
        )

    @property
    def member(self) -> Member:
        """Identity that this node proves to its peers."""
        return Member(self._own.node, self._own.incarnation)

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        """Send a frame that goes on with bytes of the log."""
        link = self._proved.get(number)
        if link is not None and link.peer is not None:
            self._judged_views.receiver = link.peer.member.node
        super().stream(number, frame, offset, size)

    def proved(self, link: Link, peer: Peer) -> None:
        """Check the handshake, with mistakes as well."""
        network, node = self._ha.network, peer.member.node
        network.frames_count += 3
        if link.outbound:
            # The start of ha that proved its identity here, which may have ended since.
            other = cast(Transport, link._transport).other.owner
            versions = self._settings.versions, other.versions
            nodes, turn = tuple(self._settings.nodes), network.connections_count
            check_handshake(self.member, peer.member, versions, nodes, turn)
            if peer.version != common(*versions):
                raise Violation(f"{self._ha.node} uses version {peer.version} with {node}")
        super().proved(link, peer)

    def received(self, link: Link, frame: Frame) -> None:
        """Decode some frames again, in other pieces and with mistakes."""
        network = self._ha.network
        network.frames_count += 1
        check_decoding(frame, network.frames_count)
        super().received(link, frame)

    def check(self) -> None:
        """Check that every connection of this process belongs to a link, and every link has one,
        apart from a moment."""
        ha = self._ha
        counts = sum(end.begun for end in ha.network.ends_of(ha)), self.count
        if counts[0] != counts[1] and counts == self._differed and not ha.process.paused:
            raise Violation(f"{ha.node} has {counts[0]} connections and knows {counts[1]}")
        self._differed = counts
        ha.network.check_closed(ha)

    def _link(self, proof: Accepting | Connecting, node: str | None) -> Link:
        self._must_be_own()
        return super()._link(proof, node)

    def _must_be_own(self) -> None:
        """Check that the identity to be proved is that on the disk, or is about to be replaced."""
        replica, member = self._ha.replica, self.member
        known = None if replica is None else replica.context.member
        if member.incarnation != self._ha.machine.incarnation and member != known:
            raise Violation(
                f"{self._ha.node} proves the incarnation {member.incarnation}, its disk has "
                f"{self._ha.machine.incarnation}"
            )

    def _check_ack_time(self, seconds: float) -> None:
        if seconds < 0:
            raise Violation(f"{self._ha.node} measured {seconds} s from bytes to their ACK")


def _corrupted(data: Sequence[memoryview]) -> list[memoryview]:
    """Return the bytes with one changed inside a record's body; empty if no body is found."""
    whole = bytearray(b"".join(data))
    found = _BODY.search(whole)
    if found is None:
        return []
    whole[found.start() + _BODY_SIZE // 2] ^= 1
    return [memoryview(whole)]


class JudgedLeaseStore:
    """The product's store of one start of ha; every answer is checked."""

    def __init__(self, ha: Ha, lease: LeaseObject) -> None:
        self._ha, self._lease = ha, lease
        self._store = lease.store_of(ha)

    async def get(self) -> Outcome:
        """Read the lease."""
        return await self._judged(None, self._store.get())

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Write the lease if it is still base."""
        self._lease.sends(self._ha.process, lease, base)
        return await self._judged(lease, self._store.put(lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Create the lease."""
        self._lease.sends(self._ha.process, lease, None)
        return await self._judged(lease, self._store.create(lease))

    async def announce(self, role: str) -> str:
        """Show the role of this node where the lease is kept."""
        return await self._store.announce(role)

    async def close(self) -> None:
        """Release connections and threads."""
        await self._store.close()

    async def _judged(self, wanted: Lease | None, call: Awaitable[Outcome]) -> Outcome:
        begun_us = self._ha.machine.timeline.now_us
        outcome = await call
        self._lease.check_answer(self._ha.node, begun_us, wanted, outcome)
        return outcome
