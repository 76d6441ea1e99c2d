"""``wait_until``: it ends with what it waits for, with a deadline, or with what went wrong."""

from __future__ import annotations

import pytest

from tidemark.testing.waiting import wait_until


def test_it_asks_until_the_condition_holds_and_no_more() -> None:
    answers = iter([False, None, 0, "yes"])
    wait_until(lambda: next(answers), "a yes", poll_s=0)
    assert list(answers) == []


def test_a_deadline_names_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.03 s for a yes"):
        wait_until(lambda: False, "a yes", 0.03, poll_s=0)


def test_an_error_of_the_condition_ends_the_wait() -> None:
    def ends() -> bool:
        raise RuntimeError("the process ended")

    with pytest.raises(RuntimeError, match="the process ended"):
        wait_until(ends, "a yes")
