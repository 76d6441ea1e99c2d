"""The secrets of a group while one replaces another: the steps, and how they are sent. Pure.

A node proves one secret on the links that it makes, and accepts one or two on those made to it. The
secret is replaced in three steps; each is taken by all nodes before the next one begins, so at any
time each node accepts what every other node proves (docs/replication.md, rotating the secret).

``tidemark cluster rotate-secret`` sends a step with the new secret sealed under one that the node
accepts already: encrypted, then authenticated. The standard library has no cipher, so the key
stream is HMAC-SHA256 in counter mode, a pseudorandom function of a key that no other message has.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from enum import Enum
from typing import Final, NamedTuple

from tidemark.errors import ClusterRefused

SECRET_SIZE_MIN: Final = 16
SECRET_SIZE_MAX: Final = 4096
SEAL_NONCE_SIZE: Final = 32
_MAC_SIZE: Final = 32
_COUNTER: Final = struct.Struct(">I")
_FINGERPRINT_SIZE: Final = 2
"""Bytes. Two, so that a fingerprint fits one of 65,536 guesses: it does not show which guess of a
weak secret is right. Two different secrets rarely have the same."""
_SCRYPT: Final = {"n": 1 << 14, "r": 8, "p": 1}
"""16 MiB and about 50 ms for each guess."""


class RotationStep(Enum):
    """A step of the rotation, by what a node does after it."""

    ACCEPT = "accept"
    """It accepts the new secret as well, and still proves the old one."""
    PROVE = "prove"
    """It proves the new secret, and still accepts the old one."""
    FORGET = "forget"
    """It knows the new secret only."""


class RotationUnfinished(ClusterRefused):
    """The step does not follow from the secrets that the node has."""

    code, title = "rotation-unfinished", "Another rotation of the secret is unfinished"


class Secrets(NamedTuple):
    """What a node proves and accepts."""

    proved: bytes
    """Proved on the links that this node makes."""
    accepted: tuple[bytes, ...]
    """Accepted on the links made to it; the proved one is the first."""


class Fingerprints(NamedTuple):
    """The secrets of a node as its status shows them."""

    proves: str
    accepts: tuple[str, ...]

    def has_done(self, step: RotationStep, new: str) -> bool:
        """Return whether the node has taken a step, or a later one. new: of the new secret."""
        match step:
            case RotationStep.ACCEPT:
                return new in self.accepts
            case RotationStep.PROVE:
                return self.proves == new
            case RotationStep.FORGET:
                return self.accepts == (new,)


class Recipient(NamedTuple):
    """The node to which a step is sent."""

    cluster: str
    group: str
    node: str
    challenge: str = ""
    """Random text in the status of its process, another one after each step that it has taken."""


def fingerprint(secret: bytes, cluster: str, group: str) -> str:
    """Return four hex digits that tell the group's secrets apart. Takes about 50 ms."""
    salt = json.dumps(["tidemark secret", cluster, group]).encode()
    return hashlib.scrypt(secret, salt=salt, dklen=_FINGERPRINT_SIZE, **_SCRYPT).hex()


def after(step: RotationStep, new: bytes, present: Secrets) -> Secrets:
    """Return the secrets of a node after a step; the present ones if it was taken before.

    Raises RotationUnfinished if the step before it was not taken, or another secret is accepted.
    """
    match step:
        case RotationStep.ACCEPT:
            if new in present.accepted:
                return present
            if len(present.accepted) > 1:
                raise _unfinished("the node accepts two secrets already, and the new one is none")
            return Secrets(present.proved, (present.proved, new))
        case RotationStep.PROVE:
            if present.proved == new:
                return present
            if new not in present.accepted:
                raise _unfinished("the node does not accept the new secret yet")
            return Secrets(new, (new, present.proved))
        case RotationStep.FORGET:
            if present.proved != new:
                raise _unfinished("the node does not prove the new secret yet")
            return Secrets(new, (new,))


def seal(
    new: bytes,
    key: bytes,
    step: RotationStep,
    recipient: Recipient,
    seen: Fingerprints,
    nonce: bytes,
) -> bytes:
    """Return the new secret, readable only for a node that knows the key.

    seen: the node's status. The seal opens for this step, on this node, in this state, for one
    challenge: an order that was recorded cannot be sent again later. nonce: SEAL_NONCE_SIZE random
    bytes.
    """
    encrypting, signing = _keys(key, nonce)
    hidden = _xor(new, encrypting)
    return nonce + hidden + _mac(signing, hidden, step, recipient, seen)


def unseal(
    sealed: bytes,
    keys: tuple[bytes, ...],
    step: RotationStep,
    recipient: Recipient,
    seen: Fingerprints,
) -> bytes | None:
    """Return the new secret; None if no key opens the seal for this step, node and state."""
    nonce, hidden = sealed[:SEAL_NONCE_SIZE], sealed[SEAL_NONCE_SIZE:-_MAC_SIZE]
    for key in keys:
        encrypting, signing = _keys(key, nonce)
        mac = _mac(signing, hidden, step, recipient, seen)
        if hmac.compare_digest(mac, sealed[-_MAC_SIZE:]):
            return _xor(hidden, encrypting)
    return None


def _unfinished(why: str) -> RotationUnfinished:
    return RotationUnfinished(
        f"{why}. Nothing was changed.",
        "Repeat `tidemark cluster rotate-secret` with the secret of the rotation that began first.",
    )


def _keys(key: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """Return the keys of one message: to encrypt, and to authenticate."""
    encrypting = hmac.digest(key, b"tidemark rotate-secret, encrypt" + nonce, "sha256")
    return encrypting, hmac.digest(key, b"tidemark rotate-secret, sign" + nonce, "sha256")


def _xor(data: bytes, key: bytes) -> bytes:
    """Encrypt or decrypt."""
    blocks = range(-(-len(data) // hashlib.sha256().digest_size))
    stream = b"".join(hmac.digest(key, _COUNTER.pack(block), "sha256") for block in blocks)
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))


def _mac(
    key: bytes, hidden: bytes, step: RotationStep, recipient: Recipient, seen: Fingerprints
) -> bytes:
    context = json.dumps([step.value, *recipient, seen.proves, *seen.accepts]).encode()
    return hmac.digest(key, _COUNTER.pack(len(context)) + context + hidden, "sha256")
