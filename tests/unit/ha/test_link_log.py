"""Lines about links: what is said of a node that is not reached, and when."""

from __future__ import annotations

import errno
import logging
import socket
import ssl

import pytest

from services.ha.link_log import START_S, LinkLog, in_words
from shared.runtime.paced_log import PacedLog


def test_a_healthy_start_says_nothing_of_nodes_that_are_on_their_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Every healthy start of a group printed "Connection refused".
    now = 100.0
    links = LinkLog(PacedLog(lambda: now))
    with caplog.at_level(logging.INFO):
        links.unreached("n1", "10.0.0.2", "not reached: nothing accepts connections at its address")
        assert not caplog.records
        # Not a matter of time: it is there, and is refused.
        links.unreached("n2", "10.0.0.3", "wrong-secret: it proved another one")
        assert [vars(record)["peer"] for record in caplog.records] == ["n2"]
        now += START_S
        links.unreached("n1", "10.0.0.2", "not reached: nothing accepts connections at its address")
    assert [vars(record)["peer"] for record in caplog.records] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.2', 1)"),
            "nothing accepts connections at its address",
        ),
        (ConnectionResetError(errno.ECONNRESET, "any"), "connection reset by peer"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "no route to host"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "its host name has no address (Name or service not known)",
        ),
        (ssl.SSLError(1, "[SSL] any (_ssl.c:1006)"), "TLS failed (the connection was closed)"),
        (
            OSError("Multiple exceptions: [Errno 111] Connection refused, [Errno -2] any"),
            "Connection refused, any",
        ),
        (ConnectionAbortedError(), "ConnectionAbortedError"),
    ],
)
def test_what_breaks_a_connection_is_named_without_numbers_of_a_library(
    error: Exception, words: str
) -> None:
    assert in_words(error) == words
