"""Groups of real nodes: they elect a master, replicate, fail over, and lose no acked message."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from shared.files.os_disk import OsDisk
from shared.state.json_cache import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, JsonCache
from tests.support.cluster import PATIENT_MS, Cluster
from tests.support.node import wait_until
from tidemark.formats.checkpoint import NodeRole, Slot

TOPIC: Final = "replicated"
REPLICATED: Final = {"level": "replicated", "copies": 2}
ALONE: Final = {"level": "disk", "copies": 1}


def make_topic(cluster: Cluster, master: str) -> None:
    status, body = cluster.nodes[master].request_json("PUT", f"/v1/topics/{TOPIC}", {"queues": 2})
    assert status in (200, 201), body


def send(cluster: Cluster, node: str, *bodies: str, **more: object) -> tuple[int, dict[str, Any]]:
    """One request with one message per body."""
    messages = [{"body_text": body} for body in bodies]
    return cluster.nodes[node].request_json(
        "POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages, **more}
    )


def send_acked(cluster: Cluster, node: str, *bodies: str, **more: object) -> dict[str, Any]:
    """``send`` that must succeed: the ack.

    With more patience than the profile's, where a slave that is slow for a second is an error.
    """
    more.setdefault("timeout_ms", PATIENT_MS)
    status, body = send(cluster, node, *bodies, **more)
    assert status == 200, body
    assert body["status"] == "PUT_OK"
    ack: dict[str, Any] = body["ack"]
    return ack


def bodies_at(cluster: Cluster, node: str) -> list[str]:
    """All that a consumer can read at a node, queue by queue."""
    found: list[str] = []
    for queue in range(2):
        offset = 0
        while True:
            path = f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&max=1000"
            status, body = cluster.nodes[node].request_json("GET", path)
            if status != 200 or not body["messages"]:
                break
            for message in body["messages"]:
                assert message["queue_offset"] == offset
                found.append(message["body_text"])
                offset += 1
    return found


def wait_readable(cluster: Cluster, node: str, bodies: set[str]) -> None:
    wait_until(lambda: bodies <= set(bodies_at(cluster, node)), f"all messages to be at {node}")


def in_sync_by(cluster: Cluster, node: str) -> set[str]:
    """Members of the in-sync set as a node reports it."""
    return {each["node"] for each in cluster.status(node)["nodes"] if each["in_sync"]}


def assert_handed_over(cluster: Cluster, old: str, new: str) -> None:
    """The old master gave its lease to the new one, which did not wait for its expiry.

    The report of the old one's ha proves it, not the time: that is printed, `make drill` judges it.
    """
    said = [json.loads(line) for line in cluster.nodes[old].log_text("ha").splitlines()]
    assert [entry["to"] for entry in said if entry["event"] == "switchover"] == [new]
    assert not {entry["event"] for entry in said} & {"switchover-failed", "not-handed-over"}


def role(cluster: Cluster, node: str) -> int:
    return cluster.slot(node, Slot.ROLE)


def change(cluster: Cluster, name: str, method: str, path: str, body: object) -> None:
    status, answer = cluster.nodes[name].request_json(method, path, body)
    assert status in (200, 201), answer


def tables_of(cluster: Cluster, name: str) -> tuple[object, ...] | None:
    """What the JSON files in a node's config/ say; None while one of them is missing."""
    cache = JsonCache(OsDisk(), cluster.nodes[name].store_dir / "config")
    topics, groups = cache.read(TOPICS_FILE), cache.read(GROUPS_FILE)
    offsets = cache.read(OFFSETS_FILE)
    if topics is None or groups is None or offsets is None:
        return None
    assert topics.covered is not None
    assert topics.covered.epoch == 1
    # RocketMQ makes its system topics by itself; a slave lists those that it started with.
    mine = {topic: entry for topic, entry in topics.topics.items() if topic == TOPIC}
    return mine, groups.groups, offsets.offsets


def test_two_nodes_elect_a_master_and_copy_every_byte(tmp_path: Path) -> None:
    # Not the local profile: a slave that is slow for two seconds would leave the set.
    with Cluster(tmp_path, profile="default") as cluster:
        cluster.start()
        master = cluster.wait_master()
        assert master == "n0"  # the first one founds the group
        cluster.wait_in_sync()
        make_topic(cluster, master)
        acks = [send_acked(cluster, master, f"m{number}") for number in range(100)]
        assert acks == [REPLICATED] * 100
        wait_readable(cluster, master, {f"m{number}" for number in range(100)})
        assert cluster.compare_logs() > 0
        metric = cluster.nodes[master].metric
        assert metric("ha", "tidemark_ha_in_sync_replicas") == 2
        assert metric("ha", 'tidemark_ha_role{role="master"}') == 1
        assert metric("ha", 'tidemark_ha_replica_lag_bytes{peer="n1"}') == 0
        probes = {
            (name, probe): cluster.nodes[name].get_json(f"{cluster.admin_url(name)}/{probe}")[0]
            for name in cluster.names
            for probe in ("primary", "replica", "ready", "live")
        }
        assert probes == {
            **{(name, probe): 200 for name in cluster.names for probe in ("ready", "live")},
            **{("n0", "primary"): 200, ("n0", "replica"): 503},
            **{("n1", "primary"): 503, ("n1", "replica"): 200},
        }
        # The slave's config/ stayed empty: a RocketMQ broker found no topics, groups or offsets.
        change(cluster, master, "PUT", "/v1/groups/shipping", {})
        moved = {"offsets": [{"topic": TOPIC, "queue": 0, "offset": 7}], "ack": "disk"}
        change(cluster, master, "POST", "/v1/groups/shipping/offsets", moved)
        wait_until(
            lambda: tables_of(cluster, "n1") == tables_of(cluster, master) is not None,
            "the slave's JSON files to say what the master's say",
        )
        wait_until(lambda: in_sync_by(cluster, "n1") == {"n0", "n1"}, "the slave to know the set")
        assert cluster.status("n1")["master"] == master
        status, body = send(cluster, "n1", "to the slave")
        assert (status, body["code"]) == (421, "not-master")
        wait_until(
            lambda: send(cluster, "n1", "to the slave")[1]["api"] == cluster.api_url(master),
            "the slave to name the master",
        )
        assert set(cluster.stop()["n1"].values()) == {0}


def test_a_lost_master_is_replaced_and_comes_back_as_a_slave(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        sent = [f"before {number}" for number in range(50)]
        for each in sent:
            assert send_acked(cluster, old, each) == REPLICATED
        epoch = cluster.epoch()
        killed_at = time.monotonic()
        cluster.kill(old)
        new = cluster.wait_master(other_than=old)
        took_s = time.monotonic() - killed_at
        print(f"lost node: a master again after {took_s:.2f} s")
        assert cluster.slot(new, Slot.EPOCH) > epoch
        assert send_acked(cluster, new, "alone") == ALONE
        status, refusal = send(cluster, new, "not alone", ack="replicated")
        assert (status, refusal["code"]) == (503, "not-enough-replicas")
        cluster.start(old)
        cluster.wait_in_sync()
        assert role(cluster, old) == NodeRole.FOLLOWER
        assert send_acked(cluster, new, "together") == REPLICATED
        wait_readable(cluster, new, {*sent, "alone", "together"})
        assert "not alone" not in bodies_at(cluster, new)
        cluster.compare_logs()


@pytest.mark.parametrize("service", ["broker", "ha"])
def test_a_service_of_the_master_that_is_killed_costs_an_epoch_and_no_message(
    tmp_path: Path, service: str
) -> None:
    """The same node leads, unless the service takes longer to start than the lease lasts."""
    with Cluster(tmp_path) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        assert send_acked(cluster, old, "before") == REPLICATED
        epoch = cluster.epoch()
        killed_at = time.monotonic()
        cluster.restart(old, service)
        wait_until(lambda: cluster.epoch() > epoch, "a new epoch")
        master = cluster.wait_master()
        took_s = time.monotonic() - killed_at
        print(f"killed {service}: {master}, it was {old}, serves after {took_s:.2f} s")
        cluster.wait_in_sync()
        assert send_acked(cluster, master, "after") == REPLICATED
        wait_readable(cluster, master, {"before", "after"})
        cluster.compare_logs()


def test_a_planned_switch_moves_the_master(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        send_acked(cluster, old, "before")
        (target,) = set(cluster.names) - {old}
        cluster.wait_fit()
        began_at = time.monotonic()
        status, body = cluster.command(old, "switchover", {"to": target})
        assert status == 200, body
        assert cluster.wait_master(other_than=old) == target
        print(f"planned switch: the new master serves after {time.monotonic() - began_at:.2f} s")
        cluster.wait_in_sync()
        assert send_acked(cluster, target, "after") == REPLICATED
        wait_readable(cluster, target, {"before", "after"})
        cluster.compare_logs()


def test_three_nodes_go_on_without_one(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, master)
        assert send_acked(cluster, master, "three") == {"level": "replicated", "copies": 3}
        slave = next(name for name in cluster.names if name != master)
        cluster.kill(slave)
        wait_until(
            lambda: cluster.slot(master, Slot.IN_SYNC_SIZE) == 2, "the lost slave to leave the set"
        )
        assert send_acked(cluster, master, "two") == REPLICATED
        cluster.start(slave)
        cluster.wait_in_sync()
        assert send_acked(cluster, master, "three again")["copies"] == 3
        wait_readable(cluster, master, {"three", "two", "three again"})
        cluster.compare_logs()


def test_a_master_that_is_stopped_hands_over_first(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        send_acked(cluster, old, "before")
        began_at = time.monotonic()
        assert cluster.nodes[old].stop("ha") == {"ha": 0}
        new = cluster.wait_master(other_than=old)
        took_s = time.monotonic() - began_at
        print(f"stopped ha: another master after {took_s:.2f} s")
        assert_handed_over(cluster, old, new)
        cluster.nodes[old].start("ha")
        cluster.wait_in_sync()
        assert send_acked(cluster, new, "after") == REPLICATED
        cluster.compare_logs()


def test_a_node_that_is_stopped_whole_leaves_no_gap(tmp_path: Path) -> None:
    """SIGTERM to all three processes at once, as the end of a pod is."""
    with Cluster(tmp_path) as cluster:
        cluster.start()
        old = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, old)
        send_acked(cluster, old, "before")
        began_at = time.monotonic()
        assert cluster.stop(old) == {old: {"ha": 0, "broker": 0, "reput": 0}}
        new = cluster.wait_master(other_than=old)
        took_s = time.monotonic() - began_at
        print(f"stopped node: another master after {took_s:.2f} s")
        assert_handed_over(cluster, old, new)
        cluster.start(old)
        cluster.wait_in_sync()
        assert send_acked(cluster, new, "after") == REPLICATED
        wait_readable(cluster, new, {"before", "after"})
        cluster.compare_logs()
