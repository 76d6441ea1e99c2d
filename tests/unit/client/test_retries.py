from __future__ import annotations

import pytest

from shared.cluster.time_rules import PROFILES
from tidemark.client.connection import ConnectionSettings
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


# With the profile `long` every call of a default client failed when the master was lost: the calls
# were repeated for 15 s, and the lease alone lasts that long.
@pytest.mark.parametrize("profile", PROFILES)
def test_calls_are_repeated_for_longer_than_a_failover_takes_in_each_profile(profile: str) -> None:
    times = PROFILES[profile]
    # 1. The master is lost right after a renewal. 2. A candidate reads the lease up to one interval
    # later, and waits for the lease time. 3. The first candidate is lost, too.
    waits_ms = times.renew_ms + times.lease_ms + times.wait_random_ms + times.wait_rank_ms
    requests_ms = 3 * 1000  # the candidate reads the lease, reads it again, and writes it
    opening_ms = 3000  # recovery of the log, the epoch record, and the client's search
    default_s = ConnectionSettings().retry_for_s
    assert waits_ms + requests_ms + opening_ms <= default_s * 1000
