"""The replication port under noise, replays and lies: nothing acked, nothing appended, no memory.

``TIDEMARK_FUZZ_SECONDS=60`` is the full minute; the default is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from services.ha.wire import payloads
from services.ha.wire.frames import Decoder, Frame, FrameType, encode
from services.ha.wire.handshake import NONCE_SIZE, Connecting, Identity, Refused
from services.ha.wire.payloads import Ack, Append, Hello
from services.ha.wire.versions import SPOKEN
from tests.processes.test_memory import descriptors, rss_anon
from tests.processes.test_replication import REPLICATED, make_topic, send_acked
from tests.support import ha_fuzz
from tests.support.cluster import Cluster
from tests.support.node import SMALL_STORE, wait_until
from tidemark.formats.checkpoint import Slot

SECONDS: Final = float(os.environ.get("TIDEMARK_FUZZ_SECONDS", "5"))
SEED: Final = int(os.environ.get("TIDEMARK_FUZZ_SEED", str(time.time_ns() % 1_000_000)))
SOURCES: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
GROWTH_MAX: Final = 4 << 20
ANSWER_TIMEOUT_S: Final = 60.0
NOISE_S: Final = 0.05
"""For which an attacker stays that expects no answer."""
HUGE: Final = (1 << 62) - 1


class Port:
    """The replication port of a node, as an attacker sees it; or a peer, if it knows the secret."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster, self.node = cluster, node
        self.address = (cluster.hosts[node], cluster.ports[node]["replication"])
        self.sent = bytearray()
        """All that the last connection sent."""

    async def write(
        self, data: bytes, *, source: str = SOURCES[0], patience_s: float = NOISE_S
    ) -> None:
        """Connect, write all of data, and go when the other side closes or the time is up."""
        try:
            reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        except OSError:  # refused while many connections wait: as good as closed
            return
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(data)
            async with asyncio.timeout(patience_s):
                await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def speak(
        self, name: str, *said: Frame, patience_s: float = ANSWER_TIMEOUT_S
    ) -> list[Frame]:
        """Prove to be ``name``, send frames, and return the answers until the link ends.

        Raises TimeoutError if it does not, and Refused if it ends before the proof, as it may when
        the true ``name`` connects again. Fails if the node does not answer the handshake.
        """
        secret = self.cluster.secret_path.read_bytes()
        size = int(str(SMALL_STORE["commit_log_file_size"]))
        proof = Connecting(
            Identity("test", "g0", name, "ab" * 16, size),
            secret=secret,
            nonce=os.urandom(NONCE_SIZE),
            nodes=self.cluster.names,
            wanted=self.node,
        )
        reader, writer = await asyncio.open_connection(*self.address)
        decoder, heard = Decoder(), list[Frame]()
        self.sent.clear()

        def write(frame: Frame) -> None:
            self.sent += encode(frame)
            writer.write(encode(frame))

        proved = False
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S) as limit:
                    while data := await reader.read(65_536):
                        for frame in decoder.feed(data):
                            if proved:
                                heard.append(frame)
                                continue
                            step = proof.take(frame)
                            if step.send is not None:
                                write(step.send)
                            if step.peer is not None:
                                proved = True
                                limit.reschedule(asyncio.get_running_loop().time() + patience_s)
                                for each in said:
                                    write(each)
            except TimeoutError:
                assert proved, f"{self.node} does not answer the handshake"
                raise
        if not proved:
            raise proof.ended()
        return heard

    async def hear(self, wanted: FrameType, name: str, *said: Frame) -> list[Frame]:
        """Speak until the wanted frame is among the answers; return all of them. The true ``name``
        may connect again at any time, which ends the link."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                with contextlib.suppress(Refused):
                    heard = await self.speak(name, *said)
                    if any(frame.type is wanted for frame in heard):
                        return heard


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # Not the local profile: on a busy machine its short lease would make n1 the master.
    with Cluster(tmp_path, profile="default") as cluster:
        cluster.start()
        assert cluster.wait_master() == "n0"
        cluster.wait_in_sync()
        make_topic(cluster, "n0")
        yield cluster


def events(cluster: Cluster, node: str, event: str) -> list[dict[str, object]]:
    lines = cluster.nodes[node].log_text("ha").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.mark.timeout(SECONDS + 600)
async def test_noise_closes_the_connection_and_logs_one_line_per_peer_and_minute(
    cluster: Cluster,
) -> None:
    print(f"seed {SEED}; again: TIDEMARK_FUZZ_SEED={SEED} TIDEMARK_FUZZ_SECONDS={SECONDS}")
    node, epoch, began = cluster.nodes["n0"], cluster.epoch(), time.monotonic()
    port, pid = Port(cluster, "n0"), node.pid("ha")
    noises = [ha_fuzz.streams(random.Random(f"{SEED} {source}")) for source in SOURCES]
    for source, noise in zip(SOURCES, noises, strict=True):  # what only the first ones allocate
        for _ in range(50):
            await port.write(next(noise), source=source)
    send_acked(cluster, "n0", "before")
    before, opened = rss_anon(pid), descriptors(pid)
    written, until, count = cluster.slot("n0", Slot.WRITTEN), time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        await asyncio.gather(
            *(
                port.write(next(noise), source=source)
                for source, noise in zip(SOURCES, noises, strict=True)
                for _ in range(4)
            )
        )
        count += 4 * len(SOURCES)
    grown = rss_anon(pid) - before
    lines = events(cluster, "n0", "link-refused")
    minutes = (time.monotonic() - began) / 60 + 1
    print(f"{count} connections, {len(lines)} lines, memory grew by {grown} bytes")
    assert cluster.slot("n0", Slot.WRITTEN) - written < 20_000  # state records of the broker's own
    assert await asyncio.to_thread(send_acked, cluster, "n0", "after") == REPLICATED
    assert cluster.epoch() == epoch
    assert await asyncio.to_thread(cluster.wait_master) == "n0"
    assert 1 <= len(lines) <= len(SOURCES) * minutes
    assert grown < GROWTH_MAX
    wait_until(lambda: descriptors(pid) <= opened + 4 * len(SOURCES), "the connections to end")
    cluster.compare_logs()


def hello(cluster: Cluster, name: str) -> Frame:
    size = int(str(SMALL_STORE["commit_log_file_size"]))
    epoch = cluster.epoch()
    said = Hello("g0", name, "ab" * 16, SPOKEN.highest, size, epoch, 0, 0, 0, 0, ())
    return payloads.frame(epoch, said)


async def test_a_peer_that_lies_about_its_end_is_closed_and_counts_for_nothing(
    cluster: Cluster,
) -> None:
    cluster.pause("n1", "ha")  # so that the real node cannot contradict
    port, epoch = Port(cluster, "n0"), cluster.epoch()
    confirm = cluster.slot("n0", Slot.CONFIRM)
    lie = payloads.frame(epoch, Ack(HUGE, HUGE, 0))
    heard = await port.speak("n1", hello(cluster, "n1"), lie)
    assert FrameType.HELLO_OK in [frame.type for frame in heard]
    assert cluster.slot("n0", Slot.CONFIRM) - confirm < 20_000
    assert cluster.nodes["n0"].metric("ha", "tidemark_ha_implausible_acks_total") == 1
    cluster.resume("n1", "ha")
    cluster.wait_in_sync()
    assert await asyncio.to_thread(send_acked, cluster, "n0", "after") == REPLICATED


async def test_a_recorded_session_is_refused_when_it_is_played_again(cluster: Cluster) -> None:
    port = Port(cluster, "n0")
    await port.hear(FrameType.HELLO_OK, "n1", hello(cluster, "n1"))
    recorded = bytes(port.sent)
    up = len(events(cluster, "n0", "link-refused"))
    for _ in range(5):
        await port.write(recorded, patience_s=ANSWER_TIMEOUT_S)
    wait_until(lambda: len(events(cluster, "n0", "link-refused")) > up, "the refusal to be said")
    assert "wrong-secret" in str(events(cluster, "n0", "link-refused")[-1]["reason"])
    cluster.wait_in_sync()


async def test_bytes_of_an_earlier_epoch_are_answered_with_the_promised_epoch(
    cluster: Cluster,
) -> None:
    """A recorded APPEND of the first epoch, from a peer that knows the secret."""
    cluster.restart("n0", "broker")
    wait_until(lambda: cluster.epoch() == 2, "the second epoch")
    cluster.wait_master()
    cluster.wait_in_sync()
    written = cluster.slot("n1", Slot.WRITTEN)
    old = payloads.frame(1, Append(1, 0, 0, 0, 1, 4, b"evil"))
    heard = await Port(cluster, "n1").hear(FrameType.FENCED, "n0", old)
    assert payloads.Fenced(2) in [payloads.parse(frame) for frame in heard]
    assert cluster.slot("n1", Slot.WRITTEN) - written < 20_000
    cluster.compare_logs()


@pytest.mark.timeout(2 * SECONDS + 600)
async def test_nonsense_of_a_peer_with_the_secret_ends_only_its_links(
    cluster: Cluster,
) -> None:
    """Whole frames of the present epoch with contents that no node sends: a node with a bug."""
    print(f"seed {SEED}")
    rng, epoch, said_count = random.Random(SEED), cluster.epoch(), 0
    ports = {name: Port(cluster, name) for name in cluster.names}
    others = {"n0": "n1", "n1": "n0"}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or said_count == 0:
        name = rng.choice(cluster.names)
        frames = [payloads.frame(epoch, ha_fuzz.payload(rng)) for _ in range(rng.randint(1, 8))]
        if rng.random() < 0.3:
            frames.insert(0, hello(cluster, others[name]))
        with contextlib.suppress(Refused):  # the true node has connected again
            with contextlib.suppress(TimeoutError):  # it was silent
                await ports[name].speak(others[name], *frames, patience_s=NOISE_S)
            said_count += len(frames)
    print(f"{said_count} frames")
    for name, node in cluster.nodes.items():
        assert node.is_alive("ha"), f"ha of {name} ended"
        assert "Traceback" not in node.log_text("ha")
    cluster.wait_master()
    cluster.wait_in_sync()
    assert (
        await asyncio.to_thread(send_acked, cluster, cluster.wait_master(), "after") == REPLICATED
    )
    cluster.compare_logs()
