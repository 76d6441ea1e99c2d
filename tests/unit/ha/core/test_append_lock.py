"""Owner of the append lock within a node, in one term."""

from __future__ import annotations

from services.ha.core.append_lock import AppendLock
from services.ha.core.effects import ReleaseAppendLock, TakeAppendLock
from services.ha.core.events import Done
from services.ha.core.replica_context import ReplicaContext
from tests.unit.ha.core.test_campaign import replica


def given() -> tuple[ReplicaContext, AppendLock, list[str], int]:
    """Return a lock whose release is requested, and not known to be done yet."""
    context, happened = replica(), list[str]()
    lock = AppendLock(context)
    lock.give(lambda: happened.append("free"))
    (release,) = context.out.take()
    assert isinstance(release, ReleaseAppendLock)
    return context, lock, happened, release.token


def test_it_is_the_brokers_once_it_is_known_to_be_free() -> None:
    context, lock, happened, token = given()
    assert not lock.given
    context.out.answered(Done(token))
    assert lock.given
    assert happened == ["free"]


def test_a_lock_that_was_never_given_is_back_at_once() -> None:
    context, happened = replica(), list[str]()
    AppendLock(context).take(lambda: happened.append("back"))
    assert happened == ["back"]
    assert context.out.take() == []


def test_the_logs_end_is_fixed_when_it_is_back() -> None:
    context, lock, happened, token = given()
    context.out.answered(Done(token))
    lock.take(lambda: happened.append("back"))
    (take,) = context.out.take()
    assert isinstance(take, TakeAppendLock)
    assert not lock.given
    context.out.answered(Done(take.token, 700, 650))
    assert (context.end, context.durable) == (700, 650)
    assert happened == ["free", "back"]


def test_it_is_asked_back_once_and_only_the_last_one_who_waits_is_called() -> None:
    # A planned switch takes it; the term ends meanwhile, with another continuation.
    context, lock, happened, token = given()
    lock.take(lambda: happened.append("drain"))
    lock.take(lambda: happened.append("follow"))
    (take,) = context.out.take()
    assert isinstance(take, TakeAppendLock)
    context.out.answered(Done(token))
    context.out.answered(Done(take.token, 500, 500))
    assert happened == ["follow"]
