"""Passes received frames to the parts, by epoch and type (docs/replication.md). Pure.

A frame of an epoch below the promised one is answered with FENCED, and the link closed. Before a
frame of a higher epoch is processed, that epoch is promised durably, and everything older ends.
STATUS is answered at any epoch, even while a promise is being written, and promises nothing. Step
before: ``frames``. Step after: ``following``, ``mastership``, ``recreation``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from services.ha.core.campaign import Claim
from services.ha.core.events import Received
from services.ha.core.leadership import Leadership
from services.ha.core.recreation import Recreation
from services.ha.core.states import has_term
from services.ha.core.status import own_status
from services.ha.lease.value import Holder
from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, FrameType
from services.ha.wire.payloads import (
    Ack,
    Append,
    CampaignNow,
    Fenced,
    Hello,
    HelloOk,
    Payload,
    Promise,
    PromiseOk,
    PromisePurpose,
    ResyncRequired,
    Status,
    StatusOk,
)

HELD_FRAMES_MAX: Final = 65_536
"""Frames that wait for the write of a promise; the window of a link is far smaller."""

_AT_ANY_EPOCH: Final = frozenset({FrameType.STATUS, FrameType.STATUS_OK})
"""Frames that wait for no promise. Otherwise: 1. A node wins the lease, and its disk hangs. 2. It
hears of no member that could lead, and keeps the lease."""


class MessageDispatcher:
    """The dispatcher of one start of ha."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self.context, self.peers = leadership.context, leadership.peers
        self.promises, self.following = leadership.promises, leadership.following
        self._held: deque[Received] = deque()
        self._given: tuple[int, Holder] | None = None
        """The last promise for creating the lease again: the same request gets the same answer."""

    def received(self, event: Received) -> None:
        """Handle a whole frame."""
        if not self.peers.open(event.link):
            return
        self.peers.heard(event.link)
        if self.promises.pending and event.frame.type not in _AT_ANY_EPOCH:
            self._hold(event)
            return
        self._take(event)

    def release(self) -> None:
        """Handle the frames that waited, if the promise is on disk."""
        while self._held and not self.promises.pending:
            event = self._held.popleft()
            if self.peers.open(event.link):
                self._take(event)

    def broadcast_status(self) -> None:
        """Send this node's status to all nodes, because its ability to lead has changed."""
        status = own_status(self.context, self._leadership.term, self.promises.promised)
        for link in self.peers.incoming:
            self.peers.send(link, self.promises.promised, status)

    def _hold(self, event: Received) -> None:
        """Queue a frame while an epoch is being promised."""
        if len(self._held) >= HELD_FRAMES_MAX:
            self.peers.close(event.link, "too many frames wait for a promise")
            return
        self._held.append(event)

    def _take(self, event: Received) -> None:
        link, frame = event
        try:
            payload = payloads.parse(frame, self.peers.version(link))
        except BadFrame as error:
            self.peers.close(link, f"bad-frame: {error}")
            return
        if isinstance(payload, (Status, StatusOk)):
            self._status(link, payload)
            return
        if isinstance(payload, Promise) and payload.purpose is PromisePurpose.CREATE_LEASE:
            self._asked_for_lease(link, frame.epoch, payload)
            return
        if isinstance(self._leadership.campaign, Recreation):
            if isinstance(payload, PromiseOk) and frame.epoch == self._leadership.campaign.epoch:
                self._leadership.campaign.promised(link)
                return
            if isinstance(payload, Fenced):
                self._leadership.campaign.refused(link)
        if frame.epoch < self.promises.promised:
            self.context.count.refused_frames += 1
            self.peers.send(link, self.promises.promised, Fenced(self.promises.promised))
            self.peers.close(link, f"epoch {frame.epoch} of it is over")
            return
        if frame.epoch > self.promises.promised:
            self._higher_epoch(event)
            return
        self._in_epoch(link, frame.epoch, payload)

    def _higher_epoch(self, event: Received) -> None:
        """Promise the epoch durably before the frame is processed; a term of a lower one ends."""
        epoch = event.frame.epoch
        if epoch > self.promises.highest:
            self._leadership.higher_epoch(epoch)
        self._held.appendleft(event)  # before the frames that came after it
        self.promises.promise(epoch)

    def _in_epoch(self, link: int, epoch: int, payload: Payload) -> None:
        peers, term = self.peers, self._leadership.term
        match payload:
            case Append() | HelloOk() | ResyncRequired():
                self.following.received(link, payload)
            case Ack():
                if term is not None:
                    term.ack(link, payload)
            case Hello():
                self._hello(link, payload)
            case Promise():
                self._asked_to_promise(link, epoch, payload)
            case PromiseOk():
                peer = peers.outgoing(link)
                if term is not None and peer is not None:
                    term.promised(peer.node)
            case Fenced():
                self.context.count.fenced_frames += 1
            case CampaignNow():
                self._released_for_us(link)

    def _hello(self, link: int, hello: Hello) -> None:
        incoming = self.peers.incoming.get(link)
        if incoming is None:
            self.peers.close(link, "HELLO on a connection of the other direction")
        elif self._leadership.term is None:
            # Sent instead of closing the connection. Otherwise the other node would connect again
            # and again, and never receive this node's state. The next master has another epoch.
            self._status(link, Status())
        else:
            self._leadership.term.hello(incoming, hello)

    def _asked_to_promise(self, link: int, epoch: int, promise: Promise) -> None:
        context = self.context
        if promise.purpose is PromisePurpose.NEW_TERM:
            self.following.learned(promise.candidate.node, epoch)
        answer = PromiseOk(
            self.promises.promised,
            context.data_epoch,
            context.end,
            context.durable,
            context.confirm,
        )
        self.peers.send(link, epoch, answer)

    def _asked_for_lease(self, link: int, epoch: int, promise: Promise) -> None:
        """Answer a master whose lease is gone, and that asks for an epoch before any node has it.
        It is refused unless nothing newer than its term is known here."""
        context, present = self.context, epoch - 1
        busy = (
            self._leadership.campaign is not None
            or self._leadership.term is not None
            or has_term(context.state)
        )
        newest = max(self.promises.highest, context.session.seen[0])
        again = self._given == (epoch, promise.candidate) and self.promises.highest == epoch
        if busy or not context.initialised or (newest > present and not again):
            self.peers.send(link, self.promises.promised, Fenced(self.promises.promised))
            return
        self._given = epoch, promise.candidate
        # No ACK of the old epoch leaves after the promise.
        self.following.leave(f"epoch {epoch} is promised to {promise.candidate.node}")
        previous = self.promises.promised
        answer = PromiseOk(
            previous, context.data_epoch, context.end, context.durable, context.confirm
        )
        self.promises.promise(epoch, lambda: self.peers.send(link, epoch, answer))

    def _released_for_us(self, link: int) -> None:
        """Take the lease that the master released for this node, without waiting."""
        slave = self.following.link
        if slave is not None and slave.link == link and self._leadership.can_campaign:
            self._leadership.begin_campaign(Claim.HANDED_OVER.value)

    def _status(self, link: int, payload: Status | StatusOk) -> None:
        if isinstance(payload, StatusOk):
            self.peers.received_status(link, payload)
            if (payload.facts.members or 0) > self.context.members.version:
                # Read at once, and not only when the next read is due.
                self.context.out.put(*self.context.session.read(self.context.now_ms))
            return
        promised = self.promises.promised
        status = own_status(self.context, self._leadership.term, promised)
        asked = msgspec.structs.replace(
            status, asked_ms=payload.asked_ms, wall_ms=self.context.wall_ms
        )
        self.peers.send(link, promised, asked)
