from __future__ import annotations

from collections.abc import Callable

import pytest

from drills.checker import EpochStart, FinalLog, Stored, Verdict, judge
from drills.ledger import Ack, Ledger, Place

SIZE = 100


def stored(key: str, queue: int, queue_offset: int, physical_offset: int) -> Stored:
    return Stored(Place(queue, queue_offset), physical_offset, key)


def ack(
    queue: int,
    queue_offset: int,
    physical_offset: int,
    *,
    level: str = "replicated",
    node: str = "n0",
) -> Ack:
    place = Place(queue, queue_offset)
    return Ack(place, physical_offset, level, 2, node, 1.0, 2.0, repeated=False)


def a_run() -> tuple[Ledger, FinalLog]:
    """Two producers with one queue and three messages each, all acked and consumed."""
    ledger, log = Ledger(), FinalLog(epochs=[EpochStart(1, 0), EpochStart(3, 4 * SIZE)])
    for number in range(3):
        for producer in range(2):
            key, at = f"{producer}.{number}", (2 * number + producer + 1) * SIZE
            ledger.sent[key] = 1.0
            ledger.record_ack(key, ack(producer, number, at, node="n0" if at < 4 * SIZE else "n1"))
            log.messages.append(stored(key, producer, number, at))
            for consumer in range(2):
                ledger.see(consumer, Place(producer, number), key)
    log.end = 7 * SIZE
    return ledger, log


MASTERS = {1: "n0", 3: "n1"}


def letters(verdict: Verdict) -> set[str]:
    return {sentence.split(":")[0] for sentence in verdict.violations}


def test_a_run_without_a_fault_has_no_violation() -> None:
    verdict = judge(*a_run(), MASTERS)
    assert verdict == Verdict(acked=6)


def lose(ledger: Ledger, log: FinalLog) -> None:
    del log.messages[-1]
    for seen in ledger.seen.values():
        del seen[Place(1, 2)]


def move(ledger: Ledger, log: FinalLog) -> None:
    log.messages[-1] = log.messages[-1]._replace(physical_offset=6 * SIZE + 8)


def invent(ledger: Ledger, log: FinalLog) -> None:
    log.messages.append(stored("0.77", 0, 3, 7 * SIZE))


def ack_one_place_twice(ledger: Ledger, log: FinalLog) -> None:
    ledger.sent["0.3"] = 1.0
    ledger.record_ack("0.3", ack(0, 2, 5 * SIZE, node="n1"))


def ack_another_place(ledger: Ledger, log: FinalLog) -> None:
    ledger.record_ack("0.0", ack(0, 1, 3 * SIZE))


def see_what_is_gone(ledger: Ledger, log: FinalLog) -> None:
    ledger.see(0, Place(0, 3), "0.3")


def see_two_at_one_place(ledger: Ledger, log: FinalLog) -> None:
    ledger.see(0, Place(0, 0), "0.9")


def answer_in_anothers_epoch(ledger: Ledger, log: FinalLog) -> None:
    ledger.acked["1.2"] = ledger.acked["1.2"]._replace(node="n0")


def leave_a_gap(ledger: Ledger, log: FinalLog) -> None:
    ledger.sent["0.9"] = 1.0
    log.messages.append(stored("0.9", 0, 5, 7 * SIZE))


def go_back_in_epochs(ledger: Ledger, log: FinalLog) -> None:
    log.epochs[0] = EpochStart(3, 0)


@pytest.mark.parametrize(
    ("fault", "letter"),
    [
        (lose, "A"),
        (move, "A"),
        (invent, "A"),
        (ack_one_place_twice, "B"),
        (ack_another_place, "B"),
        (see_what_is_gone, "C"),
        (see_two_at_one_place, "C"),
        (answer_in_anothers_epoch, "D"),
        (leave_a_gap, "dense"),
        (go_back_in_epochs, "epochs"),
    ],
)
def test_each_fault_is_found_and_named_by_its_criterion(
    fault: Callable[[Ledger, FinalLog], None], letter: str
) -> None:
    ledger, log = a_run()
    fault(ledger, log)
    assert letter in letters(judge(ledger, log, MASTERS))


def test_what_was_acked_on_one_copy_may_go_with_it_and_is_counted() -> None:
    ledger, log = a_run()
    lose(ledger, log)
    ledger.acked["1.2"] = ledger.acked["1.2"]._replace(level="disk")
    verdict = judge(ledger, log, MASTERS)
    assert not verdict.violations
    assert (verdict.lost, verdict.lost_below) == (0, 1)


def test_what_retention_took_is_not_lost() -> None:
    ledger, log = a_run()
    log.messages, log.first_offset = log.messages[2:], 3 * SIZE
    log.epochs = log.epochs[1:]
    assert not judge(ledger, log, MASTERS).violations


def test_unknown_outcomes_duplicates_and_order_are_counted() -> None:
    ledger, log = a_run()
    ledger.sent.update({"0.3": 1.0, "0.4": 1.0, "0.5": 1.0})
    log.messages += [
        stored("0.4", 0, 3, 7 * SIZE),
        stored("0.0", 0, 4, 8 * SIZE),
        stored("0.5", 0, 5, 9 * SIZE),
        stored("0.3", 0, 6, 10 * SIZE),
    ]
    ledger.record_ack("0.5", ack(0, 5, 9 * SIZE, node="n1"))
    ledger.record_ack("0.3", ack(0, 6, 10 * SIZE, node="n1"))
    verdict = judge(ledger, log, MASTERS)
    assert not verdict.violations
    assert (verdict.unknown_stored, verdict.unknown_absent) == (1, 0)
    assert (verdict.duplicates, verdict.out_of_order) == (1, 1)


def test_what_an_operator_gave_up_is_not_owed_any_more() -> None:
    ledger, log = a_run()
    assert ledger.give_up(5 * SIZE) == 2
    ledger.seen.clear()
    log.messages = log.messages[:4]
    assert not judge(ledger, log, MASTERS).violations


def test_many_violations_are_shown_in_a_few_lines() -> None:
    verdict = Verdict(violations=[f"A: {number}" for number in range(20)])
    assert len(verdict.shown().splitlines()) == 9
