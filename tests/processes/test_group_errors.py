"""A service of a group that cannot go on ends at once, so that its supervisor restarts it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.node import GROUP_ROLES, wait_until


def test_services_whose_page_was_replaced_end_and_their_next_start_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        cluster.wait_in_sync()
        master = cluster.wait_master()
        node = cluster.nodes[master]
        page = node.store_dir / "checkpoint"
        copy = tmp_path / "checkpoint"
        shutil.copyfile(page, copy)
        copy.replace(page)
        wait_until(
            lambda: not any(node.is_alive(role) for role in GROUP_ROLES),
            "all services of the node to end",
        )
        # No part had to be given up because it did not notice the end of the others.
        for role in GROUP_ROLES:
            assert '"part-late"' not in node.log_text(role)
        cluster.start(master)
        cluster.wait_in_sync()
        cluster.compare_logs()
