"""Answers for load balancers, and for tools that stop nodes one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from services.ha.core.states import State
from services.ha.shell.probes import Probes
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from tests.support.still_clock import StillClock
from tidemark.formats.checkpoint import NodeRole, Slot

LEASE_MS = 8000


async def asked(probes: Probes, path: str) -> tuple[int, Any]:
    app = web.Application()
    app.add_routes(probes.routes())
    async with TestClient(TestServer(app)) as client, client.get(path) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("state", list(State))
async def test_a_node_without_the_lease_may_be_waited_for_until_it_is_in_sync(state: State) -> None:
    status, body = await asked(Probes(StillClock(), lambda: state), "/in-sync")
    assert status == (200 if state is State.IN_SYNC else 503)
    assert body == {"role": None, "state": state.value, "epoch": None}


async def test_a_master_is_in_sync_for_as_long_as_its_lease_lasts(tmp_path: Path) -> None:
    clock = StillClock()
    probes = Probes(clock, lambda: State.MASTER)
    positions = Positions.open(OsDisk(), tmp_path / "checkpoint")
    probes.open(positions)
    positions.publish(Slot.ROLE, NodeRole.MASTER)
    positions.publish(Slot.EPOCH, 7)
    positions.publish(Slot.LEASE_DEADLINE, clock.boot_ms() + LEASE_MS)
    assert await asked(probes, "/in-sync") == (
        200,
        {"role": "master", "state": "master", "epoch": 7},
    )
    assert (await asked(probes, "/primary"))[0] == 200
    assert (await asked(probes, "/replica"))[0] == 503
    positions.publish(Slot.LEASE_DEADLINE, clock.boot_ms())
    assert (await asked(probes, "/in-sync"))[0] == 503
    positions.close()
