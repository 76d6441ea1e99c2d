"""Producers and consumers of the stage: one thread with a loop, and a member that can be killed.

A pace is a target: a loop that comes late sends what it owes. Everything runs until ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import subprocess
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import tidemark
from drills.lag import plan
from drills.lag.plan import Times
from drills.lag.processes import StageFailed
from shared.runtime import programs
from tidemark.client.client import Client
from tidemark.client.messages import NewMessage
from tidemark.errors import TidemarkError
from tidemark.formats.message import Message

TICK_S: Final = 0.2
BODY: Final = b"x" * 20
IN_FLIGHT_MAX: Final = 256
"""Of the slow group: what it leaves undone soon is more, so that most of it waits in the broker
behind its handler."""
SETUP_S: Final = 60.0
REST_S: Final = 0.5
"""Between two lives of the poisoned program."""
_CLIENT_LOG: Final = logging.getLogger("tidemark.client")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


class Poisoned(Exception):
    """What the handler of the poisoned group says of its message."""


class Load:
    """All traffic. What goes wrong in the background is kept, and raised by ``check``."""

    def __init__(self, orders: Sequence[str], payments: str, times: Times, directory: Path) -> None:
        """orders, payments: URLs of the nodes that have the topic."""
        self._orders, self._payments, self._times = list(orders), payments, times
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="load")
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: dict[str, BaseException] = {}
        self._doomed: subprocess.Popen[bytes] | None = None
        self.sent = {plan.ORDERS: 0, plan.PAYMENTS: 0}
        """Messages acknowledged, by topic."""
        self._told: logging.Handler | None = None

    def __enter__(self) -> Load:
        self._tell_elsewhere()
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
        """Everything ends."""
        self.kill_member()
        if self._loop.is_closed():
            return
        self._run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._tell_as_before()

    def kill_member(self) -> None:
        """The only member of ``stopped`` dies without a word."""
        if self._doomed is not None and self._doomed.poll() is None:
            self._doomed.kill()
            self._doomed.wait()

    def plant_poison(self) -> None:
        """Send the message at which the poisoned group fails."""
        self._run(self._send_poison())

    def check(self) -> None:
        """Raises StageFailed with what went wrong in the background."""
        for name, error in self._failed.items():
            raise StageFailed(f"{name} ended: {error!r}") from error

    def _tell_elsewhere(self) -> None:
        """What clients log goes to a file: the poisoned one has much to say."""
        self._told = logging.FileHandler(self._directory / "load.log", encoding="utf-8")
        _CLIENT_LOG.addHandler(self._told)
        _CLIENT_LOG.propagate = False

    def _tell_as_before(self) -> None:
        if self._told is not None:
            _CLIENT_LOG.removeHandler(self._told)
            self._told.close()
            _CLIENT_LOG.propagate = True

    # -- beginning and end ------------------------------------------------------------------------

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
        """Topics and groups, each as its plan says; groups begin at the end of what there is."""
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
        """One message for each number, to the queue that is its turn."""
        by_queue: dict[int, list[NewMessage]] = {}
        for number in numbers:
            by_queue.setdefault(number % queues, []).append(NewMessage(BODY))
        for queue, messages in by_queue.items():
            # A node that is busy for a moment is no end of the load: what it misses is not sent.
            with contextlib.suppress(TidemarkError):
                await client.send_many(topic, messages, queue=queue)
                self.sent[topic] += len(messages)

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
                # From when the last one ended, not from now: a loop that comes late catches up.
                free_at = max(free_at, loop.time() - 1) + len(batch) / per_s
                await asyncio.sleep(max(0.0, free_at - loop.time()))

    async def _crash_again_and_again(self) -> None:
        """The poisoned group's program: handles all queues beside each other, dies, comes back."""
        async with tidemark.connect(self._orders) as client:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with (
                        asyncio.timeout(self._times.crash_s),
                        client.subscribe(
                            plan.ORDERS,
                            group=plan.POISON.group,
                            member="poisoned",
                        ) as messages,
                    ):
                        await messages.run(_handle, concurrency=plan.ORDERS_QUEUES)
                await asyncio.sleep(REST_S)

    def _start_doomed(self) -> None:
        """The member that is killed later: a process of its own."""
        log = self._directory / "stopped.log"
        with log.open("wb") as file:
            self._doomed = subprocess.Popen(
                [
                    *programs.python_module(f"{__package__}.member"),
                    *(plan.ORDERS, plan.STOPPED.group, str(self._times.session_ms)),
                    *self._orders,
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=_die_with_parent,
            )


async def _handle(message: Message) -> None:
    if plan.POISON_KEY in message.keys:
        raise Poisoned(f"{message.body!r} is no number")


def _die_with_parent() -> None:
    """In the child: SIGKILL when this process is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
