from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench import exchange
from bench.exchange import Connection, Exchange, LoadFailed, drive


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A server with a thread per connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            with connection:
                answer(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield "127.0.0.1", int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def echo(connection: socket.socket) -> None:
    while True:
        try:
            data = connection.recv(100)
        except ConnectionResetError:
            return
        if not data:
            return
        connection.sendall(data)


class Byte(Connection, asyncio.Protocol):
    """One byte there and back, of three messages."""

    def request(self, number: int) -> bytes:
        return b"x"

    def data_received(self, data: bytes) -> None:
        self.exchange.answered(3)
        self.send_next()


def make(exchange: Exchange) -> Connection:
    return Byte(exchange)


def test_so_many_requests_are_sent_over_all_connections_and_no_more() -> None:
    with serving(echo) as address:
        outcome = drive(make, address, connections=4, requests=101)
    assert (outcome.requests, outcome.messages) == (101, 303)
    assert outcome.seconds > 0


def test_after_its_time_a_run_waits_only_for_what_is_in_flight() -> None:
    with serving(echo) as address:
        outcome = drive(make, address, connections=2, seconds=0.05)
    assert outcome.seconds >= 0.05
    assert outcome.messages == 3 * outcome.requests > 0


def hang_up(connection: socket.socket) -> None:
    connection.close()


def fall_silent(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(100):
            pass


def test_a_server_that_hangs_up_fails_the_run() -> None:
    with serving(hang_up) as address, pytest.raises(LoadFailed, match="closed a connection"):
        drive(make, address, connections=2, requests=10)


def test_a_server_that_falls_silent_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STALLED_S", 0.05)
    with serving(fall_silent) as address, pytest.raises(LoadFailed, match="no answer for"):
        drive(make, address, connections=1, requests=10)
