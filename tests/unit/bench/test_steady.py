from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.exchange import LoadFailed
from bench.load import Shape
from bench.steady import Steady

SHAPE = Shape(1, 64, "disk", "given")
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
BAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"


@contextmanager
def serving(answer: Callable[[], bytes]) -> Iterator[tuple[str, int]]:
    """A server that gives one answer for whatever one ``recv`` brings."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1 << 16):
                connection.sendall(answer())

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "127.0.0.1", int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_sends_when_due_over_all_connections_and_no_faster() -> None:
    began = time.perf_counter()
    with (
        serving(lambda: GOOD) as address,
        Steady(address, "t", SHAPE, per_second=100, connections=4) as load,
    ):
        while len(load.sent) < 20:
            assert time.perf_counter() - began < 30
            time.sleep(0.01)
        took_s = time.perf_counter() - began
    assert took_s >= 0.15  # the twentieth is due after 190 ms
    assert [sent.at for sent in load.sent] == sorted(sent.at for sent in load.sent)
    assert len(load.between(load.sent[3].at, load.sent[9].at)) == 6
    assert 0 < load.rate <= 100 * 1.5


def test_whoever_is_late_has_waited_since_it_was_due() -> None:
    asked, stall = threading.Event(), threading.Event()

    def answer() -> bytes:
        asked.set()
        stall.wait(30)
        return GOOD

    with (
        serving(answer) as address,
        Steady(address, "t", SHAPE, per_second=100, connections=1) as load,
    ):
        assert asked.wait(30)
        time.sleep(0.1)  # from here on: the first has been sent
        stall.set()
        began = time.perf_counter()
        while len(load.sent) < 8:
            assert time.perf_counter() - began < 30
            time.sleep(0.01)
    first = [sent.took_s for sent in load.sent[:8]]
    assert first[0] >= 0.09
    # Those behind it were due 10 ms apart and sent one after the other.
    assert sum(first) > 3 * first[0]


def test_a_refusal_fails_the_run() -> None:
    asked = threading.Event()

    def refuse() -> bytes:
        asked.set()
        return BAD

    with (
        serving(refuse) as address,
        pytest.raises(LoadFailed, match="503"),
        Steady(address, "t", SHAPE, per_second=1000, connections=1),
    ):
        assert asked.wait(30)  # the answer is on its way, and waited for
