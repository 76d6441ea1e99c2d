"""Promises: on disk before anything of their epoch is processed."""

from __future__ import annotations

from services.ha.core.effects import Effect, PersistPromise, Send
from services.ha.core.events import Done, Failed, Received
from services.ha.core.promises import RETRY_MS, Promises
from services.ha.core.replica_context import ReplicaContext
from services.ha.wire import payloads
from services.ha.wire.frames import Frame, FrameType
from services.ha.wire.payloads import Promise, PromisePurpose
from tests.unit.ha.core.test_campaign import replica
from tests.unit.ha.group import grown


def written(context: ReplicaContext) -> PersistPromise:
    (effect,) = context.out.take()
    assert isinstance(effect, PersistPromise)
    return effect


def test_a_promise_counts_once_it_is_on_disk() -> None:
    context, kept = replica(), list[str]()
    promises = Promises(context, 4, (4, 7))
    promises.promise(6, lambda: kept.append("six"))
    effect = written(context)
    assert (effect.promised, effect.seen_epoch, effect.seen_version) == (6, 4, 7)
    assert (promises.promised, promises.highest, promises.pending, kept) == (4, 6, True, [])
    context.out.answered(Done(effect.token))
    assert (promises.promised, promises.pending, kept) == (6, False, ["six"])


def test_what_is_promised_already_is_not_written_again() -> None:
    context, kept = replica(), list[str]()
    Promises(context, 4, (4, 7)).promise(4, lambda: kept.append("four"))
    assert context.out.take() == []
    assert kept == ["four"]


def test_one_write_at_a_time_and_the_next_one_has_all_that_came_meanwhile() -> None:
    context, kept = replica(), list[int]()
    promises = Promises(context, 4, (4, 7))
    promises.promise(5, lambda: kept.append(5))
    first = written(context)
    promises.promise(6, lambda: kept.append(6))
    promises.see((6, 8))
    assert context.out.take() == []
    context.out.answered(Done(first.token))
    assert kept == [5]
    second = written(context)
    assert (second.promised, second.seen_epoch, second.seen_version) == (6, 6, 8)
    context.out.answered(Done(second.token))
    assert kept == [5, 6]


def test_what_was_seen_never_goes_back() -> None:
    context = replica()
    promises = Promises(context, 4, (4, 7))
    promises.see((4, 6))
    promises.see((3, 99))
    promises.write()
    assert context.out.take() == []


def test_a_promise_without_room_is_written_later_and_no_node_leads_meanwhile() -> None:
    context, kept = replica(), list[int]()
    promises = Promises(context, 4, (4, 7))
    promises.promise(5, lambda: kept.append(5))
    context.out.answered(Failed(written(context).token, "disk-full", "no room"))
    assert (promises.promised, kept) == (4, [])
    assert context.cannot_lead == "no room"
    assert context.paused_until_ms > context.now_ms
    context.out.take()
    promises.tick()
    assert context.out.take() == []
    context.now_ms += RETRY_MS
    promises.tick()
    context.out.answered(Done(written(context).token))
    assert (promises.promised, kept) == (5, [5])
    assert context.alarms == {}


def test_a_disk_that_fails_ends_the_process_and_anything_else_halts_the_replica() -> None:
    context = replica()
    promises = Promises(context, 4, (4, 7))
    promises.promise(5)
    context.out.answered(Failed(written(context).token, "flush-failed", "EIO"))
    assert context.ending is not None
    context.out.take()
    promises = Promises(context, 4, (4, 7))
    promises.promise(5)
    context.out.answered(Failed(written(context).token, "corrupt-record", "bad"))
    assert context.halted is not None


def test_a_won_lease_and_the_promise_of_its_epoch_are_one_write() -> None:
    context = replica()
    promises = Promises(context, 4, (4, 7))
    promises.see((5, 8))
    promises.promise(5)
    promises.write()
    effect = written(context)
    assert (effect.promised, effect.seen_epoch, effect.seen_version) == (5, 5, 8)
    context.out.answered(Done(effect.token))
    assert context.out.take() == []


def test_the_first_promise_makes_the_volume_one_of_a_group() -> None:
    context = replica()
    context.initialised = False
    promises = Promises(context, 0, (0, 0))
    promises.see((1, 1))
    promises.write()
    assert not context.initialised
    context.out.answered(Done(written(context).token))
    assert context.initialised


def test_a_frame_of_a_still_higher_epoch_is_handled_before_those_that_came_after_it() -> None:
    # It was lost if other frames had waited behind it.
    group = grown()
    slave = group["c"]
    assert slave.replica is not None
    (link,) = [link for link, peer in slave.replica.peers.incoming.items() if peer.peer.node == "b"]
    candidate = group["b"].context.holder
    promise = Promise(PromisePurpose.NEW_TERM, candidate)
    sent: list[Frame] = []
    carry_out = slave.carry_out

    def noting(effect: Effect) -> None:
        if isinstance(effect, Send) and effect.link == link:
            sent.append(effect.frame)
        carry_out(effect)

    slave.carry_out = noting  # type: ignore[method-assign]
    for epoch in (5, 7, 7):
        slave.post(Received(link, payloads.frame(epoch, promise)))
    group.run(20)
    answers = [frame.epoch for frame in sent if frame.type is FrameType.PROMISE_OK]
    assert answers == [5, 7, 7]
