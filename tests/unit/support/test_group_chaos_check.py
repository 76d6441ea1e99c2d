"""The judge of the chaos test finds each kind of violation, planted one at a time."""

from __future__ import annotations

from pathlib import Path

from tests.support.group_chaos_check import Entry, Violation, What, judge, read


def handled(
    queue: int, first: int, count: int = 1, *, member: int = 1, generation: int = 1
) -> Entry:
    return Entry(What.HANDLED, queue, member, count, generation, first, 0)


def assigned(queue: int, member: int, generation: int = 1) -> Entry:
    return Entry(What.ASSIGNED, queue, member, 0, generation, 0, 0)


def revoked(queue: int, member: int, generation: int = 1) -> Entry:
    return Entry(What.REVOKED, queue, member, 0, generation, 0, 0)


def test_a_group_that_does_everything_once_is_right() -> None:
    entries = [assigned(0, 1), assigned(1, 2), handled(0, 0, 5), handled(1, 0, 3, member=2)]
    verdict = judge(entries, {0: 5, 1: 3}, ordered=True)
    assert (verdict.wrong, verdict.handled, verdict.distinct) == ([], 8, 8)
    assert (verdict.duplicates, verdict.missing, verdict.moves) == (0, 0, 2)


def test_what_a_member_died_over_is_counted_twice_and_no_violation() -> None:
    entries = [
        assigned(0, 1),
        handled(0, 0, 4),
        assigned(0, 2, generation=2),
        handled(0, 2, 3, member=2, generation=2),
    ]
    verdict = judge(entries, {0: 5}, ordered=True)
    assert (verdict.wrong, verdict.handled, verdict.duplicates) == ([], 7, 2)


def test_a_message_without_a_handler_call_is_missing() -> None:
    entries = [assigned(0, 1), handled(0, 0, 2), handled(0, 3, 2)]
    verdict = judge(entries, {0: 5, 1: 0}, ordered=False)
    assert (verdict.missing, verdict.violations) == (1, {Violation.MISSING: 1})
    assert verdict.wrong == ["queue 0: 1 not handled, from 2 on"]


def test_two_members_of_one_queue_in_a_generation_are_found() -> None:
    entries = [
        assigned(0, 1),
        handled(0, 0, 2),
        revoked(0, 1),
        assigned(0, 2),
        handled(0, 2, 3, member=2),
    ]
    verdict = judge(entries, {0: 5}, ordered=True)
    assert verdict.violations == {Violation.TWO_OWNERS: 1}
    assert "both handled messages in generation 0x1" in verdict.wrong[0]


def test_a_member_that_goes_on_after_another_took_its_queue_is_found() -> None:
    entries = [
        assigned(0, 1),
        handled(0, 0, 2),
        assigned(0, 2, generation=2),
        handled(0, 2, 3, member=1, generation=1),
    ]
    verdict = judge(entries, {0: 5}, ordered=True)
    assert verdict.wrong == ["queue 0: member 1 handled 2 while it was member 2's"]


def test_a_member_that_handles_what_it_gave_up_is_found() -> None:
    entries = [assigned(0, 1), revoked(0, 1), handled(0, 0, 5)]
    assert judge(entries, {0: 5}, ordered=True).violations == {Violation.NOT_ITS_OWN: 1}


def test_a_later_message_before_an_earlier_one_is_found_where_order_is_owed() -> None:
    entries = [assigned(0, 1), handled(0, 1), handled(0, 0), handled(0, 2, 3)]
    assert not judge(entries, {0: 5}, ordered=False).violations
    verdict = judge(entries, {0: 5}, ordered=True)
    assert verdict.wrong[0] == "queue 0: 1 was handled by member 1 before 0 was done"


def test_a_message_that_comes_again_without_a_loss_of_the_queue_is_found() -> None:
    entries = [assigned(0, 1), handled(0, 0, 3), handled(0, 2, 3)]
    verdict = judge(entries, {0: 5}, ordered=False)
    assert verdict.violations == {Violation.AGAIN: 1}
    assert verdict.wrong[0].startswith("queue 0: member 1 handled 1 messages from 2 on again")
    lost = [*entries[:2], revoked(0, 1), assigned(0, 1, 2), handled(0, 2, 3, generation=2)]
    assert not judge(lost, {0: 5}, ordered=False).violations


def test_what_was_committed_two_owners_ago_may_not_come_again() -> None:
    # An owner that begins at the first message, not at the commit, repeats everything.
    committed = Entry(What.COMMITTED, 0, 0, 0, 0, 3, 0)
    first = [assigned(0, 1), handled(0, 0, 4), committed, assigned(0, 2, 2)]
    again = handled(0, 0, 5, member=2, generation=2)
    assert not judge([*first, again], {0: 5}, ordered=True).violations, "it may have read 0 before"
    third = [*first, assigned(0, 3, 3), handled(0, 2, 3, member=3, generation=3)]
    verdict = judge(third, {0: 5}, ordered=True)
    assert verdict.violations == {Violation.REPLAYED: 1}
    assert verdict.wrong[0].startswith("queue 0: member 3 handled 2, though everything below 3")
    third[-1] = handled(0, 3, 2, member=3, generation=3)
    assert not judge(third, {0: 5}, ordered=True).violations


def test_what_was_never_sent_is_found() -> None:
    verdict = judge([assigned(0, 1), handled(0, 0, 6)], {0: 5}, ordered=False)
    assert verdict.violations == {Violation.NEVER_SENT: 1, Violation.MISSING: 1}
    verdict = judge([assigned(9, 1)], {0: 0}, ordered=False)
    assert verdict.violations == {Violation.NEVER_SENT: 1}


def test_a_file_cut_in_an_entry_is_read_to_the_last_whole_one(tmp_path: Path) -> None:
    entries = [assigned(0, 1), handled(3, 1 << 40, 500, member=7, generation=1 << 32 | 5)]
    path = tmp_path / "handled"
    path.write_bytes(b"".join(entry.packed() for entry in entries) + b"\1\0")
    assert [*read(path)] == entries
