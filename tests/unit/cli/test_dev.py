from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidemark.cli.children import readable
from tidemark.cli.dev import (
    REPORT_AFTER_S,
    REPORT_EVERY_S,
    StartProgress,
    cluster_greeting,
    dev,
    greeting,
    group_greeting,
    not_ready,
)
from tidemark.cli.local_nodes import DevNode, Ports, local_cluster, local_etcd, local_nodes
from tidemark.errors import BadConfig, CannotListen, GroupStore
from tidemark.testing.ports import free_ports


def test_a_log_line_becomes_a_sentence_with_its_facts() -> None:
    line = {"time": "2026", "level": "warning", "service": "broker", "event": "slow-disk",
            "message": "the disk is slow", "path": "/x", "wait_ms": 7}  # fmt: skip
    text = readable(json.dumps(line).encode(), verbose=False)
    assert text == "warning: the disk is slow path=/x wait_ms=7"


def test_details_are_shown_only_on_request() -> None:
    line = json.dumps({"level": "info", "message": "listening"}).encode()
    assert readable(line, verbose=False) is None
    assert readable(line, verbose=True) == "info: listening"


@pytest.mark.parametrize("line", [b"Traceback (most recent call last):\n", b"[1, 2]\n", b"\xff\n"])
def test_a_text_that_is_no_log_line_is_shown_unchanged(line: bytes) -> None:
    assert readable(line, verbose=False) == line.decode("utf-8", "replace").rstrip()


def test_an_empty_line_is_not_shown() -> None:
    assert readable(b"\n", verbose=True) is None


def test_the_reason_for_not_being_ready_is_shown_with_progress() -> None:
    body = {"state": "recovering", "reasons": [{"code": "recovering", "detail": "walks the log"}],
            "recovery": {"done_bytes": 50, "total_bytes": 200, "eta_seconds": 3.2}}  # fmt: skip
    assert not_ready(json.dumps(body).encode()) == "walks the log; recovered 25 %, about 3 s left"
    body["recovery"] = {"done_bytes": 50, "total_bytes": 200, "eta_seconds": None}
    assert not_ready(json.dumps(body).encode()) == "walks the log; recovered 25 %"
    assert not_ready(b'{"state": "starting", "reasons": []}') == "starting"
    assert not_ready(b"<html>") == "<html>"


def test_the_greeting_names_every_address() -> None:
    node = DevNode("", Path("data"), Path("data/run"), "127.0.0.1", Ports.from_api(9000), {})
    text = greeting(node, 1.23)
    for part in (
        "http://127.0.0.1:9000/v1",
        ":9001/ready",
        ":9002/ready",
        "curl",
        "tidemark.connect",
    ):
        assert part in text
    assert "1.2 s" in text


def test_a_port_of_another_node_is_named() -> None:
    # A second `make run` said that it was ready: the node that answered was the first one.
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            CannotListen, match=rf"port {port} of 127\.0\.0\.1: Address already in use"
        ):
            Ports(port, 0, 0).check("127.0.0.1")
        with pytest.raises(CannotListen, match=f"port {port} "):
            Ports(0, 0, port).check("127.0.0.1")
    Ports(port, 0, 0).check("127.0.0.1")


def test_an_address_that_is_not_of_this_machine_is_named() -> None:
    with pytest.raises(CannotListen, match=r"port 0 of 192\.0\.2\.1: "):
        Ports(0, 0, 0).check("192.0.2.1")


def test_the_nodes_of_a_group_know_each_other_and_share_a_secret(tmp_path: Path) -> None:
    with local_nodes(tmp_path, "127.0.0.1", 9000, 2) as nodes:
        text = group_greeting(nodes, nodes[1], 2.0)
        names = [node.name for node in nodes]
        settings = [node.children(verbose=False)[2] for node in nodes]
    assert names == ["n0", "n1"]
    assert nodes[0].cluster == nodes[1].cluster
    assert nodes[0].cluster["nodes"] == ["n0=127.0.0.1:9004", "n1=127.0.0.1:9014"]
    assert [child.name for child in settings] == ["n0 ha", "n1 ha"]
    secret = Path(str(nodes[0].cluster["secret_file"]))
    assert len(secret.read_text()) == 64
    assert secret.stat().st_mode & 0o077 == 0
    for part in ("n1 is the master", "http://127.0.0.1:9010/v1/topics", ":9013/metrics"):
        assert part in text
    with local_nodes(tmp_path, "127.0.0.1", 9000, 2) as again:
        assert Path(str(again[0].cluster["secret_file"])).read_text() == secret.read_text()


def test_a_store_of_the_other_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "alone" / "commitlog").mkdir(parents=True)
    (tmp_path / "group" / "n0").mkdir(parents=True)
    with pytest.raises(GroupStore, match="--nodes 1"):
        local_nodes(tmp_path / "alone", "127.0.0.1", 9000, 2).__enter__()
    with pytest.raises(GroupStore, match="--nodes 2"):
        local_nodes(tmp_path / "group", "127.0.0.1", 9000, 1).__enter__()


def test_a_healthy_start_prints_no_reasons_for_waiting() -> None:
    # After two seconds a first start of a group printed "there is no store ... yet: check ...".
    progress = StartProgress(100.0)
    end = 100.0 + REPORT_AFTER_S
    assert not progress.is_due(end - 0.01)
    assert progress.is_due(end)
    assert not progress.is_due(end + REPORT_EVERY_S - 0.01)
    assert progress.is_due(end + REPORT_EVERY_S)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--etcd-endpoints", "http://e0:2379", "--nodes", "2"], "belongs to --lease etcd"),
        (["--lease", "etcd"], "add --nodes 2"),
    ],
)
def test_etcd_belongs_to_a_group_whose_lease_is_there(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(dev, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_without_etcd_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadConfig, match="etcd is not installed"):
        local_etcd(tmp_path, 9000)


def test_the_etcd_of_a_group_is_beside_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    port = free_ports(7)[0]
    etcd = local_etcd(tmp_path / "group", port)
    assert etcd.client_url == f"http://127.0.0.1:{port + 5}"
    assert etcd.data_dir == tmp_path / "group" / "etcd"
    with local_nodes(tmp_path / "group", "127.0.0.1", port, 2, (etcd.client_url,)) as nodes:
        assert nodes[0].cluster["etcd_endpoints"] == [etcd.client_url]
    with socket.create_server(("127.0.0.1", port + 5)), pytest.raises(CannotListen):
        local_etcd(tmp_path / "group", port)


def variables(node: DevNode, service: int = 0) -> dict[str, str]:
    return node.children(verbose=False)[service]._environment


def test_several_broker_groups_have_stores_ports_and_names_of_their_own(tmp_path: Path) -> None:
    with local_cluster(tmp_path, "127.0.0.1", 9000, groups=2, nodes=2, names=2) as cluster:
        text = cluster_greeting(cluster, [group[0] for group in cluster.groups], 2.0)
        nodes, names = cluster.nodes, cluster.names
        brokers = [variables(node) for node in nodes]
        services = [each.child(verbose=False)._environment for each in names]
        ha = variables(nodes[2], 2)
    assert [node.label for node in nodes] == ["g0 n0", "g0 n1", "g1 n0", "g1 n1"]
    assert [node.ports.api for node in nodes] == [9000, 9010, 9050, 9060]
    assert [node.store for node in nodes[2:]] == [tmp_path / "g1" / "n0", tmp_path / "g1" / "n1"]
    assert nodes[0].cluster["secret_file"] != nodes[2].cluster["secret_file"]
    assert [each.url for each in names] == ["http://127.0.0.1:9100", "http://127.0.0.1:9102"]
    assert {each["TIDEMARK_BROKER_NAMES_URLS"] for each in brokers} == {
        "http://127.0.0.1:9100,http://127.0.0.1:9102"
    }
    assert [each["TIDEMARK_BROKER_CLUSTER_GROUP"] for each in brokers] == ["g0", "g0", "g1", "g1"]
    assert (ha["TIDEMARK_HA_CLUSTER_GROUP"], ha["TIDEMARK_HA_CLUSTER_NODE"]) == ("g1", "n0")
    assert services[0]["TIDEMARK_NAMES_PEERS"] == "http://127.0.0.1:9102"
    assert services[0]["TIDEMARK_NAMES_GROUPS"] == "g0,g1"
    for part in ("2 broker groups of 2 nodes", "g1 n1", ":9102/v1/route", "/v1/route/orders"):
        assert part in text


def test_a_standalone_node_with_a_name_service_keeps_its_store_where_it_was(tmp_path: Path) -> None:
    with local_cluster(tmp_path, "127.0.0.1", 9000, groups=1, nodes=1, names=1) as cluster:
        (node,) = cluster.nodes
        found = variables(node)
    assert (node.store, node.label) == (tmp_path, "g0")
    assert found["TIDEMARK_BROKER_CLUSTER_GROUP"] == "g0"
    with local_cluster(tmp_path, "127.0.0.1", 9000, groups=1, nodes=1, names=0) as plain:
        assert plain.is_plain
        assert not any("NAMES" in name or "CLUSTER" in name for name in variables(plain.nodes[0]))


def test_stores_of_another_number_of_broker_groups_are_named(tmp_path: Path) -> None:
    (tmp_path / "one" / "n0").mkdir(parents=True)
    (tmp_path / "several" / "g0").mkdir(parents=True)
    with pytest.raises(GroupStore, match="--groups 1"):
        local_cluster(tmp_path / "one", "127.0.0.1", 9000, groups=2, nodes=2, names=0).__enter__()
    with pytest.raises(GroupStore, match="--groups 2"):
        local_cluster(
            tmp_path / "several", "127.0.0.1", 9000, groups=1, nodes=1, names=0
        ).__enter__()
