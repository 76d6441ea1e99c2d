"""Log lines about links: when a node that cannot be reached is logged."""

from __future__ import annotations

import logging

import pytest

from services.ha.shell.link_log import START_S, LinkLog
from shared.runtime.rate_limited_logger import RateLimitedLogger


def test_a_healthy_start_says_nothing_of_nodes_that_are_on_their_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Every healthy start of a group printed "Connection refused".
    now = 100.0
    links = LinkLog(RateLimitedLogger(lambda: now))
    with caplog.at_level(logging.INFO):
        links.unreached("n1", "10.0.0.2", "not reached: nothing accepts connections at its address")
        assert not caplog.records
        # Not a matter of time: it is reachable, and is refused.
        links.unreached("n2", "10.0.0.3", "wrong-secret: it proved another one")
        assert [vars(record)["peer"] for record in caplog.records] == ["n2"]
        now += START_S
        links.unreached("n1", "10.0.0.2", "not reached: nothing accepts connections at its address")
    assert [vars(record)["peer"] for record in caplog.records] == ["n2", "n1"]
