"""How far the clocks of a group's nodes are apart, as each ha shows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from tests.support.cluster import Cluster
from tests.support.node import wait_until

FAMILY: Final = "tidemark_ha_clock_skew_seconds"
APART_S: Final = 0.25
"""Two processes of one machine have one clock; a loaded one answers late."""


def test_each_node_shows_how_far_the_others_clocks_are_until_they_are_out_of_touch(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        cluster.wait_master()
        cluster.wait_in_sync()

        def skew(node: str, peer: str) -> float | None:
            return cluster.nodes[node].metric("ha", f'{FAMILY}{{peer="{peer}"}}')

        def is_small(node: str, peer: str) -> bool:
            found = skew(node, peer)
            return found is not None and abs(found) <= APART_S

        for node, peer in (("n0", "n1"), ("n1", "n0")):
            # The first that is known may be of an answer that came late.
            wait_until(partial(is_small, node, peer), "the skew to be small")
            assert skew(node, node) is None
        cluster.kill("n1")
        wait_until(lambda: skew("n0", "n1") is None, "what is not known any more to be left out")
