"""Where the lease of a drill is, and what is lost with a machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills.families import all_drills
from drills.stage import DIRECTORY, ETCD, FAULTY_ETCD, KUBERNETES, GroupStage


def test_every_drill_can_have_its_lease_in_etcd_and_is_otherwise_the_same() -> None:
    expected = {DIRECTORY: ETCD, KUBERNETES: FAULTY_ETCD, ETCD: ETCD}
    for found in all_drills():
        moved = found.on_etcd()
        assert moved.needs.lease == expected[found.needs.lease]
        assert moved.needs._replace(lease=found.needs.lease) == found.needs
        assert (moved.name, moved.run) == (found.name, found.run)


@pytest.mark.parametrize("with_etcd", [True, False])
def test_a_machine_that_is_lost_takes_its_member_of_etcd_along(with_etcd: bool) -> None:
    calls: list[str] = []
    group, etcd = (
        SimpleNamespace(
            kill=lambda *names, which=which: calls.append(f"kill {which} {' '.join(names)}"),
            start=lambda *names, which=which: calls.append(f"start {which} {' '.join(names)}"),
        )
        for which in ("node", "etcd")
    )
    nothing = cast(Any, None)
    stage = GroupStage[Any](
        cast(Any, group),
        nothing,
        nothing,
        nothing,
        nothing,
        etcd=cast(Any, etcd) if with_etcd else None,
    )
    stage.kill_machines("n0", "n1")
    stage.start_machine("n1")
    of_etcd = {"kill etcd n0 n1", "start etcd n1"}
    everything = [
        "kill node n0",
        "kill node n1",
        "kill etcd n0 n1",
        "start etcd n1",
        "start node n1",
    ]
    assert calls == [call for call in everything if with_etcd or call not in of_etcd]
