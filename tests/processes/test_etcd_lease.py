"""A group of real nodes whose lease is in a real etcd that fails, as a whole and in part."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tidemark as sdk
from drills.etcd_cluster import EtcdCluster
from tests.support.cluster import Cluster
from tests.support.etcd import local_etcd
from tests.support.node import wait_until

KEY: Final = "/tidemark/test-g0"


def revision(etcd: EtcdCluster) -> int:
    found = etcd.read(KEY)
    return 0 if found is None else int(found["mod_revision"])


def test_a_group_outlives_every_loss_of_etcd_and_has_one_master_at_a_time(tmp_path: Path) -> None:
    with (
        local_etcd(tmp_path / "etcd", 3) as etcd,
        # The long profile: an election of etcd takes 1 to 2 s, and more on a busy machine.
        Cluster(tmp_path / "group", profile="long", cluster=etcd.settings) as cluster,
    ):
        etcd.wait_serving()
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        epoch = cluster.epoch()
        urls = [cluster.api_url(name) for name in cluster.names]
        with sdk.connect_sync(urls) as mq:
            mq.create_topic("orders", queues=1)
            mq.send("orders", b"before")

            # Without its leader, etcd elects another; the term goes on.
            leader = etcd.leader()
            etcd.kill(leader)
            renewed = revision(etcd)
            wait_until(lambda: revision(etcd) > renewed + 1, "renewals without the leader", 60)
            assert (cluster.epoch(), cluster.serving()) == (epoch, master)
            etcd.start(leader)
            etcd.wait_serving()

            # Without a quorum no other node may be elected, and the master stops before one could.
            etcd.kill("e0", "e1")
            wait_until(lambda: cluster.serving() is None, "the master to stop", 60)
            alarms = cluster.status(master)["alarms"]
            assert [alarm["code"] for alarm in alarms] == ["lease-unavailable"]
            etcd.start("e0", "e1")
            etcd.wait_serving()
            cluster.wait_master()
            assert cluster.epoch() > epoch
            mq.send("orders", b"after the quorum")
            cluster.wait_in_sync()
            epoch = cluster.epoch()

            # Without its data, the members agree on the next epoch, and the master creates it.
            etcd.lose_data()
            wait_until(lambda: revision(etcd) > 0, "the lease to be created again", 60)
            cluster.wait_master()
            assert cluster.epoch() > epoch
            mq.send("orders", b"after the data")
        cluster.wait_in_sync()
        cluster.compare_logs()


def test_a_password_that_is_wrong_is_an_alarm_with_its_remedy(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    with local_etcd(tmp_path / "etcd") as etcd:
        etcd.wait_serving()
        etcd.require_user("ha", "right")
        settings = etcd.settings | {"etcd_user": "ha", "etcd_password_file": str(password)}
        with Cluster(tmp_path / "group", cluster=settings) as cluster:
            cluster.start()

            def remedy_is_given() -> bool:
                alarms = cluster.status("n0").get("alarms") or []
                return any(
                    alarm["code"] == "lease-unavailable"
                    and "correct `cluster.etcd_user`, or the password" in alarm["detail"]
                    for alarm in alarms
                )

            wait_until(remedy_is_given, "an alarm with the remedy", 60)
            assert cluster.serving() is None
            # The file is read with each login: a corrected one needs no restart.
            password.write_text("right")
            cluster.wait_master()
