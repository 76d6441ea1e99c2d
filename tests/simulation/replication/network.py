"""Connections between nodes: frames arrive in order, late, or only after a cut is healed.

Frames under way on a path that is cut wait there, as TCP repeats them. An end learns of a dead peer
only if a packet can reach it. Peers are authenticated before the core receives LinkUp, so both ends
know the identity of the other.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from services.ha.core.events import Event, LinkDown, LinkUp, Received
from services.ha.lease.value import Member
from services.ha.wire.frames import (
    BUFFER_SIZE_MIN,
    LENGTH_SIZE,
    BadFrame,
    Decoder,
    Frame,
    encode_head,
    encode_tail,
)
from services.ha.wire.versions import Versions, common
from tests.simulation.replication.handshaking import check_handshake
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

CONNECT_TIMEOUT_US: Final = 700_000
BUFFERED_MAX: Final = 4000
"""Frames under way in one direction; a link with more is closed."""

DECODED_AGAIN: Final = 64
"""One frame of this many is also decoded in other ways."""
FILLED: Final = 1024
"""One frame of this many is repeated until it fills the memory of a decoder."""
PIECE_SIZE_MAX: Final = 97
_BODY_SIZE: Final = 24
_BODY: Final = re.compile(rb"[0-9 ]{%d}" % _BODY_SIZE)
"""A pattern that only the body of a message has."""


class Listener(Protocol):
    """A start of ha that accepts connections and takes events."""

    node: str
    process: Process

    @property
    def member(self) -> Member:
        """Identity that it proves to its peers."""
        ...

    @property
    def versions(self) -> Versions:
        """Protocol versions that it supports."""
        ...

    def take(self, event: Event) -> None:
        """Put an event into its queue."""
        ...


class End:
    """One end of a link, at one start of ha."""

    def __init__(self, number: int, owner: Listener, *, outbound: bool) -> None:
        self.number, self.owner, self.outbound = number, owner, outbound
        self.other: End
        self.open = True
        self.announced = False
        """Whether the owner has received LinkUp."""
        self.decoder = Decoder()
        """Decoder of the bytes that arrive."""
        self.arriving: deque[tuple[int, Frame | None]] = deque()
        """Frames under way to this end with their arrival times; None: the other end is closed."""
        self.last_at_us = 0
        """Arrival time of the last of them."""


class Network:
    """All nodes' links."""

    def __init__(self, timeline: Timeline, *, delay_max_us: int, spike: float) -> None:
        """spike: probability that a frame is late by up to half a second."""
        self._timeline = timeline
        self._delay_max_us = delay_max_us
        self.spike = spike
        self._listeners: dict[str, Listener] = {}
        self._ends: dict[int, End] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._number = 0
        self.off: set[str] = set()
        """Nodes without power. Nothing answers for them, not even with a refusal."""
        self.frames_count = 0
        self.to_corrupt: set[tuple[str, str]] = set()
        """(sender, receiver) pairs whose next piece of log is corrupted once on its way."""

    # -- for the world ---------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """Drop everything from sender to receiver from now on."""
        self._cuts.add((sender, receiver))

    def heal(self, sender: str | None = None, receiver: str | None = None) -> None:
        """Restore the path, or all paths."""
        if sender is None or receiver is None:
            self._cuts.clear()
        else:
            self._cuts.discard((sender, receiver))
        for end in list(self._ends.values()):
            if end.arriving:
                self._timeline.after(self._delay(), self._deliver_to(end))

    def break_links(self, one: str, other: str) -> None:
        """Reset both ends of all connections between two nodes."""
        for end in list(self._ends.values()):
            if {end.owner.node, end.other.owner.node} == {one, other} and end.open:
                self._shut(end, "reset")

    def listen(self, listener: Listener) -> None:
        """Accept connections for a start of ha."""
        self._listeners[listener.node] = listener

    def ended(self, listener: Listener) -> None:
        """Reset the connections of a start of ha that is gone, unless its machine is off."""
        if self._listeners.get(listener.node) is listener:
            del self._listeners[listener.node]
        for end in [end for end in self._ends.values() if end.owner is listener]:
            end.open = False
            del self._ends[end.number]
            if listener.node not in self.off:
                self._post(end.other, None)

    # -- for ha ----------------------------------------------------------------------------

    def connect(self, owner: Listener, node: str) -> None:
        """Connect; the result is LinkUp at both ends, or LinkDown with link 0."""
        timeline = self._timeline

        def fail(reason: str) -> None:
            if owner.process.alive:
                owner.take(LinkDown(0, node, reason))

        def arrive() -> None:
            peer = self._listeners.get(node)
            if not owner.process.alive:
                return
            if (
                node in self.off
                or (owner.node, node) in self._cuts
                or (node, owner.node) in self._cuts
                or (peer is not None and peer.process.paused)
            ):
                timeline.after(CONNECT_TIMEOUT_US, lambda: fail("no answer"))
            elif peer is None:
                timeline.after(self._delay(), lambda: fail("refused"))
            else:
                self._join(owner, peer)

        timeline.after(self._delay() * 3, arrive)

    def send(
        self, owner: Listener, link: int, frame: Frame, data: Sequence[memoryview] = ()
    ) -> None:
        """Send a frame on a link, or nothing if it is closed. data: the rest of the payload."""
        end = self._ends.get(link)
        if end is None or end.owner is not owner or not end.open:
            return
        if len(end.other.arriving) >= BUFFERED_MAX:
            self._shut(end, "too much is buffered")
            return
        self.frames_count += 1
        path = owner.node, end.other.owner.node
        if data and path in self.to_corrupt:
            corrupted = _corrupted(data)
            self.to_corrupt -= {path} if corrupted else set()
            data = corrupted or data
        head, crc = encode_head(frame, sum(map(len, data)))
        arrived = end.other.decoder.feed(head)
        for piece in data[:-1]:
            arrived += end.other.decoder.feed(piece)
            crc = zlib.crc32(piece, crc)
        last = data[-1] if data else b""
        arrived += end.other.decoder.feed(last)
        arrived += end.other.decoder.feed(encode_tail(crc, last))
        (whole,) = arrived
        if self.frames_count % DECODED_AGAIN == 0:
            raw = b"".join((head, *data, encode_tail(crc, last)))
            _check_decoding(raw, frame._replace(payload=b"".join((frame.payload, *data))), whole)
            _check_pieces(raw, whole, self.frames_count)
            _check_flipped(raw, self.frames_count)
        self._post(end.other, whole)

    def close(self, owner: Listener, link: int, reason: str) -> None:
        """Close one end. The other end learns of it after the frames that are under way."""
        end = self._ends.get(link)
        if end is not None and end.owner is owner and end.open:
            self._down(end, reason)
            self._post(end.other, None)

    # -- inside ----------------------------------------------------------------------------

    def _delay(self) -> int:
        random = self._timeline.random
        if random.random() < self.spike:
            return random.randint(1_000, 500_000)
        return random.randint(30, self._delay_max_us)

    def _join(self, owner: Listener, peer: Listener) -> None:
        versions = owner.versions, peer.versions
        nodes = owner.node, peer.node
        check_handshake(owner.member, peer.member, versions, nodes, self._number // 2)
        ends = []
        for whose in (owner, peer):
            self._number += 1
            ends.append(End(self._number, whose, outbound=whose is owner))
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end in ends:
            self._ends[end.number] = end
            self._timeline.after(self._delay(), self._announce(end))

    def _announce(self, end: End) -> Callable[[], None]:
        def announce() -> None:
            if end.open and end.owner.process.alive:
                end.announced = True
                other = end.other.owner
                version = common(end.owner.versions, other.versions)
                assert version is not None, "neighbouring releases speak with each other"
                end.owner.take(LinkUp(end.number, other.member, end.outbound, version))
                self._deliver_to(end)()

        return announce

    def _post(self, end: End, frame: Frame | None) -> None:
        """Put a frame on its way to end."""
        timeline = self._timeline
        if not end.open:
            # A running kernel that does not know the connection (any more) resets it.
            if frame is not None and self._passes(end) and end.other.open:
                timeline.after(self._delay(), lambda: self._reset(end.other))
            return
        end.last_at_us = max(end.last_at_us, timeline.now_us + self._delay())
        end.arriving.append((end.last_at_us, frame))
        timeline.after(end.last_at_us - timeline.now_us, self._deliver_to(end))

    def _passes(self, end: End) -> bool:
        sender, receiver = end.other.owner.node, end.owner.node
        return (sender, receiver) not in self._cuts and receiver not in self.off

    def _deliver_to(self, end: End) -> Callable[[], None]:
        def deliver() -> None:
            if not end.announced or not self._passes(end):
                return
            arriving, now_us = end.arriving, self._timeline.now_us
            while end.open and arriving and arriving[0][0] <= now_us:
                frame = arriving.popleft()[1]
                if frame is None:
                    self._down(end, "closed by the peer")
                else:
                    end.owner.take(Received(end.number, frame))

        return deliver

    def _reset(self, end: End) -> None:
        if end.open:
            self._down(end, "reset")

    def _down(self, end: End, reason: str) -> None:
        end.open = False
        end.arriving.clear()
        self._ends.pop(end.number, None)
        if end.owner.process.alive and (end.announced or end.outbound):
            number = end.number if end.announced else 0
            end.owner.take(LinkDown(number, end.other.owner.node, reason))

    def _shut(self, end: End, reason: str) -> None:
        other = end.other
        self._down(end, reason)
        if other.open:
            self._down(other, reason)


def _corrupted(data: Sequence[memoryview]) -> list[memoryview]:
    """Return the bytes with one changed inside a record's body; empty if no body is found."""
    whole = bytearray(b"".join(data))
    found = _BODY.search(whole)
    if found is None:
        return []
    whole[found.start() + _BODY_SIZE // 2] ^= 1
    return [memoryview(whole)]


def _check_decoding(raw: bytes, sent: Frame, came: Frame) -> None:
    """Check that the frame arrives as it was sent, and that an invalid length is refused at
    once."""
    if came != sent:
        raise Violation(f"{sent} was sent, but {came} arrived")
    decoder = Decoder(len(raw) - LENGTH_SIZE)
    if decoder.feed(raw) != [sent]:
        raise Violation(f"{sent} is refused at exactly the maximal frame size")
    _must_refuse(Decoder(len(raw) - LENGTH_SIZE - 1), raw[:LENGTH_SIZE], "a frame that is too long")


def _check_pieces(raw: bytes, frame: Frame, turn: int) -> None:
    """Check that frames arrive in whatever pieces a transport reads them."""
    is_filled = turn % FILLED == 0
    count = BUFFER_SIZE_MIN // len(raw) + 2 if is_filled else 2
    piece_size = BUFFER_SIZE_MIN if is_filled else 1 + turn // DECODED_AGAIN % PIECE_SIZE_MAX
    decoder, stream, found = Decoder(), memoryview(raw * count), list[Frame]()
    while len(stream):
        room = decoder.room()
        size = min(len(room), len(stream), piece_size)
        if not size:
            raise Violation(f"the decoder has no room for a frame of {len(raw)} bytes")
        room[:size], stream = stream[:size], stream[size:]
        found += decoder.received(size)
    if found != [frame] * count or decoder.pending:
        raise Violation(
            f"{count} frames arrive as {len(found)}, and {decoder.pending} bytes are pending"
        )


def _check_flipped(raw: bytes, turn: int) -> None:
    """Check that a frame with a flipped bit never arrives, nor anything after it."""
    at = LENGTH_SIZE + turn // DECODED_AGAIN * 31 % (len(raw) - LENGTH_SIZE)
    changed = bytearray(raw)
    changed[at] ^= 1 << turn // DECODED_AGAIN % 8
    decoder = Decoder()
    _must_refuse(decoder, bytes(changed), f"a frame with a changed byte {at} of {len(raw)}")
    _must_refuse(decoder, raw, "a frame after a bad one")


def _must_refuse(decoder: Decoder, data: bytes, what: str) -> None:
    try:
        decoder.feed(data)
    except BadFrame as error:
        if not str(error):
            raise Violation(f"{what} is refused without a reason") from error
        return
    raise Violation(f"{what} is accepted")
