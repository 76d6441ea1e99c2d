"""The confirm offset of a term."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.ha.core.confirm import ConfirmOffset
from services.ha.lease.value import Member

B, C = Member("b", "1" * 32), Member("c", "2" * 32)


def test_it_is_the_smallest_durable_end_of_the_wait_set() -> None:
    confirm = ConfirmOffset(0)
    assert confirm.advance(90, {B: 50, C: 70}, {B, C})
    assert confirm.value == 50
    assert confirm.advance(90, {B: 95, C: 70}, {B, C})
    assert confirm.value == 70
    assert confirm.advance(90, {B: 95, C: 99}, {B, C})
    assert confirm.value == 90


def test_it_stands_still_while_one_of_the_wait_set_is_unknown() -> None:
    confirm = ConfirmOffset(10)
    assert not confirm.advance(90, {B: 80}, {B, C})
    assert not confirm.advance(None, {B: 80, C: 80}, {B, C})
    assert confirm.value == 10


def test_whoever_is_not_waited_for_counts_for_nothing() -> None:
    confirm = ConfirmOffset(0)
    assert confirm.advance(90, {B: 80, C: 1}, {B})
    assert confirm.value == 80


def test_a_term_begins_with_what_was_confirmed_and_not_with_its_log() -> None:
    assert ConfirmOffset(40).value == 40


@given(st.lists(st.tuples(st.none() | st.integers(0, 100), st.integers(0, 100), st.booleans())))
def test_it_never_decreases(steps: list[tuple[int | None, int, bool]]) -> None:
    confirm, before = ConfirmOffset(20), 20
    for own, durable, waited in steps:
        moved = confirm.advance(own, {B: durable}, {B} if waited else set())
        assert moved == (confirm.value > before)
        assert confirm.value >= before
        before = confirm.value
