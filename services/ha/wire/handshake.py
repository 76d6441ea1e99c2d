"""Mutual authentication on the replication port by a shared secret (docs/replication.md). Pure.

1. The accepting side sends CHALLENGE: its versions and a nonce, nothing else about itself.
2. The connecting side sends ANSWER: a nonce, its identity, the node that it wants to reach, and an
   HMAC-SHA256 over CHALLENGE and all that.
3. The accepting side compares, and sends WELCOME: its identity, and an HMAC over CHALLENGE, ANSWER
   and its identity. If the peer knows the secret and does not fit, it sends REFUSED with the reason
   instead.

While the secret is rotated the accepting side has two, and answers with the one that was proved.

CHALLENGE names the versions of the accepting side, ANSWER the highest version of the other side and
the one to use. If there is no common version, ANSWER still names its highest one and is refused, so
that both sides learn that their versions differ, and that the peer has the secret. A side with a
later version may append fields that are unknown here; the HMAC covers them, and they are ignored.

Both nonces are new for every connection, so no recorded handshake can be replayed. The three HMACs
have different labels, so none can be sent back as another. A peer without the secret learns nothing
and gets no second frame. The handshake authenticates only the beginning of the connection; TLS
protects its bytes against changes.

Step before: a connection. Step after: LinkUp, and frames of the replica.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from services.ha.lease.value import Member
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payload_fields import INCARNATION_SIZE, Reader, put_hex, put_text
from services.ha.wire.versions import SPOKEN, Versions, common
from shared.cluster.group_secret import SECRET_SIZE_MIN

NONCE_SIZE: Final = 32
FRAME_SIZE_MAX: Final = 2048
"""Limit of a frame's length field until the handshake is over: the first limit of ``Decoder``."""

_MAC_SIZE: Final = 32
_CHALLENGE: Final = struct.Struct(f">8sHH{NONCE_SIZE}s")
_MAGIC: Final = b"tidemark"
_VERSIONS: Final = struct.Struct(">HH")
_FILE_SIZE: Final = struct.Struct(">q")
_U8: Final = struct.Struct(">B")
_DETAIL_SIZE_MAX: Final = 200


class Reason(IntEnum):
    """Why two nodes refuse each other."""

    OUT_OF_ORDER = 1
    """Not the next frame of the handshake, or no frame."""
    WRONG_SECRET = 2
    PROTOCOL_VERSION = 3
    """One side is too old for the other."""
    FOREIGN_CLUSTER = 4
    FOREIGN_GROUP = 5
    SAME_NAME = 6
    """Two processes with one node's name, or a node that reached itself."""
    UNKNOWN_NODE = 7
    """The group does not have the peer: it was removed, or not added yet."""
    WRONG_NODE = 8
    """The address leads to another node than configured."""
    FILE_SIZE_DIFFERS = 9

    @property
    def code(self) -> str:
        """The reason in logs and status."""
        return self.name.lower().replace("_", "-")


class Identity(NamedTuple):
    """Identity that a node sends."""

    cluster: str
    group: str
    node: str
    incarnation: str
    file_size: int
    """Size of a commit log file, bytes."""


class Peer(NamedTuple):
    """An authenticated peer, and the version of the protocol to use with it."""

    member: Member
    version: int


class Step(NamedTuple):
    """Result of a frame."""

    send: Frame | None
    peer: Peer | None
    """None until the handshake is over, which it is once ``send`` was sent."""


class Refused(Exception):
    """The handshake failed: the caller sends ``answer`` if there is one, then closes."""

    def __init__(self, reason: Reason, detail: str, answer: Frame | None = None) -> None:
        self.reason = reason
        self.detail = detail
        self.answer = answer
        super().__init__(f"{reason.code}: {detail}")


class Accepting:
    """The side that accepts the connection."""

    def __init__(
        self,
        own: Identity,
        *,
        accepted: Sequence[bytes],
        nonce: bytes,
        nodes: Collection[str],
        versions: Versions = SPOKEN,
    ) -> None:
        """accepted: the secrets of which the peer has to prove one."""
        self._own = own
        self._accepted = [_fit(secret, nonce) for secret in accepted]
        self._nodes = nodes
        self._versions = versions
        self._challenge = _CHALLENGE.pack(_MAGIC, versions.highest, versions.lowest, nonce)
        self._over = False

    def begin(self) -> Frame:
        """Return the first frame of the connection."""
        return Frame(FrameType.CHALLENGE, 0, self._challenge)

    def take(self, frame: Frame) -> Step:
        """Take ANSWER. Raises Refused, with an answer only for a peer that knows the secret."""
        if self._over or frame.type is not FrameType.ANSWER:
            raise Refused(Reason.OUT_OF_ORDER, f"a {frame.type.name} frame instead of ANSWER")
        self._over = True
        body, secret = self._proved(frame)
        reader = Reader(body, "ANSWER")
        try:
            version, highest = _VERSIONS.unpack(reader.take(_VERSIONS.size))
            # Checked before everything whose layout a version may have changed.
            if version != min(self._versions.highest, highest) or version < self._versions.lowest:
                detail = f"version {version} of {highest} asked for; {self._speaks()}"
                raise self._refusal(frame, secret, Reason.PROTOCOL_VERSION, detail)
            reader.take(NONCE_SIZE)
            peer, wanted = _take_identity(reader), reader.text()
            _end(reader, of=highest, own=self._versions)
        except BadFrame as error:
            raise Refused(Reason.OUT_OF_ORDER, str(error)) from error
        if misfit := _misfit(self._own, peer, self._nodes, wanted):
            raise self._refusal(frame, secret, *misfit)
        welcome = _put_identity(self._own)
        proof = _proof(secret, b"welcome", self._challenge, bytes(frame.payload), welcome)
        send = Frame(FrameType.WELCOME, 0, welcome + proof)
        return Step(send, Peer(Member(peer.node, peer.incarnation), version))

    def _speaks(self) -> str:
        return f"{self._own.node} speaks {self._versions}"

    def _proved(self, frame: Frame) -> tuple[bytes, bytes]:
        """Return ANSWER without its HMAC, and the secret that the HMAC proves. Raises Refused."""
        payload = bytes(frame.payload)
        body, proof = payload[:-_MAC_SIZE], payload[-_MAC_SIZE:]
        for secret in self._accepted:
            if hmac.compare_digest(proof, _proof(secret, b"answer", self._challenge, body)):
                return body, secret
        raise Refused(Reason.WRONG_SECRET, "a peer that does not know the secret")

    def _refusal(self, frame: Frame, secret: bytes, reason: Reason, detail: str) -> Refused:
        shown = detail.encode()[:_DETAIL_SIZE_MAX].decode(errors="ignore")
        body = _U8.pack(reason) + put_text(shown)
        proof = _proof(secret, b"refused", self._challenge, bytes(frame.payload), body)
        return Refused(reason, detail, Frame(FrameType.REFUSED, 0, body + proof))


class Connecting:
    """The side that made the connection."""

    def __init__(
        self,
        own: Identity,
        *,
        secret: bytes,
        nonce: bytes,
        nodes: Collection[str],
        wanted: str,
        versions: Versions = SPOKEN,
    ) -> None:
        self._own = own
        self._versions = versions
        self._theirs = versions
        self._secret = _fit(secret, nonce)
        self._nonce = nonce
        self._nodes = nodes
        self._wanted = wanted
        self._challenge = b""
        self._answer = b""
        self._version = 0

    def take(self, frame: Frame) -> Step:
        """Take CHALLENGE, then WELCOME. Raises Refused, including when the other side refused."""
        if not self._answer and frame.type is FrameType.CHALLENGE:
            return self._take_challenge(frame)
        if self._answer and frame.type in (FrameType.WELCOME, FrameType.REFUSED):
            return self._take_end(frame)
        raise Refused(Reason.OUT_OF_ORDER, f"a {frame.type.name} frame out of order")

    def ended(self) -> Refused:
        """Return the error for a connection that the other side closed before WELCOME.

        The other side closes without an answer if it finds that the secret is wrong.
        """
        reason = Reason.WRONG_SECRET if self._answer else Reason.OUT_OF_ORDER
        return Refused(reason, f"{self._wanted} closed during the handshake")

    def _take_challenge(self, frame: Frame) -> Step:
        self._challenge = bytes(frame.payload)
        own, size = self._versions, len(self._challenge)
        if size < _CHALLENGE.size or not self._challenge.startswith(_MAGIC):
            raise Refused(Reason.OUT_OF_ORDER, "a CHALLENGE of another protocol")
        _, highest, lowest, nonce = _CHALLENGE.unpack_from(self._challenge)
        if size > _CHALLENGE.size and highest <= own.highest:
            raise Refused(Reason.OUT_OF_ORDER, "a CHALLENGE that is too long for its version")
        self._theirs = Versions(lowest, highest)
        self._version = common(own, self._theirs) or own.highest
        if nonce == self._nonce:
            raise Refused(Reason.OUT_OF_ORDER, "a CHALLENGE with this side's own nonce")
        body = b"".join(
            (
                _VERSIONS.pack(self._version, own.highest),
                self._nonce,
                _put_identity(self._own),
                put_text(self._wanted),
            )
        )
        self._answer = body + _proof(self._secret, b"answer", self._challenge, body)
        return Step(Frame(FrameType.ANSWER, 0, self._answer), None)

    def _take_end(self, frame: Frame) -> Step:
        payload = bytes(frame.payload)
        body, proof = payload[:-_MAC_SIZE], payload[-_MAC_SIZE:]
        refused = frame.type is FrameType.REFUSED
        label = b"refused" if refused else b"welcome"
        expected = _proof(self._secret, label, self._challenge, self._answer, body)
        if not hmac.compare_digest(proof, expected):
            detail = f"{self._wanted} does not know the secret"
            raise Refused(Reason.WRONG_SECRET, detail)
        reader = Reader(body, frame.type.name)
        try:
            if refused:
                raise self._refused_by_peer(reader.one_of(Reason), reader.text())
            peer = _take_identity(reader)
            _end(reader, of=self._theirs.highest, own=self._versions)
        except BadFrame as error:
            raise Refused(Reason.OUT_OF_ORDER, str(error)) from error
        if common(self._versions, self._theirs) is None:
            raise self._refused_by_peer(
                Reason.PROTOCOL_VERSION, "welcome, in a version it does not speak"
            )
        if peer.node != self._wanted:
            detail = f"{peer.node} where {self._wanted} was to be"
            raise Refused(Reason.WRONG_NODE, detail)
        if misfit := _misfit(self._own, peer, self._nodes, self._own.node):
            raise Refused(*misfit)
        return Step(None, Peer(Member(peer.node, peer.incarnation), self._version))

    def _refused_by_peer(self, reason: Reason, words: str) -> Refused:
        """Return the refusal of the other side."""
        detail = f"{self._wanted} says: {words}"
        if reason is Reason.PROTOCOL_VERSION:
            detail = (
                f"{self._wanted} speaks versions {self._theirs} of the replication protocol, "
                f"{self._own.node} speaks {self._versions}; {detail}"
            )
        return Refused(reason, detail)


def _end(reader: Reader, *, of: int, own: Versions) -> None:
    """Check that nothing follows; additions of a later version are ignored."""
    if of > own.highest:
        reader.rest()
    reader.done()


def _misfit(
    own: Identity, peer: Identity, nodes: Collection[str], wanted: str
) -> tuple[Reason, str] | None:
    """Return why an authenticated peer is refused. wanted: the node that it wants to reach."""
    if peer.cluster != own.cluster:
        return Reason.FOREIGN_CLUSTER, f"{peer.node} of cluster {peer.cluster}, not {own.cluster}"
    if peer.group != own.group:
        return Reason.FOREIGN_GROUP, f"{peer.node} of group {peer.group}, not {own.group}"
    if peer.node == own.node:
        return Reason.SAME_NAME, f"{peer.node} {peer.incarnation} and {own.incarnation}"
    if peer.node not in nodes:
        return Reason.UNKNOWN_NODE, f"{peer.node} is not a node of the group"
    if wanted != own.node:
        return Reason.WRONG_NODE, f"{own.node} where {wanted} was to be"
    if peer.file_size != own.file_size:
        sizes = f"{peer.file_size} bytes at {peer.node}, {own.file_size} at {own.node}"
        return Reason.FILE_SIZE_DIFFERS, f"commit log files of {sizes}"
    return None


def _put_identity(identity: Identity) -> bytes:
    return b"".join(
        (
            put_text(identity.cluster),
            put_text(identity.group),
            put_text(identity.node),
            put_hex(identity.incarnation, INCARNATION_SIZE),
            _FILE_SIZE.pack(identity.file_size),
        )
    )


def _take_identity(reader: Reader) -> Identity:
    cluster, group, node = reader.text(), reader.text(), reader.text()
    return Identity(cluster, group, node, reader.hex(INCARNATION_SIZE), reader.offset())


def _proof(secret: bytes, label: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 over label and parts, each with its length so that lists differ."""
    message = b"".join(struct.pack(">I", len(part)) + part for part in (label, *parts))
    return hmac.digest(secret, message, "sha256")


def _fit(secret: bytes, nonce: bytes) -> bytes:
    """Return the secret. Raises ValueError if it or the nonce has a wrong size."""
    if len(secret) < SECRET_SIZE_MIN or len(nonce) != NONCE_SIZE:
        raise ValueError(
            f"a secret of {len(secret)} bytes, at least {SECRET_SIZE_MIN}; "
            f"a nonce of {len(nonce)}, exactly {NONCE_SIZE}"
        )
    return secret
