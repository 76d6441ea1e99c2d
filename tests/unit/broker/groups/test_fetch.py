"""Fetch: what a member gets of its queues, in which order, and how a wait ends."""

from __future__ import annotations

import asyncio
import errno

import pytest

from services.broker.groups.deliveries import Deliveries
from services.broker.groups.fetch import Fetched
from services.broker.read.pull import PullRequest
from shared.files.pull import PullResult
from tests.support.metrics import sample
from tests.unit.broker.groups.rig import GROUP, Rig, got
from tidemark.errors import DamagedFile, NotAssigned, NotServing, StaleGeneration

FAILURES = [DamagedFile("planted", "none"), OSError(errno.EMFILE, "planted"), MemoryError()]
ALL = [("orders", queue) for queue in range(4)]


async def held(rig: Rig, **arguments: object) -> asyncio.Task[Fetched]:
    """A fetch that waits."""
    task = asyncio.create_task(rig.fetch(wait_ms=20_000, **arguments))  # type: ignore[arg-type]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_queues_are_taken_in_turn(rig: Rig) -> None:
    for queue in range(4):
        rig.put(20, queue)
    await rig.join()
    answers = [got(await rig.fetch(count_max=5)) for _ in range(8)]
    for answer in answers:
        assert sum(map(len, answer.values())) == 5
    assert {queue for answer in answers[:4] for queue in answer} == set(range(4))
    assert {queue for answer in answers[4:] for queue in answer} == set(range(4))


async def test_queues_share_an_answer_so_that_none_waits_for_the_backlog_of_another(
    rig: Rig,
) -> None:
    for queue, count in enumerate((200, 200, 20, 200)):
        rig.put(count, queue)
    await rig.join()
    shares = {queue: len(offsets) for queue, offsets in got(await rig.fetch(count_max=128)).items()}
    # Queue 2 leaves a part of its share to those behind it.
    assert shares == {0: 32, 1: 32, 2: 20, 3: 44}


async def test_an_answer_ends_at_its_bytes_but_holds_one_message(rig: Rig) -> None:
    rig.put(5)
    await rig.join()
    assert got(await rig.fetch(bytes_max=1)) == {0: [0]}


async def test_a_held_fetch_is_woken_by_a_message_of_any_queue_once_it_is_dispatched(
    rig: Rig,
) -> None:
    await rig.join()
    await rig.fetch()
    waits = await held(rig)
    rig.append(1, 2)
    await asyncio.sleep(0)
    assert not waits.done()
    assert rig.puller.long_polls.expects
    rig.dispatch()
    assert got(await waits) == {2: [0]}
    assert sample(rig.registry, "tidemark_broker_long_polls") == 0


async def test_a_message_appended_before_the_fetch_and_dispatched_behind_it_wakes_it(
    rig: Rig,
) -> None:
    await rig.join()
    rig.append(1, 1)
    waits = await held(rig)
    rig.dispatch()
    assert got(await waits) == {1: [0]}


async def test_a_held_fetch_ends_after_its_time(rig: Rig) -> None:
    await rig.join()
    waits = asyncio.create_task(rig.fetch(wait_ms=1))
    await asyncio.sleep(0)
    rig.clock.now_ms += 1
    assert (await waits).pieces == []


async def test_a_held_fetch_ends_when_its_client_is_gone_or_the_node_stops(rig: Rig) -> None:
    rig.put(1)
    await rig.join()
    assert (await rig.fetch(wait_ms=1000, is_gone=True)).pieces == []
    assert got(await rig.fetch()) == {0: [0]}, "its place did not move for one who is gone"
    waits = await held(rig)
    rig.puller.long_polls.close()
    assert (await waits).pieces == []


async def test_a_later_fetch_of_the_member_ends_an_earlier_one(rig: Rig) -> None:
    await rig.join()
    first = await held(rig)
    second = await held(rig)
    assert (await first).pieces == []
    rig.put(1)
    assert got(await second) == {0: [0]}


# 1. m1's fetch is held in generation 1; 2. m2 leaves, and its queue is m1's in generation 2; 3. the
# fetch returns a message of it. m1 does not know that queue yet and discards the message, while its
# place in the queue stands behind it.
async def test_a_fetch_ends_with_a_new_generation_and_brings_nothing_of_it(rig: Rig) -> None:
    await rig.join("m1")
    await rig.join("m2", holding=set())
    await rig.join("m1", generation=rig.coordinator.generation(GROUP))
    generation = rig.coordinator.generation(GROUP)
    waits = await held(rig)
    rig.append(1, 3)
    rig.append(1, 0)
    rig.coordinator.leave(GROUP, "m2")
    rig.dispatch()
    answer = await waits
    assert answer.pieces == []
    assert generation is not None
    assert answer.generation > generation
    with pytest.raises(StaleGeneration):
        await rig.fetch(generation=generation)
    assert got(await rig.fetch(generation=answer.generation)) == {0: [0], 3: [0]}


async def test_a_fetch_brings_nothing_of_queues_that_it_pauses(rig: Rig) -> None:
    rig.put(2, 0)
    await rig.join()
    assert (await rig.fetch(paused=[ALL[0]])).pieces == []
    waiting = await held(rig, paused=[ALL[0]])
    rig.put(1, 0)
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.put(1, 1)
    assert got(await waiting) == {1: [0]}
    assert got(await rig.fetch(paused=[ALL[1]])) == {0: [0, 1, 2]}
    rig.put(1, 0)
    assert (await rig.fetch(paused=[ALL[0]])).pieces == []
    assert got(await rig.fetch()) == {0: [3]}


# 1. A member gives fetch 1 up and sends fetch 2 on another connection; 2. the broker reads fetch 2
# first; 3. fetch 1 took the next messages, and they came with the queue's next message, or never.
async def test_a_fetch_that_comes_after_a_later_one_moves_no_place(rig: Rig) -> None:
    rig.put(2)
    await rig.join(incarnation="a")
    assert got(await rig.fetch(count_max=1, sequence=2)) == {0: [0]}
    late = await rig.fetch(sequence=1, positions=[(("orders", 0), 0)], wait_ms=20_000)
    assert late.pieces == []
    assert got(await rig.fetch(sequence=2)) == {0: [1]}, "a repeated fetch is answered"
    waiting = await held(rig, sequence=3, paused=[ALL[1]])
    assert (await rig.fetch(sequence=2)).pieces == []
    rig.put(1, 1)
    await asyncio.sleep(0)
    assert not waiting.done(), "it goes on, and what it pauses stays paused"
    rig.put(1, 0)
    assert got(await waiting) == {0: [2]}


@pytest.mark.parametrize("incarnation", [None, "b"])
async def test_another_program_counts_its_fetches_from_the_beginning(
    rig: Rig, incarnation: str | None
) -> None:
    await rig.join(incarnation="a")
    await rig.fetch(sequence=7)
    rig.put(1)
    await rig.join(incarnation="a")
    assert (await rig.fetch(sequence=6)).pieces == [], "the same program has joined again"
    await rig.join(incarnation=incarnation)
    assert got(await rig.fetch(sequence=1)) == {0: [0]}


# 1. A program without an incarnation fetched up to sequence 500; 2. a program of the SDK joined
# under its name; 3. the broker took its fetches 1 to 499 for late ones and gave them nothing.
async def test_a_program_behind_one_without_an_incarnation_counts_from_the_beginning(
    rig: Rig,
) -> None:
    await rig.join()
    await rig.fetch(sequence=500)
    rig.put(2)
    await rig.join(incarnation="a")
    assert got(await rig.fetch(count_max=1, sequence=2)) == {0: [0]}
    generation = rig.coordinator.generation(GROUP)
    await rig.join(incarnation="a", generation=generation)
    assert (await rig.fetch(sequence=1)).pieces == [], "a heartbeat changes nothing of that"
    assert got(await rig.fetch(sequence=3)) == {0: [1]}


async def test_positions_say_where_to_go_on(rig: Rig) -> None:
    rig.put(5)
    await rig.join()
    await rig.fetch()
    assert got(await rig.fetch(positions=[(ALL[0], 2)])) == {0: [2, 3, 4]}
    with pytest.raises(NotAssigned):
        await rig.fetch(positions=[(("orders", 9), 0)])
    answer = await rig.fetch(positions=[(ALL[0], 99)])
    assert [(piece.result.status.value, piece.next_offset) for piece in answer.pieces] == [
        ("OFFSET_OVERFLOW_BADLY", 5)
    ]
    rig.put(1)
    assert got(await rig.fetch()) == {0: [5]}


async def test_below_the_minimum_the_new_start_is_reported_once_and_the_member_goes_on(
    rig: Rig,
) -> None:
    rig.put(5)
    rig.group()
    rig.offsets.accept(GROUP, {ALL[0]: 1})
    topic = rig.state.topics["orders"]
    rig.state.topics["orders"] = topic._replace(min_offsets={0: 3})
    await rig.join()
    (piece,) = (await rig.fetch()).pieces
    assert (piece.result.status.value, piece.from_offset, piece.next_offset) == (
        "OFFSET_TOO_SMALL",
        1,
        3,
    )
    assert got(await rig.fetch()) == {0: [3, 4]}


async def test_an_ordered_group_below_the_minimum_waits_for_no_commit_of_what_is_gone(
    rig: Rig,
) -> None:
    rig.put(5)
    rig.group(order=True)
    rig.offsets.accept(GROUP, {ALL[0]: 1})
    topic = rig.state.topics["orders"]
    rig.state.topics["orders"] = topic._replace(min_offsets={0: 3})
    await rig.join()
    assert got(await rig.fetch()) == {0: []}
    assert got(await rig.fetch()) == {0: [3, 4]}


async def test_a_commit_beyond_the_end_does_not_hide_the_next_messages(rig: Rig) -> None:
    rig.put(2)
    rig.group()
    rig.offsets.accept(GROUP, {ALL[0]: 50})
    await rig.join()
    (piece,) = (await rig.fetch()).pieces
    assert (piece.result.status.value, piece.next_offset) == ("OFFSET_OVERFLOW_BADLY", 2)
    assert rig.committed() == 2
    rig.put(1)
    assert got(await rig.fetch()) == {0: [2]}
    await rig.commit({ALL[0]: 3})
    assert rig.committed() == 3


async def test_an_ordered_groups_next_batch_waits_for_the_commit_of_the_last(rig: Rig) -> None:
    rig.group(order=True)
    rig.put(4)
    rig.put(1, 1)
    await rig.join()
    assert got(await rig.fetch(count_max=2)) == {0: [0, 1]}
    assert got(await rig.fetch(count_max=2)) == {1: [0]}
    waits = await held(rig, count_max=2)
    await rig.commit({ALL[0]: 1})
    rig.put(1)
    await asyncio.sleep(0)
    assert not waits.done(), "one of the two is not done yet"
    await rig.commit({ALL[0]: 2})
    assert got(await waits) == {0: [2, 3]}


async def test_an_ordered_queue_that_was_read_again_waits_for_what_was_read(rig: Rig) -> None:
    rig.group(order=True)
    rig.put(2)
    await rig.join()
    await rig.fetch()
    assert got(await rig.fetch(positions=[(ALL[0], 0)])) == {0: [0, 1]}
    assert (await rig.fetch(positions=[(ALL[0], 1)])).pieces == []
    await rig.commit({ALL[0]: 1})
    assert got(await rig.fetch()) == {0: [1]}


# A group that selects one tag of many seemed to lag forever: nothing that it could commit lay
# behind its last message.
async def test_messages_that_no_tag_takes_are_committed_once_those_before_them_are(
    rig: Rig,
) -> None:
    rig.put(3, tags="old")
    await rig.join(tags="new")
    waits = await held(rig)
    assert rig.committed() == 3
    rig.put(1, tags="new")
    assert got(await waits) == {0: [3]}
    rig.put(2, tags="old")
    answer = await rig.fetch()
    assert [(piece.from_offset, piece.next_offset) for piece in answer.pieces] == [(4, 6)]
    assert rig.committed() == 3, "message 3 is not done"
    await rig.commit({ALL[0]: 4})
    assert rig.committed() == 6


async def test_a_filtered_tail_of_a_batch_is_done_with_its_last_message(rig: Rig) -> None:
    for tags in ("new", "old", "new", "old", "old"):
        rig.put(1, tags=tags)
    rig.group(order=True)
    await rig.join(tags="new")
    assert got(await rig.fetch()) == {0: [0, 2]}
    rig.put(1, tags="new")
    assert (await rig.fetch()).pieces == []
    await rig.commit({ALL[0]: 3})
    assert rig.committed() == 5
    assert got(await rig.fetch()) == {0: [5]}


def fail(rig: Rig, monkeypatch: pytest.MonkeyPatch, queue: int, error: Exception) -> None:
    """Make every read of one queue fail."""
    look = rig.puller.read

    def failing(request: PullRequest) -> PullResult:
        if request.queue == queue and request.topic == "orders":
            raise error
        return look(request)

    monkeypatch.setattr(rig.puller, "read", failing)


# 1. A message comes while the node has no descriptor left for a moment, and the member's fetch
# fails; 2. its place in the queue was neither in line nor watched, and no later event put it there,
# not even the member's own position. The queue stalled for good, for a member that seemed healthy.
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("order", [False, True])
async def test_a_lack_of_descriptors_for_one_fetch_costs_no_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, order: bool, placed: bool
) -> None:
    rig.group(order=order)
    await rig.join()
    assert got(await rig.fetch()) == {}
    rig.put(2)
    rig.queues.forget()

    def refuse(*_: object, **__: object) -> object:
        raise OSError(errno.EMFILE, "planted")

    with monkeypatch.context() as patched:
        patched.setattr(type(rig.small.store.disk), "open", refuse)
        with pytest.raises(OSError, match="planted"):
            await rig.fetch()
    positions = [(queue, 0) for queue in ALL] if placed else []
    assert got(await rig.fetch(positions=positions)) == {0: [0, 1]}
    await rig.commit({ALL[0]: 2})
    waits = await held(rig)
    rig.put(1)
    assert got(await waits) == {0: [2]}


@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_messages_found_before_a_failure_are_returned_and_later_ones_follow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for queue in range(4):
        rig.put(2, queue)
    await rig.join()
    with monkeypatch.context() as patched:
        fail(rig, patched, 2, error)
        assert got(await rig.fetch()) == {0: [0, 1], 1: [0, 1]}
        with pytest.raises(type(error)):
            await rig.fetch()
        assert got(await rig.fetch()) == {3: [0, 1]}
        with pytest.raises(type(error)):
            await rig.fetch()
    assert got(await rig.fetch()) == {2: [0, 1]}
    assert (await rig.fetch()).pieces == []


async def test_a_failure_after_the_read_leaves_the_place_where_it_was(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.group(order=True)
    rig.put(2)
    await rig.join()

    def refuse(*_: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "note", refuse)
        with pytest.raises(MemoryError):
            await rig.fetch()
    assert got(await rig.fetch()) == {0: [0, 1]}


# 1. A member selects one tag of many, and its next message lies behind more others than one read
# covers; 2. another of its queues fails at every read; 3. the place had moved, the member learned
# only of the failure, sent its position again, and the same was read again, forever.
@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_messages_skipped_before_a_failure_are_reported_and_not_read_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig.put(2500, tags="old")
    rig.put(1, tags="new")
    await rig.join(tags="new")
    fail(rig, monkeypatch, 1, error)
    stands = dict.fromkeys(ALL, 0)
    is_placed, failures, found = True, 0, []
    for _ in range(20):
        positions = [] if is_placed else list(stands.items())
        try:
            fetched = await rig.fetch(positions=positions, wait_ms=1)
        except type(error):
            is_placed, failures = False, failures + 1
            continue
        is_placed = True
        for piece in fetched.pieces:
            assert piece.from_offset == stands[piece.queue], "a gap"
            stands[piece.queue] = piece.next_offset
        found += got(fetched).get(0, [])
    assert found == [2500]
    assert failures > 5


async def test_messages_skipped_before_the_role_changes_are_read_again(rig: Rig) -> None:
    rig.put(2500, tags="old")
    rig.put(1, tags="new")
    await rig.join(tags="new")

    def refuse() -> None:
        assert rig.coordinator.place_of(GROUP, ALL[0]) != (0, 0)
        raise NotServing("the lease is over.", "Ask another node.")

    with pytest.raises(NotServing):
        await rig.fetch(wait_ms=1000, check_reads=refuse)
    assert rig.coordinator.place_of(GROUP, ALL[0]) == (0, 0)
    assert got(await rig.fetch(wait_ms=1000)) == {0: [2500]}


async def test_a_blocked_place_that_is_named_where_it_stands_stays_blocked(rig: Rig) -> None:
    rig.group(order=True)
    rig.put(4)
    await rig.join()
    assert got(await rig.fetch(count_max=2)) == {0: [0, 1]}
    assert (await rig.fetch(positions=[(ALL[0], 2)])).pieces == []
    waits = await held(rig, positions=[(ALL[0], 2)])
    await rig.commit({ALL[0]: 2})
    assert got(await waits) == {0: [2, 3]}


async def test_deliveries_are_remembered_and_redeliveries_counted(rig: Rig) -> None:
    rig.put(3)
    joined = await rig.join()
    await rig.fetch()
    (delivery,) = rig.coordinator.deliveries(GROUP, "orders", 0, 1)
    assert (delivery.first, delivery.end, delivery.member) == (0, 3, "m1")
    assert delivery.generation == joined.generation
    assert rig.coordinator.deliveries(GROUP, "orders", 0, 3) == []
    assert rig.coordinator.in_flight(GROUP)[ALL[0]] == 3
    await rig.fetch(positions=[(ALL[0], 1)])
    name = "tidemark_group_redelivered_messages_total"
    labels = {"group": GROUP, "topic": "orders"}
    assert sample(rig.registry, name, labels) == 2


# 1. The group is at the end of a queue; 2. reput finds the queue's files damaged and rebuilds them
# from the log's start; 3. the member is replaced. The visible part ended far before the commit, so
# the commit went back to there, and everything behind it was delivered again.
async def test_a_queue_that_is_being_made_again_takes_no_commit_back(rig: Rig) -> None:
    rig.put(5)
    early = rig.dispatched
    rig.put(5)
    await rig.join("m1")
    await rig.fetch("m1")
    await rig.commit({ALL[0]: 10}, member="m1")
    rig.dispatched = early
    rig.coordinator.leave(GROUP, "m1")
    await rig.join("m2")
    waits = await held(rig, member="m2")
    assert rig.committed() == 10
    rig.put(1)
    assert got(await waits) == {0: [10]}


# 1. A member's machine loses its power, its fetch is held: no connection was closed; 2. it joins
# again under its name, and nothing moves; 3. a message was given to the old fetch and lost, and the
# next one's commit covered it.
async def test_a_member_that_joins_again_loses_no_message_to_its_old_fetch(rig: Rig) -> None:
    await rig.join()
    old = await held(rig)
    await rig.join()
    rig.put(1)
    assert (await old).pieces == []
    assert got(await rig.fetch()) == {0: [0]}


# 1. A member selects one tag of many, and its next message lies behind more others than one read
# covers; 2. its fetch read twice, and returned only the result of the second read; 3. the client
# stood before the first, saw a gap, and asked for the same again, forever.
async def test_an_answer_begins_where_the_fetch_did_however_much_was_passed_over(rig: Rig) -> None:
    rig.put(2500, tags="old")
    rig.put(1, tags="new")
    await rig.join(tags="new")
    (piece,) = (await rig.fetch(wait_ms=1000)).pieces
    assert (piece.from_offset, piece.next_offset) == (0, 2501)
    waits = await held(rig)
    rig.put(1, tags="old")
    await asyncio.sleep(0)
    rig.put(1, tags="new")
    (piece,) = (await waits).pieces
    assert (piece.from_offset, piece.next_offset) == (2501, 2503)


@pytest.mark.parametrize("order", [False, True])
async def test_places_move_back_when_a_response_cannot_be_sent(rig: Rig, order: bool) -> None:
    rig.group(order=order)
    rig.put(3)
    rig.put(2, 1)
    await rig.join()
    fetched = await rig.fetch()
    assert got(fetched) == {0: [0, 1, 2], 1: [0, 1]}
    fetched.take_back()
    assert got(await rig.fetch()) == got(fetched)


async def test_a_fetch_that_cannot_be_held_says_when_to_come_again(rig: Rig) -> None:
    await rig.join()
    others = [rig.puller.place() for _ in range(10)]
    for other in others:
        other.__enter__()
    first, second = await rig.fetch(wait_ms=20_000), await rig.fetch(wait_ms=20_000)
    assert (first.pieces, second.pieces) == ([], [])
    assert first.poll_after_ms is not None
    assert second.poll_after_ms is not None
    assert 100 <= first.poll_after_ms <= second.poll_after_ms <= 20_000
    assert (await rig.fetch(wait_ms=7)).poll_after_ms == 7
    assert (await rig.fetch()).poll_after_ms is None  # it did not ask to be held
    rig.put(1)
    found = await rig.fetch(wait_ms=20_000)
    assert (got(found), found.poll_after_ms) == ({0: [0]}, None)
    others.pop().__exit__(None, None, None)
    waiting = await held(rig)
    rig.append(1, 2)
    rig.dispatch()
    assert (await waiting).poll_after_ms is None
    for other in others:
        other.__exit__(None, None, None)
