"""The link that tests cut: what passes, what vanishes, what a healed link does with old
connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.cut_link import CutLink
from tests.support.node import wait_until

PATIENCE_S = 0.3
"""So long nothing must arrive; longer makes the test slower, not safer."""


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(peer,), daemon=True).start()

        def echo(peer: socket.socket) -> None:
            with peer:
                try:
                    while data := peer.recv(1000):
                        peer.sendall(data)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def link(echo_port: int) -> Iterator[CutLink]:
    found = CutLink(echo_port)
    yield found
    found.close()


def connected(link: CutLink) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=10)


def test_bytes_of_a_cut_link_vanish_and_nothing_is_refused(link: CutLink) -> None:
    with connected(link) as before:
        before.sendall(b"there")
        assert before.recv(100) == b"there"
        link.cut()
        with connected(link) as after:
            for client in (before, after):
                client.sendall(b"lost")
                client.settimeout(PATIENCE_S)
                with pytest.raises(TimeoutError):
                    client.recv(100)


def test_a_healed_link_ends_connections_of_before_and_passes_new_ones(link: CutLink) -> None:
    with connected(link) as before:
        before.sendall(b"there")
        assert before.recv(100) == b"there"
        link.cut()
        before.sendall(b"lost")
        link.heal()

        def is_over() -> bool:
            try:
                return before.recv(100) == b""
            except ConnectionResetError:
                return True

        wait_until(is_over, "the old connection to end", 10)
        with connected(link) as after:
            after.sendall(b"there again")
            assert after.recv(100) == b"there again"
