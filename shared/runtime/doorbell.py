"""Doorbells: one-byte datagrams on ``run_dir/<service>.sock`` that say "look again".

A ring carries no data and may be lost: whoever waits also polls. Doorbell for speed, poll for
certainty. A *note* may come with one, for lines of the log only; it may be lost as well. Ringing
never blocks and never fails: a full socket means that a ring is already waiting, a missing one that
nobody listens.
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
    """This service's own bell, and the means to ring the others'.

    Made before the loop runs; ``wait`` belongs to one task. ``ring`` may be called from any thread.
    """

    def __init__(self, run_dir: Path, service: str) -> None:
        """Listen on the service's socket, in place of one that a killed process left behind."""
        self._run_dir = run_dir
        self._path = socket_path(run_dir, service)
        self._paths: dict[str, str] = {}
        run_dir.mkdir(parents=True, exist_ok=True)
        # A stale file makes bind fail. Removing a live one is excluded by the service's lock byte.
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
        self.on_note: Callable[[bytes], None] | None = None
        """Takes the notes that come with rings; None: they are dropped."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait until rung, at most timeout_s seconds; tell whether it rang.

        A ring that came since the last wait counts: none is lost between looking and waiting.
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
        """Hear nothing for so long: rings do not even wake the loop. They count for the next wait,
        and so does a ``wake`` of this process."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            loop.remove_reader(self._socket)
            self._loop = None
        await asyncio.sleep(seconds)

    def wake(self) -> None:
        """End a wait of this process, as a ring would. From the loop's thread only."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._rung = False
            self._waiter.set_result(True)

    def _on_ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:  # bounded by the socket's queue (net.unix.max_dgram_qlen)
                note = self._socket.recv(NOTE_SIZE_MAX)
                if len(note) > len(_RING) and self.on_note is not None:
                    self.on_note(note)
        self.wake()

    def ring(self, service: str, note: bytes = b"") -> bool:
        """Wake a service if it listens; tell whether the datagram was taken.

        note: more than one byte, for the other's log; nothing may depend on it.
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
        """Stop listening and remove the socket file; once: the next one may be a successor's.

        To be called while the service has its lock byte.
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
