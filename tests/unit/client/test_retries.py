from __future__ import annotations

import pytest

from tidemark.client.retries import DELAY_MAX_S, Failure, delay_s, failure_of, may_repeat


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("idempotent", [True, False])
def test_only_calls_that_cannot_store_twice_are_repeated(
    failure: Failure, idempotent: bool
) -> None:
    nothing_was_done = failure in (Failure.NOT_SENT, Failure.BUSY, Failure.NOT_MASTER)
    harmless = failure in (Failure.LOST, Failure.UNKNOWN_OUTCOME) and idempotent
    assert may_repeat(failure, idempotent=idempotent) == (nothing_was_done or harmless)


@pytest.mark.parametrize(
    ("status", "retriable", "failure"),
    [
        (503, True, Failure.BUSY),
        (503, False, Failure.REFUSED),
        (504, True, Failure.UNKNOWN_OUTCOME),
        (421, True, Failure.NOT_MASTER),
        (507, True, Failure.REFUSED),
        (400, False, Failure.REFUSED),
        (500, False, Failure.REFUSED),
    ],
)
def test_an_answered_error_is_judged_by_status(
    status: int, retriable: bool, failure: Failure
) -> None:
    assert failure_of(status=status, retriable=retriable) is failure


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [delay_s(attempt, jitter=0.5) for attempt in range(1, 40)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 0.06
    assert pauses[-1] <= DELAY_MAX_S
