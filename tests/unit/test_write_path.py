"""The write path as ARCHITECTURE.md describes it, measured: files and calls of one plain send."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgpack
import pytest

from tidemark.testing import LocalStore

ROOT = Path(__file__).resolve().parents[2]
BROKER = "services/broker/"
WARM_UP_SENDS = 200
TRACED_SENDS = 400
FILES_MAX = 18
CALLS_MAX = 70


class Call(NamedTuple):
    """One call of a function of the project."""

    file: str
    caller: str
    """File of the caller; anything outside the project for a call of a library."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with LocalStore(tmp_path) as running:
        yield running


class Client:
    """Sends one message per call over one connection, head and body in one piece."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        body = msgpack.packb({"messages": [{"body": b"hello"}], "ack": "memory"})
        self._socket = socket.create_connection((host, int(port)))
        self._request = (
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: %b\r\n"
            b"Content-Type: application/msgpack\r\nAccept: application/msgpack\r\n"
            b"Content-Length: %d\r\n\r\n" % (host.encode(), len(body))
        ) + body

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self) -> None:
        self._socket.sendall(self._request)
        answer = self._socket.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer


def traced(store: LocalStore, client: Client) -> list[Call]:
    """The project's calls in the store's thread while it carries out one send."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := _of_project(frame)) and frame.f_back is not None:
            calls.append(Call(file, frame.f_back.f_code.co_filename.removeprefix(f"{ROOT}/")))

    _in_thread_of(store, lambda: sys.setprofile(note))
    client.send()
    _in_thread_of(store, lambda: sys.setprofile(None))
    return [call for call in calls if call.file != "tests/unit/test_write_path.py"]


def _of_project(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    inside = path.is_relative_to(ROOT) and ".venv" not in path.parts
    return str(path.relative_to(ROOT)) if inside else ""


def _in_thread_of(store: LocalStore, call: Callable[[], None]) -> None:
    done = threading.Event()
    assert store._loop is not None
    store._loop.call_soon_threadsafe(call)
    store._loop.call_soon_threadsafe(done.set)
    assert done.wait(30)


def listed() -> set[str]:
    """The broker's files that have their whole path in the numbered list of the write path."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## The write path\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^(?:\d+\. |   ).*$", section, re.MULTILINE)
    return set(re.findall(r"`(services/broker/[a-z_/]+\.py)`", "\n".join(steps)))


def test_a_plain_send_passes_through_the_files_of_the_write_path_only(store: LocalStore) -> None:
    with Client(store.url) as client:
        for _ in range(WARM_UP_SENDS):
            client.send()
        # Timers, and the dispatch of what was sent before, run in the same thread now and then, on
        # a busy machine during most sends.
        for _ in range(TRACED_SENDS):
            calls = traced(store, client)
            files = {call.file for call in calls if call.file.startswith(BROKER)}
            leaving = [call for call in calls if call.caller != call.file]
            if len(leaving) <= CALLS_MAX and files == listed():
                break
    print(f"{len(files)} files of the broker, {len(leaving)} calls that leave their file")
    assert len(files) <= FILES_MAX
    assert len(leaving) <= CALLS_MAX
    assert files == listed()
