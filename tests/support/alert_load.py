"""Producers and consumers for the clusters of the alert drill, all in one thread with a loop.

A pace is a target: a loop that comes late sends what it owes. Everything runs until ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self

import tidemark
from tidemark.client.client import Client
from tidemark.client.messages import NewMessage
from tidemark.errors import TidemarkError

TICK_S: Final = 0.25
BODY: Final = b"x" * 200
SESSION_MS: Final = 10_000


class AlertLoad:
    """Tasks in the background. An error of a task is kept and raised by ``check``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, BaseException] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, None], timeout_s: float = 60.0) -> None:
        """Do something once and wait for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin something that goes on until it is stopped. It must not end by itself."""

        async def begin() -> None:
            self._tasks[name] = asyncio.create_task(self._keep(name, work), name=name)

        self.run(begin())

    def stop(self, name: str) -> None:
        """Cancel a background task."""
        task = self._tasks.pop(name)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.run(end())

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self._failed[name] = AssertionError("it ended by itself")
        except Exception as error:  # noqa: BLE001 - raised by check, in the test's thread
            self._failed[name] = error

    def check(self) -> None:
        """Raises an error of the background tasks."""
        for name, error in self._failed.items():
            raise AssertionError(f"{name} failed") from error


def producing(
    url: str | Sequence[str],
    topic: str,
    per_s: float,
    make: Callable[[int], NewMessage] | None = None,
) -> Callable[[], Awaitable[None]]:
    """Send per_s messages a second. make: returns the message with a number. Refusals are waited
    out."""

    async def work() -> None:
        async with tidemark.connect(url) as client:
            await _forever(client, topic, per_s, make or (lambda _: NewMessage(BODY)))

    return work


async def _forever(
    client: Client, topic: str, per_s: float, make: Callable[[int], NewMessage]
) -> None:
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    while True:
        due = int((loop.time() - began) * per_s)
        if due > sent:
            with contextlib.suppress(TidemarkError):
                await client.send_many(topic, [make(number) for number in range(sent, due)])
            sent = due
        await asyncio.sleep(TICK_S)


def consuming(
    url: str | Sequence[str],
    topic: str,
    group: str,
    *,
    per_s: float | None = None,
    tags: str = "*",
    stands_still: bool = False,
) -> Callable[[], Awaitable[None]]:
    """Read as a member of a group. per_s: messages a second at most. stands_still: take the first
    messages and never finish them."""

    async def work() -> None:
        async with (
            tidemark.connect(url) as client,
            client.subscribe(topic, group=group, tags=tags, session_ms=SESSION_MS) as messages,
        ):
            async for batch in messages.batches(max(1, int((per_s or 2000) * TICK_S))):
                if stands_still:
                    await asyncio.Event().wait()
                if per_s is not None:
                    await asyncio.sleep(len(batch) / per_s)

    return work
