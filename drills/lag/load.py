"""Producers and consumers of the stage: one thread with a loop, and a member that can be killed.

Rates are targets: a loop that is late sends the missing messages. Everything runs until ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import tidemark
from drills.lag import plan
from drills.lag.plan import Times
from drills.lag.processes import StageFailed
from shared.runtime import programs
from shared.runtime.parent_death import kill_with_parent
from tidemark.client.client import Client
from tidemark.client.messages import NewMessage
from tidemark.errors import TidemarkError
from tidemark.formats.message import Message
from tidemark.testing.child import ChildProcess

TICK_S: Final = 0.2
BODY: Final = b"x" * 20
IN_FLIGHT_MAX: Final = 256
"""For the slow group. It is small, so that most of its backlog waits in the broker and not in the
client behind its handler."""
SETUP_S: Final = 60.0
REST_S: Final = 0.5
"""Pause between two runs of the crashing program."""
_CLIENT_LOG: Final = logging.getLogger("tidemark.client")


class Poisoned(Exception):
    """Raised by the handler of the poisoned group for its message."""


class Load:
    """All traffic. Errors in the background are stored, and raised by ``check``."""

    def __init__(self, orders: Sequence[str], payments: str, times: Times, directory: Path) -> None:
        """orders, payments: URLs of the nodes that have these topics."""
        self._orders, self._payments, self._times = list(orders), payments, times
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="load")
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: dict[str, BaseException] = {}
        self._doomed = ChildProcess(directory / "stopped.log", before_exec=kill_with_parent)
        self.sent = {plan.ORDERS: 0, plan.PAYMENTS: 0}
        """Acknowledged messages by topic."""
        self.sent_at: dict[tuple[str, int], list[tuple[int, float]]] = {}
        """By topic and queue: the first offset of each acknowledged batch, and the time at which it
        was sent [seconds since 1970], in order."""
        self._log_handler: logging.Handler | None = None

    def __enter__(self) -> Load:
        self._redirect_log()
        self._thread.start()
        try:
            self._run(self._set_up())
            self._start_doomed()
            for name, work in (
                ("producer of orders", self._produce(self._orders, plan.ORDERS)),
                ("producer of payments", self._produce([self._payments], plan.PAYMENTS)),
                (plan.HEALTHY.group, self._read(self._orders, plan.ORDERS, plan.HEALTHY.group)),
                (plan.HIDDEN.group, self._read([self._payments], plan.PAYMENTS, plan.HIDDEN.group)),
                (plan.SLOW.group, self._read_slowly()),
                (plan.POISON.group, self._crash_again_and_again()),
            ):
                self._run(self._begin(name, work))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.kill_member()
        if self._loop.is_closed():
            return
        self._run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._restore_log()

    def kill_member(self) -> None:
        """Kill the only member of ``stopped`` with SIGKILL."""
        self._doomed.kill()

    def plant_poison(self) -> None:
        """Send the message that the poisoned group cannot process."""
        self._run(self._send_poison())

    def check(self) -> None:
        """Raise StageFailed for an error in the background."""
        for name, error in self._failed.items():
            raise StageFailed(f"{name} ended: {error!r}") from error

    def _redirect_log(self) -> None:
        """Redirect the clients' log to a file, because the poisoned one logs much."""
        self._log_handler = logging.FileHandler(self._directory / "load.log", encoding="utf-8")
        _CLIENT_LOG.addHandler(self._log_handler)
        _CLIENT_LOG.propagate = False

    def _restore_log(self) -> None:
        if self._log_handler is not None:
            _CLIENT_LOG.removeHandler(self._log_handler)
            self._log_handler.close()
            _CLIENT_LOG.propagate = True

    # -- start and stop ---------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SETUP_S)

    async def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(self._keep(name, work), name=name))

    async def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self._failed[name] = StageFailed("it must not end by itself")
        except Exception as error:  # noqa: BLE001 - raised by check, in the caller's thread
            self._failed[name] = error

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _set_up(self) -> None:
        """Create topics and groups by the plan; groups start at the current end."""
        objective_ms = self._times.objective_ms
        async with tidemark.connect(self._orders) as client:
            await client.create_topic(plan.ORDERS, queues=plan.ORDERS_QUEUES)
            for planted in (plan.HEALTHY, plan.SLOW, plan.STOPPED):
                await client.groups.create(planted.group, lag_objective_ms=objective_ms)
            await client.groups.create(
                plan.POISON.group, order=True, retry_max=1000, lag_objective_ms=objective_ms
            )
        async with tidemark.connect(self._payments) as client:
            await client.create_topic(plan.PAYMENTS, queues=plan.PAYMENTS_QUEUES)
            await client.groups.create(plan.HIDDEN.group, lag_objective_ms=objective_ms)

    # -- producers --------------------------------------------------------------------------------

    async def _produce(self, urls: Sequence[str], topic: str) -> None:
        queues, per_s = {
            plan.ORDERS: (plan.ORDERS_QUEUES, plan.ORDERS_PER_S),
            plan.PAYMENTS: (plan.PAYMENTS_QUEUES, plan.PAYMENTS_PER_S),
        }[topic]
        loop = asyncio.get_running_loop()
        async with tidemark.connect(list(urls)) as client:
            began, sent = loop.time(), 0
            while True:
                due = int((loop.time() - began) * per_s)
                if due > sent:
                    await self._send(client, topic, range(sent, due), queues)
                    sent = due
                await asyncio.sleep(TICK_S)

    async def _send(self, client: Client, topic: str, numbers: range, queues: int) -> None:
        """Send one message per number, to the queues in turn."""
        by_queue: dict[int, list[NewMessage]] = {}
        for number in numbers:
            by_queue.setdefault(number % queues, []).append(NewMessage(BODY))
        for queue, messages in by_queue.items():
            # The load survives a node that is busy for a moment; these messages are not sent.
            with contextlib.suppress(TidemarkError):
                sent_s = time.time()
                stored = await client.send_many(topic, messages, queue=queue)
                self.sent[topic] += len(messages)
                batches = self.sent_at.setdefault((topic, queue), [])
                batches.append((stored[0].queue_offset, sent_s))

    async def _send_poison(self) -> None:
        async with tidemark.connect(self._orders) as client:
            await client.send(
                plan.ORDERS, b"no number", queue=plan.POISON_QUEUE, keys=[plan.POISON_KEY]
            )

    # -- consumers --------------------------------------------------------------------------------

    async def _read(self, urls: Sequence[str], topic: str, group: str) -> None:
        async with (
            tidemark.connect(list(urls)) as client,
            client.subscribe(topic, group=group) as messages,
        ):
            async for _ in messages.batches():
                pass

    async def _read_slowly(self) -> None:
        per_s = plan.ORDERS_PER_S * plan.SLOW_SHARE
        loop = asyncio.get_running_loop()
        async with (
            tidemark.connect(self._orders) as client,
            client.subscribe(
                plan.ORDERS, group=plan.SLOW.group, max_in_flight=IN_FLIGHT_MAX
            ) as messages,
        ):
            free_at = loop.time()
            async for batch in messages.batches(8):
                # Relative to the end of the last one, so that a late loop catches up.
                free_at = max(free_at, loop.time() - 1) + len(batch) / per_s
                await asyncio.sleep(max(0.0, free_at - loop.time()))

    async def _crash_again_and_again(self) -> None:
        """Run the poisoned group's program: handle all queues concurrently, crash, restart.

        Its session is short, because a new master keeps the queues of an ordered group for the
        former members until the time of a session has passed.
        """
        async with tidemark.connect(self._orders) as client:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with (
                        asyncio.timeout(self._times.crash_s),
                        client.subscribe(
                            plan.ORDERS,
                            group=plan.POISON.group,
                            member="poisoned",
                            session_ms=self._times.session_ms,
                        ) as messages,
                    ):
                        await messages.run(_handle, concurrency=plan.ORDERS_QUEUES)
                await asyncio.sleep(REST_S)

    def _start_doomed(self) -> None:
        """Start the member that is killed later, as a separate process."""
        self._doomed.start(
            [
                *programs.python_module(f"{__package__}.member"),
                *(plan.ORDERS, plan.STOPPED.group, str(self._times.session_ms)),
                *self._orders,
            ]
        )


async def _handle(message: Message) -> None:
    if plan.POISON_KEY in message.keys:
        raise Poisoned(f"{message.body!r} is not a number")
