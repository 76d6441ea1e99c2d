"""A port that cannot be listened on is named, with why and what to do."""

from __future__ import annotations

import socket

import pytest

from shared.runtime.listening import listening_on
from tidemark.errors import CannotListen


def test_a_taken_port_is_named_with_its_host_and_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotListen, match="Address already in use") as caught,
            listening_on("127.0.0.1", port),
            socket.socket() as second,
        ):
            second.bind(("127.0.0.1", port))
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)
    assert "ss -ltnp" in caught.value.advice


def test_a_successful_run_is_left_alone() -> None:
    with listening_on("127.0.0.1", 0), socket.socket() as free:
        free.bind(("127.0.0.1", 0))
