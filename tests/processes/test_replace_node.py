"""The master of a real group is replaced under load by one command, which is then repeated."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner, Result

from tests.processes.test_changed_nodes import Load, nodes_of, wait_nodes
from tests.processes.test_replication import make_topic, wait_readable
from tests.support.cluster import Cluster
from tidemark.cli.main import cli


def run(cluster: Cluster, at: str, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cluster", *arguments, "--url", cluster.api_url(at)])
    assert result.exit_code == 0, result.output
    return result


def test_a_master_is_replaced_under_load_and_history_has_the_times(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, later=("n2",), profile="default") as cluster:
        cluster.start("n0", "n1")
        old = cluster.wait_master()
        cluster.wait_in_sync("n0", "n1")
        make_topic(cluster, old)
        (other,) = {"n0", "n1"} - {old}
        address = f"n2={cluster.hosts['n2']}:{cluster.ports['n2']['replication']}"
        where = ("--api", cluster.api_url("n2"), "--admin", cluster.admin_url("n2"))
        load = Load(cluster)
        with load.running():
            cluster.start("n2")
            replaced = run(cluster, other, "replace-node", old, address, *where)
            wait_nodes(cluster, other, "n2")
        assert replaced.stderr.index("n2 is in sync") < replaced.stderr.index(f"{old} is removed")
        master = cluster.wait_master(other_than=old)
        again = run(cluster, other, "replace-node", old, address, *where)
        assert f"{old} is not a node of the group" in again.stderr
        assert sorted(nodes_of(cluster.status(master))) == sorted([other, "n2"])
        terms = json.loads(run(cluster, master, "history", "-o", "json").stdout)
        assert len(terms) >= 2
        assert terms[-1]["node"] == master
        for term, following in pairwise(terms):
            assert term["at_ms"] < term["until_ms"] == following["at_ms"]
        wait_readable(cluster, master, {body for _, body in load.acked})
