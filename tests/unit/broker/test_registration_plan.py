"""When a broker registers with a name service, and with how much."""

from __future__ import annotations

import pytest

from services.broker.registration_plan import (
    GATHER_S,
    RETRY_MAX_S,
    RegistrationPlan,
    Standing,
)
from shared.cluster.routes import RENEW_S

MASTER = Standing("master", 3, 10)
SLAVE = Standing("slave", 3, 10)
AT_ONCE = float("-inf")


@pytest.fixture
def plan() -> RegistrationPlan:
    made = RegistrationPlan()
    made.accept(MASTER, 100.0)
    return made


def test_the_first_registration_is_due_at_once_and_has_all_topics() -> None:
    plan = RegistrationPlan()
    assert (plan.due_s(MASTER), plan.base(MASTER)) == (AT_ONCE, None)
    assert not plan.is_registered


@pytest.mark.parametrize(
    ("now", "due_s", "base"),
    [
        (MASTER, 100.0 + RENEW_S, 10),
        (MASTER._replace(counter=11), 100.0 + GATHER_S, 10),
        (MASTER._replace(epoch=4), AT_ONCE, None),
        (SLAVE, AT_ONCE, 10),
        (Standing("unknown", 3, 10), AT_ONCE, 10),
    ],
)
def test_what_is_due_after_a_registration(
    plan: RegistrationPlan, now: Standing, due_s: float, base: int | None
) -> None:
    assert plan.due_s(now) == due_s
    assert plan.base(now) == base


def test_changes_of_topics_are_nothing_to_a_slave() -> None:
    plan = RegistrationPlan()
    plan.accept(SLAVE, 100.0)
    assert plan.due_s(SLAVE._replace(counter=99)) == 100.0 + RENEW_S
    assert plan.base(MASTER) is None, "it has registered no topics yet"


def test_a_name_service_that_does_not_answer_is_tried_after_growing_pauses(
    plan: RegistrationPlan,
) -> None:
    pauses = []
    for _ in range(8):
        plan.refuse("unreachable", 200.0)
        pauses.append(plan.due_s(MASTER) - 200.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, RETRY_MAX_S]
    assert plan.due_s(MASTER._replace(counter=11)) == 230.0, "news do not make it faster"
    assert plan.base(MASTER) is None, "what it has is unknown"
    assert not plan.is_registered
    plan.accept(MASTER, 300.0)
    assert plan.is_registered


@pytest.mark.parametrize("code", ["registration-base-unknown", "stale-registration"])
def test_all_topics_follow_at_once_but_not_twice_in_a_row(
    plan: RegistrationPlan, code: str
) -> None:
    plan.refuse(code, 200.0)
    assert (plan.due_s(MASTER), plan.base(MASTER)) == (AT_ONCE, None)
    plan.refuse("stale-registration", 200.1)
    assert plan.due_s(MASTER) == 201.1
    plan.accept(MASTER, 300.0)
    plan.refuse(code, 400.0)
    assert plan.due_s(MASTER) == AT_ONCE
