"""A TCP link through this process that can be cut: then bytes vanish in both directions.

Nothing is refused and nothing closed, as with a broken switch. Its loop runs in a thread of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Final, TypeVar

CHUNK: Final = 1 << 16
T = TypeVar("T")


class CutLink:
    """Listens on a loopback port of its own and passes everything on to another."""

    def __init__(self, target_port: int) -> None:
        """target_port: on the loopback; it need not be open yet."""
        self._target_port = target_port
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Let all bytes vanish from now on."""
        self._loop.call_soon_threadsafe(setattr, self, "_is_cut", True)

    def heal(self) -> None:
        """Break earlier connections, whose bytes are lost, and pass new ones."""
        self._call(self._heal())

    def close(self) -> None:
        """Close everything; the thread ends."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._pass_on, "127.0.0.1", 0)

    async def _heal(self) -> None:
        self._is_cut = False
        for writer in [*self._writers]:
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while self._is_cut:
                await self._vanish(reader)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, far_writer))
                    both.create_task(self._pump(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except* (OSError, _Over):
            pass  # one end has closed: so the link ends
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _vanish(self, reader: asyncio.StreamReader) -> None:
        """Discard incoming bytes. Raises _Over at the end."""
        if not await reader.read(CHUNK):
            raise _Over

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises _Over at the end, which also ends the other direction."""
        while data := await reader.read(CHUNK):
            if not self._is_cut:
                writer.write(data)
                with contextlib.suppress(ConnectionResetError):
                    await writer.drain()
        raise _Over


class _Over(Exception):
    """One side has closed."""
