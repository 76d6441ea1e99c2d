"""One line per key and minute."""

from __future__ import annotations

import logging

import pytest

from shared.runtime.rate_limited_logger import INTERVAL_S, KEYS_MAX, RateLimitedLogger


class Clock:
    """Seconds, set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_key_gets_one_line_a_minute_that_counts_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    paced = RateLimitedLogger(clock)
    assert paced.say("10.0.0.1", "link-refused", "closed", reason="noise")
    assert not any(paced.say("10.0.0.1", "link-refused", "closed") for _ in range(500))
    assert paced.say("10.0.0.2", "link-refused", "closed")
    clock.now += INTERVAL_S
    assert paced.say("10.0.0.1", "link-refused", "closed")
    assert [vars(line)["held_back"] for line in caplog.records] == [0, 0, 500]
    assert paced.count == 503


def test_many_keys_share_a_line_and_take_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    paced = RateLimitedLogger(clock)
    for number in range(10 * KEYS_MAX):
        paced.say(f"peer {number}", "link-refused", "closed")
    assert len(caplog.records) == KEYS_MAX + 1
    assert len(paced._keys) <= KEYS_MAX + 1
    clock.now += INTERVAL_S
    assert paced.say("another", "link-refused", "closed")
    assert len(paced._keys) <= 2


def test_an_error_is_written_with_its_traceback_and_level(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("x")
    RateLimitedLogger(Clock()).say(
        "a", "internal-error", "failed", level=logging.ERROR, error=error, code="internal"
    )
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert line.exc_info is not None
    assert line.exc_info[1] is error
    assert (vars(line)["event"], vars(line)["code"]) == ("internal-error", "internal")


def test_a_defect_of_ours_is_written_once_a_minute_for_each_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paced = RateLimitedLogger(Clock())

    def fail(number: int) -> bool:
        try:
            if number % 2:
                raise ValueError(number)
            raise ValueError(number, "elsewhere")
        except ValueError as error:
            return paced.defect(error, "a call failed", path="/v1/x")

    assert [fail(number) for number in range(6)] == [True, True] + [False] * 4
    assert {vars(line)["event"] for line in caplog.records} == {"internal-error"}
    assert vars(caplog.records[0])["path"] == "/v1/x"
