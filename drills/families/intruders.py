"""Drills about untrusted peers: wrong identities, replayed frames and duplicate processes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from random import Random
from typing import Final

from drills.group import DrillNode
from drills.hostile_peer import HostilePeer
from drills.node_group import LOG_FILE_SIZE, slot
from drills.stage import THREE, TWO, Stage, drill
from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, FrameType, encode
from services.ha.wire.handshake import Identity, Refused
from services.ha.wire.payloads import Ack, Append, Hello, Status, StatusOk
from services.ha.wire.versions import SPOKEN
from tidemark.formats.checkpoint import Slot
from tidemark.testing.child import ChildProcess

ROGUE: Final = "66" * 16
HUGE: Final = (1 << 62) - 1
FUZZ_S: Final = 60.0
TIMEOUT_S: Final = 30.0
"""Limit of a wait for what a healthy node does at once."""
SILENCE_S: Final = 3.0
"""Time after which fuzzing moves on to the next connection; silence is not a failure there."""
CLOSED: Final = "the link was closed"
READ: Final = "no frame but the status"
READ_MS: Final = 33
"""Time of a request for a status, by which its answer is recognised."""
SILENT: Final = f"no answer within {TIMEOUT_S:.0f} s"
GROWTH_MAX: Final = 16 << 20
LINES_MAX: Final = 8
"""Maximum number of log lines about peers during the minute of fuzzing.

A node logs one line per peer and minute, and there are a few peers.
"""


@drill("31", "a second ha and a second broker are started on the master's store", TWO, 1.5)
async def same_name_twice(stage: Stage) -> None:
    """Expect the second processes to wait for the locks or to end; the first ones continue."""
    master, epoch = await stage.master(), stage.epoch
    node = stage.group.nodes[master]
    stage.mark()
    seconds = []
    for service in ("ha", "broker"):
        path = node.directory / f"second-{service}.toml"
        text = (node.directory / f"{service}.toml").read_text(encoding="utf-8")
        path.write_text(
            re.sub(r"^(admin_port|port)\b.*", r"\1 = 0", text, flags=re.MULTILINE), encoding="utf-8"
        )
        second = ChildProcess(
            node.directory / f"second-{service}.log",
            environment=node.processes[service].environment,
            before_exec=node.place.before_exec,
        )
        second.start([*node.command(service)[:-1], str(path)])
        seconds.append(second)
    await stage.pass_time(5.0)
    for second in seconds:
        state = "waits" if second.is_alive else "has ended"
        stage.note(f"the second {second.log_path.stem.removeprefix('second-')} {state}")
        second.kill()
    stage.check_epoch(epoch)
    stage.check(await stage.master() == master, "another node is master")


@drill(
    "32",
    "strangers, foreign clusters and liars speak to the master's replication port",
    THREE,
    1.5,
    short=True,
)
async def rogue_client(stage: Stage) -> None:
    """Expect the handshake to refuse wrong identities, and the node to close on false acks."""
    master = await stage.master()
    node, slave = stage.group.nodes[master], stage.slaves(master)[0]
    stage.mark()
    true, right = _identity(slave), _secret(stage)
    expected = (
        ("wrong-secret", true, b"not the secret of this group"),
        ("foreign-cluster", true._replace(cluster="elsewhere"), right),
        ("foreign-group", true._replace(group="g9"), right),
        ("same-name", true._replace(node=master), right),
        ("unknown-node", true._replace(node="n77"), right),
        ("file-size-differs", true._replace(file_size=8 << 20), right),
    )
    for reason, identity, secret in expected:
        with _connect(node) as peer:
            refusal = await _refusal(peer, identity, secret, master)
        stage.check(refusal == reason, f"{identity} got {refusal or 'welcome'}, not {reason}")
    confirm = slot(node.store_dir, Slot.CONFIRM)
    until, refused = time.monotonic() + TIMEOUT_S, _refused_acks(node)
    while _refused_acks(node) == refused:
        stage.check(time.monotonic() < until, "an end far beyond the master's own was not refused")
        await _lie(stage, node, slave)
    written = slot(node.store_dir, Slot.WRITTEN)
    stage.check(slot(node.store_dir, Slot.CONFIRM) <= written, "confirmed beyond the log's end")
    stage.note(
        f"{len(expected)} identities refused by name; an acknowledgement of {HUGE} closed its link "
        f"(confirm offset {confirm} then, {slot(node.store_dir, Slot.CONFIRM)} now)"
    )
    await stage.in_sync()


async def _lie(stage: Stage, master: DrillNode, slave: str) -> None:
    """Acknowledge far more than was sent. The true slave may connect again meanwhile, which ends
    the connection.
    """
    with _connect(master) as liar:
        if await _refusal(liar, _identity(slave), _secret(stage), master.name) == "":
            liar.say(stage.epoch, _hello(slave, stage.epoch, 0))
            await asyncio.to_thread(_answer, liar)
            liar.say(stage.epoch, Ack(HUGE, HUGE, 0))
            closed = await asyncio.to_thread(liar.is_closed)
            stage.check(closed, "an end far beyond the master's own was believed")


def _refused_acks(node: DrillNode) -> int:
    """Return how many acknowledgements of HUGE the log of ha refuses."""
    lines = node.log_text("ha").splitlines()
    return sum("ack-refused" in line and str(HUGE) in line for line in lines)


@drill("33", "an APPEND frame of an old epoch is sent to a slave", TWO, 8.0)
async def replayed_append(stage: Stage) -> None:
    """Expect FENCED for the old epoch. In the present epoch, nothing of a second link may be
    appended.
    """
    first = await stage.master()
    old = stage.epoch
    await stage.load.acked(50)
    stage.group.kill(first)
    await stage.successor(first, 20)
    stage.group.start(first)
    await stage.in_sync()
    stage.mark()
    master = await stage.master()
    slave = stage.slaves(master)[0]
    node = stage.group.nodes[slave]
    for epoch in (old, stage.epoch):
        answer, until = CLOSED, time.monotonic() + TIMEOUT_S
        # The true master may connect again at any time, which ends the link.
        while answer == CLOSED and time.monotonic() < until:
            answer = await _append(stage, node, master, epoch)
        expected = FrameType.FENCED.name if epoch == old else READ
        stage.check(answer == expected, f"an APPEND of epoch {epoch} was answered by: {answer}")
        stage.note(f"APPEND of epoch {epoch} (now {stage.epoch}): {answer}")


async def _append(stage: Stage, slave: DrillNode, master: str, epoch: int) -> str:
    """Send a false APPEND to a slave; return the answer, or READ if the slave only read it."""
    end = slot(slave.store_dir, Slot.WRITTEN)
    with _connect(slave) as peer:
        refusal = await _refusal(peer, _identity(master), _secret(stage), slave.name)
        if refusal:
            return SILENT if refusal == SILENT else CLOSED
        peer.say(epoch, Append(epoch, 0, end, end, 1, 64, bytes(64)))
        peer.say(epoch, Status(READ_MS))
        return await asyncio.to_thread(_answer, peer)


@drill(
    "52",
    f"random, damaged and replayed bytes on every replication port for {FUZZ_S:.0f} s",
    THREE,
    2.0,
)
async def fuzzed_port(stage: Stage) -> None:
    """Expect no acks, no appends, constant memory and one log line per peer and minute."""
    master = await stage.master()
    recording = await _recorded_handshake(stage, master)
    before = {name: _anonymous(node) for name, node in stage.group.nodes.items()}
    lines = {name: _lines(node) for name, node in stage.group.nodes.items()}
    stage.mark()
    until = time.monotonic() + FUZZ_S
    counts = await asyncio.gather(
        *(
            asyncio.to_thread(_fuzz, stage, node, Random(stage.random.random()), recording, until)
            for node in stage.group.nodes.values()
        )
    )
    for (name, node), count in zip(stage.group.nodes.items(), counts, strict=True):
        stage.check(count > 0, f"{name} spoke on no connection")
        speaks = await asyncio.to_thread(_speaks, node)
        stage.check(speaks, f"{name} does not speak on a connection after the minute")
        grown = _anonymous(node) - before[name]
        added = _lines(node) - lines[name]
        stage.note(
            f"{name}: memory of ha grew by {grown / (1 << 20):.1f} MiB, {added} lines about peers"
        )
        stage.check(grown <= GROWTH_MAX, f"ha of {name} grew by {grown} bytes")
        stage.check(added <= LINES_MAX, f"ha of {name} wrote {added} lines about its peers")
    stage.note(f"{sum(counts)} connections")


def _fuzz(stage: Stage, node: DrillNode, rng: Random, recording: bytes, until: float) -> int:
    """Open connections and send bad bytes, one connection after another; return how many times the
    node spoke."""
    secret, wanted = _secret(stage), node.name
    others = [name for name in stage.group.names if name != wanted]
    count = 0
    while time.monotonic() < until:
        # Closed connections, timeouts, refusals and bad answers are what this is for.
        with contextlib.suppress(OSError, Refused, BadFrame), _connect(node, SILENCE_S) as peer:
            kind = rng.randrange(4)
            if kind == 3:
                identity = _identity(rng.choice(others))
                peer.prove(identity, secret=secret, wanted=wanted, nodes=stage.group.names)
                bad = _hostile(stage, rng)
            elif peer.receive() is None:
                raise ConnectionError("closed before its first frame")
            else:
                # The proof of the recording is for another nonce.
                noise = rng.randbytes(rng.randrange(1, 5000))
                bad = (noise, recording, _damaged(recording, rng))[kind]
            count += 1
            peer.write(bad)
            peer.receive()
        time.sleep(0.02)
    return count


def _speaks(node: DrillNode) -> bool:
    """Return whether the node begins a handshake on a new connection."""
    with contextlib.suppress(OSError), _connect(node) as peer:
        return peer.receive() is not None
    return False


def _hostile(stage: Stage, rng: Random) -> bytes:
    """Return a frame that a peer with the secret might send: false offsets, or damaged bytes."""
    epoch = rng.choice((0, 1, max(0, stage.epoch - 1), stage.epoch))
    end = rng.randrange(1 << 40)
    payload = rng.choice(
        (
            Ack(end, end, rng.randrange(1 << 32)),
            Append(epoch, 0, end, end, 1, 100, rng.randbytes(100)),
            _hello("n1", epoch, end),
        )
    )
    frame = encode(payloads.frame(epoch, payload))
    return frame if rng.random() < 0.5 else _damaged(frame, rng)


def _hello(name: str, epoch: int, end: int) -> Hello:
    return Hello("g0", name, ROGUE, SPOKEN.highest, LOG_FILE_SIZE, epoch, 0, end, end, end, ())


def _damaged(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


async def _recorded_handshake(stage: Stage, name: str) -> bytes:
    with _connect(stage.group.nodes[name]) as peer:
        await _refusal(peer, _identity(stage.slaves(name)[0]), _secret(stage), name)
        return bytes(peer.sent)


async def _refusal(peer: HostilePeer, own: Identity, secret: bytes, wanted: str) -> str:
    """Do the handshake; return "" if the node accepted it, else the code of the refusal, or that
    there was no answer.
    """
    nodes = (own.node, wanted)
    try:
        await asyncio.to_thread(peer.prove, own, secret=secret, wanted=wanted, nodes=nodes)
    except Refused as refused:
        return refused.reason.code
    except TimeoutError:
        return SILENT
    return ""


def _answer(peer: HostilePeer) -> str:
    """Return the type of the next frame, READ, CLOSED or SILENT.

    A status counts as an answer only to the request of READ_MS: nodes also send it unasked, when
    their ability to lead changes.
    """
    try:
        while (frame := peer.receive()) is not None:
            if frame.type is not FrameType.STATUS_OK:
                return frame.type.name
            status = payloads.parse(frame)
            if isinstance(status, StatusOk) and status.asked_ms == READ_MS:
                return READ
    except TimeoutError:
        return SILENT
    return CLOSED


def _connect(node: DrillNode, timeout_s: float = TIMEOUT_S) -> HostilePeer:
    return HostilePeer(node.host, node.ports["replication"], timeout_s=timeout_s)


def _identity(name: str) -> Identity:
    return Identity("drills", "g0", name, ROGUE, LOG_FILE_SIZE)


def _secret(stage: Stage) -> bytes:
    return stage.group.secret_path.read_bytes().strip()


def _anonymous(node: DrillNode) -> int:
    """Return the anonymous memory of a node's ha process [bytes]."""
    return node.processes["ha"].memory("RssAnon")


def _lines(node: DrillNode) -> int:
    """Return the number of lines about peers in the log of ha."""
    return sum('"peer"' in line for line in node.log_text("ha").splitlines())
