"""Groups that read batch queues: whole batches are handed out, single messages are committed."""

from __future__ import annotations

from typing import Any

from services.broker.api.fetch_answers import answer_map
from services.broker.groups.fetch import Fetched
from tests.support.metrics import sample
from tests.unit.broker.groups.rig import GROUP, Rig
from tests.unit.broker.groups.test_views import Shown
from tidemark.formats.batch import WireMessage

QUEUE = ("orders", 0)
OLD, NEW = (WireMessage(tag, b"TAGS\x01" + tag + b"\x02") for tag in (b"old", b"new"))


def shown(rig: Rig, fetched: Fetched) -> list[dict[str, Any]]:
    """The messages of queue 0 in a decoded answer."""
    answer = answer_map(fetched, rig.puller.checks_at, json_body=True)
    queues = answer["queues"]
    assert isinstance(queues, list)
    return [message for queue in queues for message in queue["messages"].values]


def steps(fetched: Fetched) -> list[tuple[int, int, int]]:
    """From and next offset of each piece, and its number of messages."""
    return [
        (piece.from_offset, piece.next_offset, piece.result.message_count)
        for piece in fetched.pieces
    ]


async def test_a_batch_is_handed_out_whole_and_the_place_is_after_it(rig: Rig) -> None:
    rig.put_batch([b"0", b"1", b"2"])
    rig.put_batch([b"3", b"4"])
    await rig.join()
    first = await rig.fetch(count_max=1)
    assert steps(first) == [(0, 3, 3)]
    assert [each["body_text"] for each in shown(rig, first)] == ["0", "1", "2"]
    assert steps(await rig.fetch(count_max=1)) == [(3, 5, 2)]
    assert (await rig.fetch()).pieces == []


async def test_a_decoded_answer_ends_within_a_batch_of_too_many_messages(rig: Rig) -> None:
    rig.put_batch([b"0", b"1"])
    rig.put_batch([b"%d" % number for number in range(2, 100)])
    await rig.join()
    found: list[tuple[int, int, int]] = []
    offsets: list[int] = []
    for count_max in (1, 64, 64):
        fetched = await rig.fetch(count_max=count_max, divides_batches=True)
        found += steps(fetched)
        offsets += [each["queue_offset"] for each in shown(rig, fetched)]
    assert found == [(0, 1, 1), (1, 65, 64), (65, 100, 35)]
    assert offsets == list(range(100))
    labels = {"group": GROUP, "topic": "orders"}
    assert not sample(rig.registry, "tidemark_group_redelivered_messages_total", labels)


async def test_a_divided_batch_of_an_ordered_queue_goes_on_after_the_commit(rig: Rig) -> None:
    rig.group(order=True)
    rig.put_batch([OLD] * 40, tags="old")
    rig.put_batch([NEW] * 30, tags="new")
    await rig.join(tags="new")
    fetched = await rig.fetch(count_max=16, divides_batches=True)
    assert steps(fetched) == [(0, 56, 16)]
    assert [each["queue_offset"] for each in shown(rig, fetched)] == list(range(40, 56))
    await rig.commit({QUEUE: 55})
    assert (await rig.fetch(divides_batches=True)).pieces == []
    await rig.commit({QUEUE: 56})
    assert steps(await rig.fetch(count_max=16, divides_batches=True)) == [(56, 70, 14)]


async def test_a_member_that_takes_over_goes_on_inside_a_batch(rig: Rig) -> None:
    rig.put_batch([b"0", b"1", b"2"])
    await rig.join()
    await rig.fetch()
    await rig.commit({QUEUE: 2})
    assert rig.committed() == 2
    rig.coordinator.leave(GROUP, "m1")
    await rig.join("m2")
    fetched = await rig.fetch("m2")
    assert steps(fetched) == [(2, 3, 1)]
    assert [each["queue_offset"] for each in shown(rig, fetched)] == [2]
    members = [
        [delivery.member for delivery in rig.coordinator.deliveries(GROUP, *QUEUE, offset)]
        for offset in (1, 2)
    ]
    assert members == [["m1"], ["m1", "m2"]]


async def test_a_position_inside_a_batch_is_where_a_member_goes_on(rig: Rig) -> None:
    rig.put_batch([b"0", b"1", b"2"])
    await rig.join()
    await rig.fetch()
    again = await rig.fetch(positions=[(QUEUE, 1)])
    assert [each["queue_offset"] for each in shown(rig, again)] == [1, 2]
    labels = {"group": GROUP, "topic": "orders"}
    assert sample(rig.registry, "tidemark_group_redelivered_messages_total", labels) == 2


async def test_an_ordered_queue_is_blocked_until_all_of_a_batch_is_committed(rig: Rig) -> None:
    rig.group(order=True)
    rig.put_batch([b"0", b"1"])
    rig.put_batch([b"2"])
    await rig.join()
    assert steps(await rig.fetch(count_max=1)) == [(0, 2, 2)]
    await rig.commit({QUEUE: 1})
    assert (await rig.fetch()).pieces == []
    await rig.commit({QUEUE: 2})
    assert steps(await rig.fetch()) == [(2, 3, 1)]


async def test_people_get_the_messages_with_their_tags_of_mixed_batches(rig: Rig) -> None:
    rig.put_batch([OLD, NEW, OLD, NEW])
    await rig.join(tags="new")
    fetched = await rig.fetch()
    assert [(each["queue_offset"], each["tags"]) for each in shown(rig, fetched)] == [
        (1, "new"),
        (3, "new"),
    ]


# The place would count as not done until the excluded messages behind were committed, which no
# member ever sees.
async def test_excluded_batches_behind_those_handed_out_need_no_commit(rig: Rig) -> None:
    rig.group(order=True)
    rig.put_batch([NEW, NEW], tags="new")
    rig.put_batch([OLD], tags="old")
    rig.put_batch([NEW], tags="new")
    rig.put_batch([OLD, OLD], tags="old")
    await rig.join(tags="new")
    assert steps(await rig.fetch()) == [(0, 6, 3)]
    rig.put_batch([NEW], tags="new")
    await rig.commit({QUEUE: 3})
    assert (await rig.fetch()).pieces == []
    await rig.commit({QUEUE: 4})
    assert rig.committed() == 6
    assert steps(await rig.fetch()) == [(6, 7, 1)]


async def test_lag_counts_messages_and_the_bytes_of_whole_batches(rig: Rig) -> None:
    made = Shown(rig)
    rig.put_batch([b"0", b"1", b"2"], 3)
    second_ms = rig.small.now_ms
    rig.put_batch([b"3"] * 40, 3)
    made.commit(4, 1, 0, 1)
    sizes = [unit.size for unit in rig.queues.get("orders", 3).units(0, 9, rig.dispatched)]
    found = await made.queue(3)
    assert (found["messages"], found["bytes"], found["max_offset"]) == (42, sum(sizes), 43)
    made.commit(4, 1, 0, 3)
    found = await made.queue(3)
    age_ms = rig.clock.wall_ms() - second_ms - 1
    assert (found["messages"], found["bytes"], found["seconds"]) == (40, sizes[1], age_ms / 1000)
    made.commit(4, 1, 0, 43)
    found = await made.queue(3)
    assert (found["messages"], found["bytes"], found["seconds"]) == (0, 0, 0.0)
