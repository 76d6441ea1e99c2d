"""A broker that ends hands the master role to another node first, if one can take it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from services.broker.log.term import GrantedTerm
from services.broker.replication import leaving
from shared.cluster import grant
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.runtime.doorbell import Doorbell
from tests.support.still_clock import StillClock
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble

EPOCH, NONCE, BOOT = 7, 99, (1, 2)


class Leaving:
    """A master that is asked to end at once."""

    def __init__(self, positions: Positions, *, copies: int, ha_beat_ms: int) -> None:
        self.clock = StillClock()
        self.rung: list[str] = []
        self.positions = positions
        deadline = self.clock.boot_ms() + 1000
        grant.grant(positions, epoch=EPOCH, nonce=NONCE, deadline_boot_ms=deadline, boot=BOOT)
        positions.publish(Slot.ROLE, NodeRole.MASTER)
        positions.publish(Slot.IN_SYNC_SIZE, copies)
        positions.publish(Slot.HA_HEARTBEAT_MS, self.clock.boot_ms() - ha_beat_ms)
        self.may_end = asyncio.Event()
        asked = asyncio.Event()
        asked.set()
        term = GrantedTerm(positions, self.clock, epoch=EPOCH, nonce=NONCE)
        self.task = asyncio.create_task(
            leaving.leave(asked, self.may_end, term, positions, cast(Doorbell, self), self.clock)
        )

    def ring(self, service: str) -> bool:
        self.rung.append(service)
        return True


@pytest.fixture
def positions(tmp_path: Path) -> Iterator[Positions]:
    page = Positions.open(OsDisk(), tmp_path / "checkpoint")
    yield page
    page.close()


async def test_ha_is_asked_to_switch_and_the_broker_waits_for_a_bounded_time(
    positions: Positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "WAIT_S", 0.05)
    left = Leaving(positions, copies=2, ha_beat_ms=100)
    await asyncio.sleep(0)
    assert positions.get(Slot.BROKER_TROUBLE) == Trouble.STOPPING
    assert left.rung == ["ha"]
    assert not left.may_end.is_set()
    await left.task  # no node took over
    assert left.may_end.is_set()


@pytest.mark.parametrize(
    ("copies", "ha_beat_ms", "role"),
    [
        (1, 100, NodeRole.MASTER),  # no node could take over
        (2, 5000, NodeRole.MASTER),  # no ha would order it
        (2, 100, NodeRole.PROMOTING),  # no client sends here yet
    ],
)
async def test_it_ends_at_once_when_no_switch_is_possible(
    positions: Positions, copies: int, ha_beat_ms: int, role: NodeRole
) -> None:
    left = Leaving(positions, copies=copies, ha_beat_ms=ha_beat_ms)
    positions.publish(Slot.ROLE, role)
    await left.task
    assert left.may_end.is_set()
    assert positions.get(Slot.BROKER_TROUBLE) == Trouble.NONE
