from __future__ import annotations

from drills.ledger import Ledger, Outcome, Request


def request(sent_at: float, ended_at: float, *, code: str = "", node: str = "n0") -> Request:
    outcome = Outcome.ACKED if not code else Outcome.REFUSED
    return Request(0, sent_at, ended_at, outcome, code, node, 4)


def a_ledger() -> Ledger:
    return Ledger(
        requests=[
            request(0.9, 1.0),
            request(1.0, 1.1),
            request(1.0, 1.5, code="fenced"),
            request(1.2, 3.0, node="n1"),
            request(3.0, 3.1, node="n1"),
        ]
    )


def test_the_longest_gap_is_between_two_acks_or_at_the_edges() -> None:
    ledger = a_ledger()
    assert round(ledger.longest_gap(1.0, 3.1), 3) == 1.9
    assert round(ledger.longest_gap(3.0, 8.0), 3) == 4.9
    assert ledger.longest_gap(5.0, 6.0) == 1.0


def test_an_ack_counts_from_when_its_request_was_sent() -> None:
    ledger = a_ledger()
    assert ledger.first_ack(1.1) == 3.0
    assert ledger.first_ack(3.0) is None
    assert [found.ended_at for found in ledger.acked_by("n1", 1.5)] == [3.1]


def test_errors_are_counted_by_code_within_their_time() -> None:
    ledger = a_ledger()
    assert ledger.codes(1.0, 2.0) == {"fenced": 1}
    assert ledger.outcomes(2.0, 4.0) == {Outcome.ACKED: 2}
