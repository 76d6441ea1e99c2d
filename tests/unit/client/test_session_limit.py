from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.session_limit import SessionLimit

SESSION_MS = 30_000


def test_nothing_is_delivered_before_the_first_answer() -> None:
    assert not SessionLimit().may_deliver(0)
    assert SessionLimit().heartbeat_in_ms(0) == 0


def test_the_session_is_counted_from_when_the_heartbeat_left() -> None:
    limit = SessionLimit()
    limit.answered(1000, SESSION_MS)
    assert limit.may_deliver(1000 + SESSION_MS - 1)
    assert not limit.may_deliver(1000 + SESSION_MS)
    assert limit.heartbeat_in_ms(1000) == SESSION_MS / 3
    limit.ended()
    assert not limit.may_deliver(1001)


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 40_000), st.integers(0, 40_000)),
        min_size=1,
        max_size=20,
    )
)
def test_a_member_that_may_deliver_is_alive_for_the_broker(
    heartbeats: list[tuple[int, int, int]],
) -> None:
    """Heartbeats with any pause, any delay, and responses that come late or out of order.

    The broker sets the deadline when a heartbeat comes; the member when its response does. The
    member's deadline must never be later than the broker's.
    """
    events: list[tuple[int, bool, int]] = []
    """When, whether it is the answer, and when the heartbeat left."""
    now_ms = 0
    for pause_ms, there_ms, back_ms in heartbeats:
        now_ms += pause_ms
        came_ms = now_ms + there_ms
        events.append((came_ms, False, now_ms))
        events.append((came_ms + back_ms, True, now_ms))
    limit, broker_ends_ms = SessionLimit(), 0
    for at_ms, is_answer, sent_ms in sorted(events):
        if is_answer:
            limit.answered(sent_ms, SESSION_MS)
        else:
            broker_ends_ms = at_ms + SESSION_MS
        assert limit.ends_at_ms <= broker_ends_ms


@given(st.integers(1000, 600_000), st.integers(0, 1 << 40))
def test_three_heartbeats_fit_into_a_session(session_ms: int, sent_ms: int) -> None:
    limit = SessionLimit()
    limit.answered(sent_ms, session_ms)
    wait_ms = limit.heartbeat_in_ms(sent_ms)
    assert 0 < wait_ms <= session_ms / 3 + 1
    assert limit.heartbeat_in_ms(sent_ms + session_ms) == 0
