"""The ring of deliveries: the batches that held a message, within bounds."""

from __future__ import annotations

from services.broker.groups.deliveries import Deliveries, Delivery


def batch(first: int, end: int, member: str = "m1") -> Delivery:
    return Delivery(first, end, member, generation=7, at_ms=1000)


def test_the_batches_that_held_a_message_are_found_oldest_first() -> None:
    ring = Deliveries()
    assert ring.note("g", ("t", 0), batch(0, 5)) == 0
    assert ring.note("g", ("t", 0), batch(5, 8)) == 0
    assert ring.note("g", ("t", 0), batch(3, 6, "m2")) == 3
    assert [each.member for each in ring.find("g", ("t", 0), 4)] == ["m1", "m2"]
    assert ring.find("g", ("t", 0), 8) == []
    assert ring.find("g", ("t", 1), 4) == []
    assert ring.find("other", ("t", 0), 4) == []


def test_old_batches_and_quiet_queues_are_forgotten() -> None:
    ring = Deliveries(queues_max=2, batches_per_queue_max=2)
    for first in range(3):
        ring.note("g", ("t", 0), batch(first, first + 1))
    assert ring.find("g", ("t", 0), 0) == []
    assert ring.find("g", ("t", 0), 1)
    ring.note("g", ("t", 1), batch(0, 1))
    ring.note("g", ("t", 0), batch(3, 4))
    ring.note("g", ("t", 2), batch(0, 1))
    assert ring.find("g", ("t", 1), 0) == []
    assert ring.find("g", ("t", 0), 3)
    ring.forget("g")
    assert ring.find("g", ("t", 0), 3) == []
