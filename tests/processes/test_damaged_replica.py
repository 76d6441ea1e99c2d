"""Replicas whose disk does not fit the group's history: cut, copied anew or refused, with a
reason."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests.processes.test_replication import (
    REPLICATED,
    TOPIC,
    bodies_at,
    make_topic,
    send,
    send_acked,
    wait_readable,
)
from tests.support.cluster import Cluster
from tests.support.node import GROUP_ROLES, wait_until
from tidemark import errors
from tidemark.formats.checkpoint import Slot


def status_of(cluster: Cluster, name: str, by: str) -> dict[str, Any]:
    """What a node's ha reports of a node; {} while it does not answer."""
    nodes = cluster.status(by).get("nodes", [])
    return next((node for node in nodes if node["node"] == name), {})


def wait_halted(cluster: Cluster, name: str, code: str) -> str:
    """Wait until a node reports that it is halted; return the reason."""
    found: list[str] = []

    def is_halted() -> bool:
        status = status_of(cluster, name, name)
        found[:] = [str(status.get("reason"))]
        return status.get("state") == "halted" and code in found[0]

    wait_until(is_halted, f"{name} to halt with {code}, it says {found}")
    return found[0]


def keep_alive(cluster: Cluster, name: str) -> None:
    """Restart services that ended by themselves, as a supervisor does."""
    ended = [role for role in GROUP_ROLES if not cluster.nodes[name].is_alive(role)]
    if ended:
        cluster.nodes[name].start(*ended)


def wait_joined(cluster: Cluster, name: str) -> None:
    """Wait until a node is in the set, its services started again as often as they end.

    The master's word alone may be of the node before: it stays in the set until it is removed."""

    def is_in() -> bool:
        keep_alive(cluster, name)
        own, master = status_of(cluster, name, name), cluster.serving()
        seen = {} if master is None else status_of(cluster, name, master)
        return (
            own.get("state") in ("in-sync", "master")
            and bool(seen.get("in_sync"))
            and seen["incarnation"] == own["incarnation"]
        )

    wait_until(is_in, f"{name} to be in sync")


def resync(cluster: Cluster, name: str) -> None:
    wait_until(
        lambda: cluster.command(name, "resync", {"group": "g0"})[0] == 200, "resync to be taken"
    )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Cluster, list[str]]]:
    """n0 the master, n1 in sync, and what both hold."""
    with Cluster(tmp_path) as cluster:
        cluster.start()
        assert cluster.wait_master() == "n0"
        cluster.wait_in_sync()
        make_topic(cluster, "n0")
        sent = [f"before {number} " + "x" * 500 for number in range(60)]
        for at in range(0, len(sent), 10):
            ack = send_acked(cluster, "n0", *sent[at : at + 10])
            assert ack == REPLICATED
        yield cluster, sent


def check_whole(cluster: Cluster, sent: list[str]) -> None:
    """Both nodes hold everything, byte for byte, and replicate."""
    master = cluster.wait_master()
    assert send_acked(cluster, master, "after all") == REPLICATED
    wait_readable(cluster, master, {*sent, "after all"})
    end = cluster.slot(master, Slot.CONFIRM)
    wait_until(lambda: cluster.compare_logs() >= end, "both logs to be confirmed so far")


def test_a_former_master_cuts_unconfirmed_records_and_keeps_them_aside(
    pair: tuple[Cluster, list[str]],
) -> None:
    cluster, sent = pair
    # The sender's own ha: bytes in the socket of a paused receiver would still arrive.
    cluster.pause("n0", "ha")
    for number in range(40):  # on the disk of n0 and nowhere else; asked for level disk
        send(cluster, "n0", f"lost {number}", ack="memory", timeout_ms=1)
    cluster.kill("n0")
    assert cluster.wait_master(other_than="n0") == "n1"
    before = cluster.slot("n0", Slot.WRITTEN)
    send_acked(cluster, "n1", "of the next epoch")
    cluster.start("n0")
    cluster.wait_in_sync()
    cut = [path for path in (cluster.nodes["n0"].store_dir / "cut").iterdir()]
    assert [path.name.split("-", 3)[3] for path in cut] == ["forked"]
    start, end = (int(part) for part in cut[0].name.split("-")[:2])
    assert end == before
    assert b"lost 39" in cut[0].read_bytes()
    assert len(cut[0].read_bytes()) == end - start
    check_whole(cluster, [*sent, "of the next epoch"])


def test_a_slave_is_copied_anew_on_an_operators_command(
    pair: tuple[Cluster, list[str]],
) -> None:
    cluster, sent = pair
    old = status_of(cluster, "n1", "n1")["incarnation"]
    status, body = cluster.command("n1", "resync", {"group": "other"})
    assert (status, body["code"]) == (409, "cluster-refused")
    resync(cluster, "n1")
    # Broker and reput end: the files that they have mapped are about to be deleted.
    for role in ("broker", "reput"):
        assert cluster.nodes["n1"].wait_exit(role) != 0
    wait_joined(cluster, "n1")
    assert status_of(cluster, "n1", "n1")["incarnation"] != old
    check_whole(cluster, sent)


def test_a_bit_that_the_disk_lost_halts_the_slave_by_name_until_it_is_copied_anew(
    pair: tuple[Cluster, list[str]],
) -> None:
    cluster, sent = pair
    cluster.kill("n1")
    wait_until(lambda: not status_of(cluster, "n1", "n0")["in_sync"], "the set to be without n1")
    path = min((cluster.nodes["n1"].store_dir / "commitlog").glob("[0-9]*"))
    data = bytearray(path.read_bytes())
    at = data.index(b"before 7 ") + 100
    data[at] ^= 1
    path.write_bytes(data)
    cluster.start("n1")
    reason = wait_halted(cluster, "n1", "corrupt-record")
    assert "at physical offset" in reason
    assert not status_of(cluster, "n1", "n0")["in_sync"]
    resync(cluster, "n1")
    wait_joined(cluster, "n1")
    check_whole(cluster, sent)


def test_a_replaced_volume_is_another_member_and_is_copied_from_the_beginning(
    pair: tuple[Cluster, list[str]],
) -> None:
    cluster, sent = pair
    old = status_of(cluster, "n1", "n1")["incarnation"]
    cluster.kill("n1")
    shutil.rmtree(cluster.nodes["n1"].store_dir)
    cluster.start("n1")
    wait_joined(cluster, "n1")
    assert status_of(cluster, "n1", "n1")["incarnation"] != old
    check_whole(cluster, sent)


def test_a_stray_file_halts_by_name_and_goes_on_once_it_is_moved_away(
    pair: tuple[Cluster, list[str]],
) -> None:
    cluster, sent = pair
    cluster.kill("n1")
    stray = cluster.nodes["n1"].store_dir / "commitlog" / "core.4711"
    stray.write_bytes(b"x")
    cluster.start("n1")
    assert "core.4711" in wait_halted(cluster, "n1", "stray-file")
    cluster.kill("n1")
    stray.unlink()
    cluster.start("n1")
    wait_joined(cluster, "n1")
    check_whole(cluster, sent)


def test_the_volume_of_another_node_is_refused(pair: tuple[Cluster, list[str]]) -> None:
    cluster, _ = pair
    cluster.kill("n1")
    identity = cluster.nodes["n1"].store_dir / "ha" / "identity"
    shutil.copy(cluster.nodes["n0"].store_dir / "ha" / "identity", identity)
    cluster.nodes["n1"].start("ha")
    assert cluster.nodes["n1"].wait_exit("ha") != 0
    assert "group-store" in cluster.nodes["n1"].log_text("ha")


def flip(cluster: Cluster, name: str, body: bytes) -> None:
    """Change one bit of a message in a running node's log, as a failing disk does."""
    path = min((cluster.nodes[name].store_dir / "commitlog").glob("[0-9]*"))
    with path.open("r+b") as file:
        at = file.read().index(body)
        file.seek(at)
        file.write(bytes([body[0] ^ 1]))


async def consume_to_damage(url: str) -> list[str]:
    """What a member of a group gets until it meets a damaged record."""
    got: list[str] = []

    async def consume() -> None:
        async with (
            tidemark.connect(url) as mq,
            mq.subscribe(TOPIC, group="billing", start="first") as messages,
        ):
            async for message in messages:
                got.append(message.body.decode())

    with pytest.raises(errors.CorruptRecord):
        await consume()
    return got


@pytest.mark.parametrize("met_by", ["a reader", "a member", "a slave that copies"])
def test_a_master_whose_log_is_damaged_hands_over_and_is_copied_anew(
    tmp_path: Path, met_by: str
) -> None:
    # Reads there were refused for as long as it was master, a slave whose volume was replaced could
    # not join, and ha had no trouble, no alarm, and two healthy members to hand over to.
    with Cluster(tmp_path, nodes=3) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        sent = [f"kept {number} " + "x" * 500 for number in range(40)]
        for at in range(0, len(sent), 10):
            send_acked(cluster, old, *sent[at : at + 10])
        flip(cluster, old, b"kept 17 ")
        replaced = next(name for name in cluster.names if name != old)
        if met_by == "a reader":
            # A reader stops at the damaged message; the reader and ha learn of it.
            assert len(bodies_at(cluster, old)) < len(sent)
        if met_by == "a member":
            # It gets the stored records, and only it knew of the damage.
            assert len(asyncio.run(consume_to_damage(cluster.api_url(old)))) < len(sent)
        cluster.kill(replaced)
        shutil.rmtree(cluster.nodes[replaced].store_dir)
        cluster.start(replaced)
        new = cluster.wait_master(other_than=old)
        wait_joined(cluster, replaced)
        assert "at physical offset" in wait_halted(cluster, old, "corrupt-record")
        if met_by == "a reader":
            cluster.restart(old, "ha")  # it lost its record of the damage, and was in sync again
            assert "at physical offset" in wait_halted(cluster, old, "corrupt-record")
        wait_readable(cluster, new, set(sent))
        resync(cluster, old)
        # Both end, reput perhaps after ha has reported the node in the set again: if it was still
        # running then, it was not restarted, and its node was no target of a switch.
        for role in ("broker", "reput"):
            assert cluster.nodes[old].wait_exit(role) != 0
        wait_joined(cluster, old)
        send_acked(cluster, new, "after all")
        wait_readable(cluster, new, {*sent, "after all"})
        wait_until(
            lambda: cluster.command(new, "switchover", {"to": old})[0] == 200,
            f"a switch back to {old}",
        )
        wait_readable(cluster, old, {*sent, "after all"})


def test_a_slave_whose_log_loses_a_file_while_it_runs_is_no_member_until_it_is_copied_anew(
    pair: tuple[Cluster, list[str]],
) -> None:
    """It stayed in sync, was granted the lease after its master's end, and could not serve."""
    cluster, sent = pair
    more = [f"more {number} " + "x" * 20_000 for number in range(60)]
    for at in range(0, len(more), 10):
        assert send_acked(cluster, "n0", *more[at : at + 10]) == REPLICATED
    first = cluster.nodes["n1"].store_dir / "commitlog" / ("0" * 20)
    first.unlink()
    assert first.name in wait_halted(cluster, "n1", "corrupt-record")
    assert cluster.serving() == "n0"
    resync(cluster, "n1")
    wait_joined(cluster, "n1")
    check_whole(cluster, [*sent, *more])
