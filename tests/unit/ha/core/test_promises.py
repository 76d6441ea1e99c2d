"""Promises: on disk before anything of their epoch is processed."""

from __future__ import annotations

from services.ha.core.effects import PersistPromise
from services.ha.core.events import Done, Failed
from services.ha.core.own import Own
from services.ha.core.promises import RETRY_MS, Promises
from tests.unit.ha.core.test_campaign import replica


def written(own: Own) -> PersistPromise:
    (effect,) = own.out.take()
    assert isinstance(effect, PersistPromise)
    return effect


def test_a_promise_counts_once_it_is_on_disk() -> None:
    own, kept = replica(), list[str]()
    promises = Promises(own, 4, (4, 7))
    promises.promise(6, lambda: kept.append("six"))
    effect = written(own)
    assert (effect.promised, effect.seen_epoch, effect.seen_version) == (6, 4, 7)
    assert (promises.promised, promises.highest, promises.pending, kept) == (4, 6, True, [])
    own.out.answered(Done(effect.token))
    assert (promises.promised, promises.pending, kept) == (6, False, ["six"])


def test_what_is_promised_already_is_not_written_again() -> None:
    own, kept = replica(), list[str]()
    Promises(own, 4, (4, 7)).promise(4, lambda: kept.append("four"))
    assert own.out.take() == []
    assert kept == ["four"]


def test_one_write_at_a_time_and_the_next_one_has_all_that_came_meanwhile() -> None:
    own, kept = replica(), list[int]()
    promises = Promises(own, 4, (4, 7))
    promises.promise(5, lambda: kept.append(5))
    first = written(own)
    promises.promise(6, lambda: kept.append(6))
    promises.see((6, 8))
    assert own.out.take() == []
    own.out.answered(Done(first.token))
    assert kept == [5]
    second = written(own)
    assert (second.promised, second.seen_epoch, second.seen_version) == (6, 6, 8)
    own.out.answered(Done(second.token))
    assert kept == [5, 6]


def test_what_was_seen_never_goes_back() -> None:
    own = replica()
    promises = Promises(own, 4, (4, 7))
    promises.see((4, 6))
    promises.see((3, 99))
    assert own.out.take() == []


def test_a_promise_without_room_is_written_later_and_nobody_leads_meanwhile() -> None:
    own, kept = replica(), list[int]()
    promises = Promises(own, 4, (4, 7))
    promises.promise(5, lambda: kept.append(5))
    own.out.answered(Failed(written(own).token, "disk-full", "no room"))
    assert (promises.promised, kept) == (4, [])
    assert own.cannot_lead == "no room"
    assert own.paused_until_ms > own.now_ms
    own.out.take()
    promises.tick()
    assert own.out.take() == []
    own.now_ms += RETRY_MS
    promises.tick()
    own.out.answered(Done(written(own).token))
    assert (promises.promised, kept) == (5, [5])
    assert own.alarms == {}


def test_a_disk_that_fails_ends_the_process_and_anything_else_halts_the_replica() -> None:
    own = replica()
    promises = Promises(own, 4, (4, 7))
    promises.promise(5)
    own.out.answered(Failed(written(own).token, "flush-failed", "EIO"))
    assert own.ending is not None
    own.out.take()
    promises = Promises(own, 4, (4, 7))
    promises.promise(5)
    own.out.answered(Failed(written(own).token, "corrupt-record", "bad"))
    assert own.halted is not None


def test_the_first_promise_makes_the_volume_one_of_a_group() -> None:
    own = replica()
    own.initialised = False
    promises = Promises(own, 0, (0, 0))
    promises.see((1, 1))
    assert not own.initialised
    own.out.answered(Done(written(own).token))
    assert own.initialised
