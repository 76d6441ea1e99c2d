"""The judge of the chaos of a cluster finds each kind of violation, planted one at a time."""

from __future__ import annotations

import pytest

from tests.support.cluster_chaos_check import judge
from tests.support.cluster_chaos_load import ACKED, CHANGED, UNANSWERED, Load, Stream
from tests.support.group_chaos_check import Entry, Violation, What
from tidemark.client.messages import SendResult
from tidemark.client.queue_choice import GroupQueue, queue_of_key

TWO = (GroupQueue("g0", 0), GroupQueue("g1", 0))
ONE = TWO[:1]


def handled(first: int, count: int = 1, *, stream: int = 0) -> Entry:
    return Entry(What.HANDLED, stream, 1, count, 0, first, 0)


def sent(count: int, *, key: str | None = "a", changes: tuple[int, ...] = ()) -> Stream:
    """A stream of acked messages. changes: numbers from which on the list of queues is another."""
    stream = Stream(0, key, 1.0, 1)
    stream.outcomes += bytes([ACKED]) * count
    stream.lists = [(first, TWO if at % 2 else ONE) for at, first in enumerate((0, *changes))]
    return stream


def test_everything_handled_in_order_is_right_and_repeats_are_counted() -> None:
    verdict = judge([handled(0, 3), handled(1, 2), handled(2, 4)], [sent(6)])
    assert (verdict.wrong, verdict.missing) == ([], 0)
    assert (verdict.handled, verdict.distinct, verdict.duplicates) == (9, 6, 3)


def test_an_acked_message_that_is_not_handled_is_missing() -> None:
    stream = sent(5)
    stream.outcomes[4] = UNANSWERED
    verdict = judge([handled(0, 2), handled(3)], [stream])
    assert (verdict.missing, verdict.violations) == (1, {Violation.MISSING: 1})
    assert verdict.wrong == ["stream 0 (key a): 1 acked and not handled: 2 …"]


@pytest.mark.parametrize(
    "entries",
    [
        [handled(0, 2), handled(3, 2), handled(2)],
        [handled(1, 4), handled(0)],
        [handled(0), handled(2), handled(1, 4)],
    ],
)
def test_a_first_delivery_after_a_later_message_of_its_key_is_found(entries: list[Entry]) -> None:
    assert judge(entries, [sent(5)]).violations == {Violation.ORDER: 1}


def test_the_order_of_a_key_is_free_between_two_lists_of_queues_and_kept_within_each() -> None:
    between = [handled(3, 2), handled(0, 3), handled(5)]
    assert not judge(between, [sent(6, changes=(3,))]).violations
    within = [handled(4), handled(0, 3), handled(3), handled(5)]
    assert judge(within, [sent(6, changes=(3,))]).violations == {Violation.ORDER: 1}
    across = [handled(1), handled(5), handled(0, 6)]
    assert judge(across, [sent(6, changes=(3,))]).violations == {Violation.ORDER: 2}


def test_messages_without_a_key_and_those_without_an_ack_have_no_order() -> None:
    assert not judge([handled(1), handled(0)], [sent(2, key=None)]).violations
    stream = sent(4)
    stream.outcomes[1] = UNANSWERED
    assert not judge([handled(0), handled(2), handled(1, 3)], [stream]).violations


@pytest.mark.parametrize("entry", [handled(1, 2), handled(0, stream=1)])
def test_a_message_that_was_never_sent_is_found(entry: Entry) -> None:
    assert judge([handled(0, 2), entry], [sent(2)]).violations == {Violation.NEVER_SENT: 1}


def test_a_call_that_is_placed_under_another_list_than_at_its_begin_has_a_list_of_its_own() -> None:
    stream = Stream(0, "a", 1.0, 1)
    for queues, place in (
        (TWO, queue_of_key(TWO, "a")),
        (TWO, ONE[0] if queue_of_key(TWO, "a") != ONE[0] else TWO[1]),
        (ONE, ONE[0]),
    ):
        stream.begin(queues)
        result = SendResult("", place.queue, 0, 0, 0, broker_group=place.broker_group)
        stream.end([result] * 2)
    assert stream.lists == [(0, TWO), (2, CHANGED), (4, ONE)]
    assert stream.outcomes == bytes([ACKED]) * 6


def test_a_load_has_its_rate() -> None:
    load = Load("chaos", 20_000, 64, 4)
    rate = sum(each.count / each.interval_s for each in load.streams)
    assert rate == pytest.approx(20_000)
    assert [each.key is None for each in load.streams] == [False] * 64 + [True] * 4
    assert len({each.key for each in load.streams}) == 65


def test_a_broker_group_is_seen_once_a_producer_has_its_queues() -> None:
    load = Load("chaos", 100, 2, 1)
    load.streams[1].begin(ONE)
    assert (load.is_seen("g0"), load.is_seen("g1")) == (True, False)
    load.streams[1].begin(TWO)
    assert load.is_seen("g1")
