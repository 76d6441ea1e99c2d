"""Links between nodes, over real sockets: authentication, limits and events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable

import pytest

from services.ha.core.events import Done
from services.ha.lease.value import Member
from services.ha.shell.link import Link
from services.ha.wire import frames, payloads
from services.ha.wire.frames import Frame, FrameType, encode
from services.ha.wire.payloads import Ack
from shared.cluster.group_secret import Secrets
from tests.unit.ha.link_pair import End, OneLog, two_nodes

STATUS = Frame(FrameType.STATUS, 7, b"")


async def test_two_nodes_prove_themselves_and_exchange_frames() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        one.links.connect("n1")
        await other.until(other.ups, "the accepted link")
        await one.until(one.ups, "the link made")
        up, accepted = one.ups()[0], other.ups()[0]
        assert up.outbound
        assert not accepted.outbound
        assert accepted.peer == Member("n0", b"n0".hex().rjust(32, "0"))
        one.links.send(up.link, STATUS)
        await other.until(other.frames, "the frame")
        assert other.frames()[0].frame == STATUS
        assert other.links.connected("n0")
        one.links.close_link(up.link, "done")
        await one.until(one.downs, "the end here")
        await other.until(other.downs, "the end there")
        assert one.downs()[0].reason == "done"
        assert one.links.count == other.links.count == 0


async def test_links_made_after_a_resync_prove_the_new_incarnation() -> None:
    # With the former incarnation the master would count the emptied store as the member that it
    # was.
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        one.links.disk_changed(Done(1))
        one.links.disk_changed(Done(2, incarnation="9" * 32))
        one.links.connect("n1")
        await other.until(other.ups, "the accepted link")
        assert other.ups()[0].peer == Member("n0", "9" * 32)


async def test_a_second_connect_to_a_node_makes_no_second_link() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        one.links.connect("n1")
        one.links.connect("n1")
        await one.until(one.ups, "the link")
        one.links.connect("n1")
        assert other.links.accepted_count == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"secret": b"another secret of 16"}, "wrong-secret"),
        ({"cluster": "foreign"}, "foreign-cluster"),
        ({"file_size": 4096}, "file-size-differs"),
    ],
)
async def test_whoever_does_not_fit_is_refused_by_name(
    settings: dict[str, object], reason: str
) -> None:
    nodes = two_nodes()
    async with (
        End("n0", nodes, **settings) as one,  # type: ignore[arg-type]
        End("n1", nodes) as other,
    ):
        one.links.connect("n1")
        await one.until(one.downs, "the refusal")
        down = one.downs()[0]
        assert (down.link, down.node) == (0, "n1")
        assert reason in down.reason
        assert not other.events
        assert not one.ups()


class SilentTransport(asyncio.Transport):
    """Dropped without a report."""

    def abort(self) -> None:
        return


async def test_a_connection_made_as_the_time_ran_out_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A loop may drop such a transport without a call: 1. A cut network comes back. 2. The answer to
    # an earlier SYN arrives at the moment in which the attempt is given up. 3. Neither side ever
    # hears of that connection, and the node would count as one that is being connected to, forever.
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def made_too_late(factory: Callable[[], Link], *_: object, **__: object) -> None:
            factory().connection_made(SilentTransport())
            raise TimeoutError

        monkeypatch.setattr(loop, "create_connection", made_too_late)
        one.links.connect("n1")
        await one.until(one.downs, "the failure")
        assert (one.downs()[0].link, one.links.count) == (0, 0)
        monkeypatch.setattr(loop, "create_connection", connect)
        one.links.connect("n1")
        await one.until(one.ups, "the second attempt")
        await other.until(other.ups, "it to be accepted")


async def test_a_node_that_is_not_there_is_reported_once_and_may_be_tried_again() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one:
        one.links.connect("n1")
        await one.until(one.downs, "the failure")
        async with End("n1", nodes):
            one.links.connect("n1")
            await one.until(one.ups, "the link")
        await one.until(lambda: len(one.downs()) == 2, "its end")


async def test_bytes_of_the_log_follow_their_frame_uncopied_and_checked() -> None:
    nodes = two_nodes()
    data = os.urandom(3 << 20)
    async with End("n0", nodes, log=OneLog(data)) as one, End("n1", nodes) as other:
        one.links.connect("n1")
        await one.until(one.ups, "the link")
        link = one.ups()[0].link
        size = 256 << 10
        for offset in range(0, len(data), size):
            head = Frame(FrameType.APPEND, 3, offset.to_bytes(8, "big"))
            one.links.stream(link, head, offset, size)
        await other.until(lambda: len(other.frames()) == len(data) // size, "all frames")
        got = b"".join(bytes(event.frame.payload[8:]) for event in other.frames())
        assert got == data
        assert one.links.sent_to("n1") > len(data)


async def test_the_time_until_bytes_are_on_the_peers_disk_is_reported() -> None:
    nodes = two_nodes()
    async with End("n0", nodes, log=OneLog(bytes(300))) as one, End("n1", nodes) as other:
        other.links.connect("n0")
        await one.until(one.ups, "the link")
        await other.until(other.ups, "the link")
        link, back = one.ups()[0].link, other.ups()[0].link
        for offset in (0, 100, 200):
            one.links.stream(link, Frame(FrameType.APPEND, 3, b""), offset, 100)
        other.links.send(back, payloads.frame(3, Ack(300, 200, 2)))
        other.links.send(back, Frame(FrameType.ACK, 3, b"short"))
        await one.until(lambda: len(one.frames()) == 2, "the ACKs")
        assert len(one.took) == 1, "once per ACK, however many frames it is for"
        other.links.send(back, payloads.frame(3, Ack(300, 300, 3)))
        await one.until(lambda: len(one.frames()) == 3, "the third ACK")
        assert [node for node, _ in one.took] == ["n1", "n1"]
        assert all(0 <= seconds < 10 for _, seconds in one.took)


async def test_bytes_that_are_gone_close_the_link() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes):
        one.links.connect("n1")
        await one.until(one.ups, "the link")
        one.links.stream(one.ups()[0].link, Frame(FrameType.APPEND, 3, b""), 0, 4096)
        await one.until(one.downs, "the end")
        assert one.downs()[0].reason.startswith("log-gone")


async def test_a_peer_that_takes_nothing_is_cut_off() -> None:
    nodes = two_nodes()
    data = bytes(1 << 20)
    async with (
        End("n0", nodes, log=OneLog(data), buffer_max=4 << 20) as one,
        End("n1", nodes) as other,
    ):
        other.links.connect("n0")
        await one.until(one.ups, "the link")
        link = one.ups()[0].link
        for _ in range(64):  # within one turn of the loop: the peer reads nothing meanwhile
            one.links.stream(link, Frame(FrameType.APPEND, 3, b""), 0, len(data))
        await one.until(one.downs, "the end")
        assert one.downs()[0].reason.startswith("slow-peer")


async def test_noise_gets_a_closed_connection_and_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, noise = two_nodes(), random.Random(5)
    async with End("n0", nodes) as one:
        for _ in range(50):
            reader, writer = await asyncio.open_connection(one.node.host, one.node.port)
            writer.write(noise.randbytes(noise.randrange(1, 5000)))
            writer.write_eof()
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        await one.until(lambda: one.links.count == 0, "all closed")
        assert one.links.refused_count == 50
    assert not one.events
    assert len([line for line in caplog.records if line.levelname == "WARNING"]) == 1


async def test_a_large_frame_before_the_proof_is_not_waited_for() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one:
        reader, writer = await asyncio.open_connection(one.node.host, one.node.port)
        writer.write((frames.FRAME_SIZE_MAX).to_bytes(4, "big") + b"\x15")
        assert await reader.read() != b""  # the challenge, then the end
        writer.close()
        assert one.links.refused_count == 1


async def test_frames_of_the_replica_mean_nothing_before_the_proof() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one:
        reader, writer = await asyncio.open_connection(one.node.host, one.node.port)
        writer.write(encode(STATUS))
        await reader.read()
        writer.close()
        await one.until(lambda: one.links.count == 0, "closed")
    assert not one.events


async def test_who_says_nothing_is_closed_in_time() -> None:
    nodes = two_nodes()
    async with End("n0", nodes, proof_timeout_s=0.05) as one:
        reader, writer = await asyncio.open_connection(one.node.host, one.node.port)
        await reader.read()
        writer.close()
        assert one.links.count == 0


async def test_who_says_nothing_makes_room_for_who_proves_himself() -> None:
    nodes = two_nodes()
    async with End("n0", nodes, connections_max=4) as one, End("n1", nodes) as other:
        silent = [await asyncio.open_connection(one.node.host, one.node.port) for _ in range(10)]
        await one.until(lambda: one.links.accepted_count == 10, "all accepted")
        assert one.links.count <= 4
        other.links.connect("n0")
        await one.until(one.ups, "the node")
        for _, writer in silent:
            writer.close()


async def test_a_bad_frame_of_an_authenticated_peer_ends_the_link_and_is_reported() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        one.links.connect("n1")
        await other.until(other.ups, "the link")
        await one.until(one.ups, "the link")
        damaged = bytearray(encode(STATUS))
        damaged[-1] ^= 1
        link = one.links._proved[one.ups()[0].link]
        assert link._transport is not None
        link._transport.write(bytes(damaged))
        await other.until(other.downs, "the end")
        assert other.downs()[0].reason.startswith("bad-frame")
        assert not other.frames()


async def test_while_the_secret_is_rotated_each_side_is_answered_with_what_it_proved() -> None:
    old, new = b"the old secret 16", b"the new secret 16"
    nodes = two_nodes()
    async with (
        End("n0", nodes, secret=old, accepted=(old, new)) as one,
        End("n1", nodes, secret=new, accepted=(new, old)) as other,
    ):
        one.links.connect("n1")
        other.links.connect("n0")
        await one.until(lambda: len(one.ups()) == 2, "the links of both")


async def test_other_secrets_are_used_by_the_next_link_and_existing_ones_stay() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        one.links.connect("n1")
        await one.until(one.ups, "the link")
        await other.until(other.ups, "the link")
        new = Secrets(b"the new secret 16", (b"the new secret 16",))
        other.credentials.replace(new)
        one.links.send(one.ups()[0].link, STATUS)
        await other.until(other.frames, "a frame on the link made before")
        other.links.connect("n0")
        await other.until(other.downs, "the refusal")
        assert "wrong-secret" in other.downs()[0].reason
        one.credentials.replace(new)
        other.links.connect("n0")
        await one.until(lambda: len(one.ups()) == 2, "a link with the new secret")


async def test_only_the_present_nodes_are_linked() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one, End("n1", nodes) as other:
        other.links.use_nodes([nodes["n1"]])
        one.links.connect("n1")
        await one.until(one.downs, "the refusal")
        assert "unknown-node: n1 says: n0 is not a node of the group" in one.downs()[0].reason
        other.links.use_nodes(nodes.values())
        one.links.connect("n1")
        await one.until(one.ups, "the link")


async def test_a_node_that_is_removed_while_it_is_connected_to_is_given_up() -> None:
    nodes = two_nodes()
    async with End("n0", nodes) as one:
        one.links.connect("n1")
        one.links.use_nodes([nodes["n0"]])
        await one.until(one.downs, "the failure")
        assert one.downs()[0].node == "n1"


async def test_a_host_that_cannot_be_looked_up_is_a_node_that_is_not_reached() -> None:
    nodes = two_nodes()
    nodes["n1"] = nodes["n1"]._replace(host="n1..example")
    async with End("n0", nodes) as one:
        one.links.connect("n1")
        await one.until(one.downs, "the failure")
        one.links.connect("n1")
        await one.until(lambda: len(one.downs()) == 2, "the failure of a second try")
        assert one.downs()[0].reason.startswith("not reached: ")


async def test_an_attempt_to_reach_a_former_address_is_given_up_at_once() -> None:
    nodes = two_nodes()
    async with End("n1", nodes) as other:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            former = nodes["n1"]._replace(port=silent.getsockname()[1])
            async with End("n0", {**nodes, "n1": former}) as one:
                one.links.connect("n1")
                await one.until(lambda: one.links.count, "the connection, without an answer")
                one.links.use_nodes(nodes.values())
                assert [down.link for down in one.downs()] == [0]
                one.links.connect("n1")
                await one.until(one.ups, "the link to the new address")
                await other.until(other.ups, "the accepted link")
                assert len(one.downs()) == 1
