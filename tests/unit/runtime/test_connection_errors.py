"""Errors of network connections are described in words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from shared.runtime.connection_errors import describe


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
def test_the_cause_of_a_broken_connection_is_named_without_numbers_of_a_library(
    error: Exception, words: str
) -> None:
    assert describe(error) == words
