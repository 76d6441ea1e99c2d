"""Doorbells: small datagrams on ``run_dir/<service>.sock`` that wake another process.

A ring is one byte without a meaning and may be lost, so every waiting process also polls: the
doorbell is for speed, polling for certainty. A ring may carry a *note* instead, for log lines only,
which may be lost as well. Ringing never blocks and never fails: a full socket means that a ring is
already waiting, a missing socket that no process listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidemark.errors import PathTooLong

SOCKET_PATH_SIZE_MAX: Final = 108
"""Bytes of sun_path in Linux's sockaddr_un, the terminating zero included."""
NOTE_SIZE_MAX: Final = 1024
"""A longer note is not sent."""
_RING: Final = b"\x01"


def socket_path(run_dir: Path, service: str) -> Path:
    """Path of a service's socket. Raises PathTooLong, naming path and limit."""
    path = run_dir / f"{service}.sock"
    size = len(os.fsencode(path)) + 1
    if size > SOCKET_PATH_SIZE_MAX:
        raise PathTooLong(
            f"the socket path {path} takes {size} bytes, the kernel takes "
            f"{SOCKET_PATH_SIZE_MAX}. Nothing was started.",
            "Set a shorter run_dir, for example one below /run.",
            path=path,
            size=size,
            size_max=SOCKET_PATH_SIZE_MAX,
        )
    return path


class Doorbell:
    """This service's own doorbell, and the means to ring those of others.

    It is created before the loop runs. ``wait`` belongs to one task; ``ring`` may be called from
    any thread.
    """

    def __init__(
        self, run_dir: Path, service: str, on_note: Callable[[bytes], None] | None = None
    ) -> None:
        """Listen on the service's socket; a socket left by a killed process is replaced.

        on_note: called with the notes that come with rings; None: notes are dropped.
        """
        self._run_dir = run_dir
        self._path = socket_path(run_dir, service)
        self._paths: dict[str, str] = {}
        run_dir.mkdir(parents=True, exist_ok=True)
        # A stale file makes bind fail. It is not a live one: the service's lock byte excludes that.
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._rung = False
        self._on_note = on_note

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a ring, at most timeout_s seconds; return whether one came.

        A ring since the last wait counts, so none is lost between checking for work and waiting.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            loop.add_reader(self._socket, self._on_ring)
            self._loop = loop
        if self._rung:
            self._rung = False
            return True
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, _settle, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def rest(self, seconds: float) -> None:
        """Sleep without being woken by rings. Rings and ``wake`` calls meanwhile count for the next
        wait."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            loop.remove_reader(self._socket)
            self._loop = None
        await asyncio.sleep(seconds)

    def wake(self) -> None:
        """End a wait of this process, as a ring would. Call from the loop's thread only."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._rung = False
            self._waiter.set_result(True)

    def _on_ring(self) -> None:
        # One datagram per call: an empty socket raises an exception, which takes as long as the
        # rest. The loop calls again while there are more.
        with contextlib.suppress(BlockingIOError):
            note = self._socket.recv(NOTE_SIZE_MAX)
            if len(note) > len(_RING) and self._on_note is not None:
                self._on_note(note)
        self.wake()

    def ring(self, service: str, note: bytes = b"") -> bool:
        """Wake a service if it listens; return whether the datagram was sent.

        note: longer than one byte, for the other service's log; nothing may depend on it.
        """
        if len(note) > NOTE_SIZE_MAX:
            note = b""
        path = self._paths.get(service)
        if path is None:
            path = self._paths[service] = str(socket_path(self._run_dir, service))
        try:
            self._socket.sendto(note or _RING, path)
        except OSError:
            # Missing, refused, full or not permitted: the other side polls.
            return False
        return True

    def close(self) -> None:
        """Stop listening and remove the socket file. Later calls do nothing: the socket file may
        then belong to a successor.

        Call this while the service holds its lock byte.
        """
        if self._socket.fileno() < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._loop = None
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _settle(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
