"""Hostile input for the replication port: damaged, replayed, hostile and random bytes.

Depends on nothing but the random numbers handed in. Units feed it to decoders, process tests and
drills write it to real ports. Nothing in it may be acknowledged, appended, or cost memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from random import Random
from typing import Final

from services.ha.lease.value import Holder, Member
from services.ha.wire import handshake, payloads
from services.ha.wire.frames import FRAME_SIZE_MAX, HEAD, Frame, FrameType, encode
from services.ha.wire.payloads import (
    Ack,
    Append,
    CampaignNow,
    Facts,
    Fenced,
    Hello,
    HelloOk,
    Payload,
    Promise,
    PromiseOk,
    PromisePurpose,
    ResyncReason,
    ResyncRequired,
    Status,
    StatusOk,
)
from services.ha.wire.versions import SPOKEN
from tests.support.fuzz_cases import damaged, overwrite
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

INCARNATIONS: Final = ("00" * 16, "5a" * 16, "ff" * 16)
NODES: Final = ("tidemark-0", "tidemark-1", "größe", "n" * 200)
HUGE: Final = (1 << 63) - 1


def table(rng: Random) -> tuple[EpochStart, ...]:
    """An epoch table of 0 to 20 entries, epochs and starts rising."""
    epoch = start = -1
    entries = []
    for _ in range(rng.randrange(21)):
        epoch, start = epoch + rng.randint(1, 3), start + rng.randint(1, 5000)
        entries.append(EpochStart(Epoch(epoch), PhysicalOffset(start)))
    return tuple(entries)


def payload(rng: Random) -> Payload:
    """A payload of any kind that a frame may have."""
    first = rng.choice((0, 1 << 30))
    durable = first + rng.choice((0, 1, 5000))
    end = durable + rng.choice((0, 1, 300))
    confirm = rng.randint(0, durable)
    node, incarnation = rng.choice(NODES), rng.choice(INCARNATIONS)
    member = Member(node, incarnation)
    data = rng.randbytes(rng.choice((0, 1, 100, 3000)))
    return rng.choice(
        (
            Hello("g0", node, incarnation, 1, 1 << 30, 7, first, end, durable, confirm, table(rng)),
            HelloOk(end, rng.getrandbits(32), end - first, first, end, confirm, table(rng)),
            ResyncRequired(rng.choice(list(ResyncReason)), first, end),
            Append(3, first, end, confirm, rng.getrandbits(20), len(data), data),
            Ack(end, durable, rng.getrandbits(64)),
            Promise(rng.choice(list(PromisePurpose)), Holder(node, incarnation, "0f" * 8)),
            PromiseOk(5, 6, end, durable, confirm),
            Status(durable),
            StatusOk(
                node=node,
                incarnation=incarnation,
                state="in-sync",
                initialised=rng.random() < 0.5,
                holds_records=rng.random() < 0.5,
                promised=7,
                data_epoch=6,
                first_offset=first,
                end=end,
                durable=durable,
                confirm=confirm,
                seen_epoch=7,
                in_sync_version=2,
                in_sync=(member,) * rng.randrange(3),
                facts=Facts(
                    reason="größe",
                    services_move=rng.random() < 0.5,
                    refused_at=rng.choice((None, end)),
                    in_sync_at=(7, 2),
                    lag_ms={node: rng.choice((None, 12))},
                ),
                asked_ms=durable,
                wall_ms=end,
            ),
            Fenced(9),
            CampaignNow(end),
        )
    )


def frame(rng: Random, version: int = SPOKEN.highest) -> Frame:
    """A frame that is well formed in every way."""
    return payloads.frame(rng.choice((0, 1, 7, HUGE)), payload(rng), version)


def inflated(rng: Random) -> bytes:
    """A map of msgpack with a length that nothing follows, or nested too deeply."""
    names = (b"table", b"in_sync", b"facts", b"node", b"lag_ms", b"later")
    name = rng.choice(names)
    lengths = (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")
    value = rng.choice(lengths) + b"\xff" * 4 if rng.random() < 0.8 else b"\x91" * 100_000
    return b"\x81" + bytes([0xA0 + len(name)]) + name + value


def replayed(rng: Random) -> bytes:
    """A recorded session: handshake, HELLO, bytes, ACKs.

    Genuine but for its nonces, which are another connection's: nothing in it proves anything.
    """
    identity = handshake.Identity("tidemark", "g0", "tidemark-1", INCARNATIONS[1], 1 << 30)
    connecting = handshake.Connecting(
        identity,
        secret=rng.randbytes(32),
        nonce=rng.randbytes(handshake.NONCE_SIZE),
        nodes=("tidemark-0", "tidemark-1"),
        wanted="tidemark-0",
    )
    accepting = handshake.Accepting(
        identity._replace(node="tidemark-0"),
        accepted=[rng.randbytes(32)],
        nonce=rng.randbytes(handshake.NONCE_SIZE),
        nodes=("tidemark-0", "tidemark-1"),
    )
    answer = connecting.take(accepting.begin()).send
    assert answer is not None
    frames = [answer] + [frame(rng) for _ in range(rng.randint(1, 5))]
    frames.append(payloads.frame(1, Append(1, 0, 0, HUGE, 1, 4, b"evil")))
    frames.append(payloads.frame(1, Ack(HUGE, HUGE, 1)))
    return b"".join(map(encode, frames))


def hostile(rng: Random) -> bytes:
    """A frame with a right checksum around a length, type, epoch or payload that cannot be."""
    good = encode(frame(rng))
    match rng.randrange(7):
        case 0:
            lengths = (0, 1, 15, FRAME_SIZE_MAX + 1, (1 << 31) - 1, (1 << 32) - 1)
            return struct.pack(">I", rng.choice(lengths)) + good[4:]
        case 1:
            return sealed(rng.choice((0, 11, 13, 24, 255)), 1, good[HEAD.size : -4])
        case 2:
            return sealed(rng.choice(list(FrameType)), -1, good[HEAD.size : -4])
        case 3:
            # A length that is allowed, and nothing behind it: memory must not follow it.
            return HEAD.pack(FRAME_SIZE_MAX, FrameType.APPEND, 0, 0, 1)
        case 4:
            return sealed(rng.choice(list(FrameType)), 1, inflated(rng))
        case 5:
            inside = bytearray(good[HEAD.size : -4] or b"\0")
            overwrite(rng, inside)
            return sealed(good[4], 1, bytes(inside))
        case _:
            return sealed(rng.choice(list(FrameType)), 1, rng.randbytes(rng.randrange(400)))


def sealed(kind: int, epoch: int, inside: bytes) -> bytes:
    """A frame of these parts with a right length and a right checksum."""
    head = HEAD.pack(HEAD.size + len(inside), kind, 0, 0, epoch)
    return head + inside + struct.pack(">I", zlib.crc32(inside, zlib.crc32(head[4:])))


def streams(rng: Random) -> Iterator[bytes]:
    """Without end: what to write to a new connection each time, 1 byte to 1 MiB."""
    while True:
        match rng.randrange(6):
            case 0:
                yield rng.randbytes(rng.choice((1, 7, 64, 4096, 1 << 20)))
            case 1:
                yield from damaged(rng, encode(frame(rng)), 6)
            case 2:
                yield replayed(rng)
            case 3:
                yield from damaged(rng, replayed(rng), 6)
            case 4:
                yield b"".join(hostile(rng) for _ in range(rng.randint(1, 20)))
            case _:
                yield b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * rng.randint(1, 100)
