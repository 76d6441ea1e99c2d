"""The simulated page: a plain function of the product is stopped between two of its accesses."""

from __future__ import annotations

from random import Random

from shared.cluster import grant
from tests.simulation.replication.page import Page, step_by_step
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tidemark.formats.checkpoint import NodeRole, Slot

BOOT = (1, 2)


def always_interrupted() -> Process:
    return Process(Timeline(0), "ha", preemption=1.0)


def granted_page() -> Page:
    page = Page(Random(0))
    grant.grant(page, epoch=3, nonce=7, deadline_boot_ms=100, boot=BOOT)
    return page


def test_others_see_every_state_between_the_stores_of_a_fence() -> None:
    page, seen = granted_page(), []
    for _ in step_by_step(always_interrupted(), page, grant.fence):
        seen.append(tuple(map(page.get, (Slot.FENCED, Slot.GRANTED_TO, Slot.ROLE))))
    promoting, void = NodeRole.PROMOTING, NodeRole.VOID
    assert seen == [(1, 7, promoting), (1, 0, promoting), (1, 0, void), (1, 0, void)]
    assert page.get(Slot.LEASE_DEADLINE) == 0


def test_a_grant_that_ends_while_it_is_read_is_none() -> None:
    # Whatever the access behind which ha fences: the broker is granted the epoch only if all that
    # it loaded was loaded before.
    for interrupted_after in range(12):
        page, result = granted_page(), None
        reading = step_by_step(
            always_interrupted(),
            page,
            lambda slots: grant.granted(slots, nonce=7, boot=BOOT, served=0),
        )
        accesses = 0
        while True:
            try:
                next(reading)
            except StopIteration as end:
                result = end.value
                break
            accesses += 1
            if accesses == interrupted_after + 1:
                grant.fence(page)
        assert result == (3 if interrupted_after + 1 >= accesses else None)


def test_a_call_that_is_not_interrupted_is_one_step() -> None:
    page = granted_page()
    calm = Process(Timeline(0), "ha", preemption=0.0)
    steps = list(step_by_step(calm, page, grant.fence))
    assert steps == [0]
    assert page.get(Slot.FENCED) == 1
