"""A node that was granted an epoch reports what it waits for until it serves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from services.broker.replication import group_leadership as module
from services.broker.replication.group_leadership import GroupLeadership
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.unit.broker.replication.page import Page
from tidemark.formats.checkpoint import BrokerPhase, Slot
from tidemark.offsets import PhysicalOffset

END = 1000
DISPATCHED = 400


def reasons(health: Health) -> list[str]:
    return [reason.detail for reason in health.reasons if reason.code == "catching-up"]


class Followed:
    """The state; it records the readiness reasons of the time at which it was read."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.heard: list[str] = []

    def to_end(self, *_: int) -> None:
        self.heard = reasons(self._health)


def leadership(
    health: Health, page: Page, followed: Followed, *, stop: asyncio.Event | None = None
) -> GroupLeadership:
    recovered = SimpleNamespace(next_queue_offsets={}, end=END, walked_bytes=0, generation=1)
    store = SimpleNamespace(
        positions=page,
        take_append_lock=lambda: True,
        recover_for_term=lambda _: recovered,
        dispatch_is_known=True,
        dispatched=DISPATCHED,
    )

    async def healed(read: Any, _: Any) -> None:
        await read()

    log_context = SimpleNamespace(
        start_appender=lambda: None, unit_checks=SimpleNamespace(healed=healed)
    )
    context = SimpleNamespace(
        broker=SimpleNamespace(doorbell=SimpleNamespace(ring=lambda _: None), health=health),
        gate=SimpleNamespace(open_as=lambda _: None, take_role=lambda _: None, shut=lambda: None),
        metrics=SimpleNamespace(),
    )
    parts: dict[str, Any] = {
        "context": context,
        "term": SimpleNamespace(epoch=2, is_valid=True, is_master=True),
        "make_log_context": lambda _: log_context,
        "store": store,
        "followed": followed,
        "stop": asyncio.Event() if stop is None else stop,
    }
    return GroupLeadership(**parts, afterwards=cast(Any, None))


def test_the_bytes_left_are_reported_until_the_gate_is_open(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "build_with", lambda *_: None)
    health, page = Health(SystemClock()), Page()
    followed = Followed(health)
    lead = leadership(health, page, followed)

    asyncio.run(lead.recover_and_build(asyncio.Event()))
    bytes_left = "reput has dispatched 400 of 1000 bytes, 600 are left"
    assert followed.heard == [f"the state is read to the log's end; {bytes_left}"]
    assert reasons(health) == followed.heard  # the state is read, the gate is not open

    flusher = SimpleNamespace(hurry=lambda: None)
    behind = cast(Any, SimpleNamespace(dispatched=lambda: DISPATCHED, flusher=flusher))
    end = PhysicalOffset(END)
    lead.recorded(behind, end)
    assert page.get(Slot.EPOCH_RECORD_END) == END
    assert not lead.is_confirmed(behind, end)
    assert reasons(health) == [bytes_left]

    lead.open()
    assert reasons(health) == []
    assert page.get(Slot.BROKER_STATE) == BrokerPhase.SERVING


def test_a_node_is_not_ready_any_more_once_its_reads_are_refused() -> None:
    # It showed `serving` until the last sync had ended: for seconds if the disk hung.
    health = Health(SystemClock())
    lead = leadership(health, Page(), Followed(health))
    lead.open()
    assert health.ready
    lead.shut()
    assert (health.ready, health.state) == (False, "starting")


def test_a_master_that_is_stopped_shows_that_it_stops() -> None:
    # It showed `starting`, as a master that becomes a slave does; a standalone node showed
    # `stopping`.
    health, stop = Health(SystemClock()), asyncio.Event()
    lead = leadership(health, Page(), Followed(health), stop=stop)
    lead.open()
    stop.set()
    assert health.ready, "it serves until another node is the master"
    lead.shut()
    assert (health.ready, health.state) == (False, "stopping")
