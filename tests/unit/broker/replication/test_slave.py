"""A slave's broker: what it keeps up beside its reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.broker.replication import slave as module
from services.broker.replication.slave import Slave
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health


class Retention:
    """Runs until it is told not to, and tells which state it is of."""

    fullness = SimpleNamespace(sends_refused=False)

    def __init__(self, state: str, running: list[str]) -> None:
        self._state, self._running = state, running

    async def run(self, stop: asyncio.Event) -> None:
        self._running.append(self._state)
        await stop.wait()
        self._running.remove(self._state)


class Files:
    """The JSON files of a state, which run as retention does."""

    def __init__(self, state: str, running: list[str]) -> None:
        self._name, self._running = state.replace("state", "files"), running

    async def begin_following(self, epoch: int) -> None:
        """They may be written."""

    async def run(self, stop: asyncio.Event) -> None:
        self._running.append(self._name)
        await stop.wait()
        self._running.remove(self._name)

    async def write_all(self) -> bool:
        self._running.append("written at the stop")
        return True


class Followed:
    """A state that is read anew whenever ``far`` says so."""

    def __init__(self) -> None:
        self.far = False
        self.read = 0
        self.state = ""
        self.changed: set[object] = set()
        self.epoch = 1

    def is_far_behind(self, dispatched: int) -> bool:
        return self.far

    def replay(self, dispatched: int) -> None:
        self.far = False
        self.read += 1
        self.state = f"state {self.read}"

    def queue_ends(self, dispatched: int) -> dict[object, int]:
        return {}

    def follow(self, dispatched: int) -> int:
        return 0


class Bell:
    """Rings all the time."""

    def wake(self) -> None:
        """Nobody sleeps."""

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the slave's own loop goes on meanwhile
            await asyncio.sleep(0)


async def test_retention_goes_by_the_state_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was read before stands still: every log file behind its snapshot would stay."""
    followed, running = Followed(), cast("list[str]", [])

    def build_with(ground: object, state: str, queue_ends: object) -> Any:
        held = SimpleNamespace(close=lambda: None, may_all_look=lambda: None)
        parts = SimpleNamespace(puller=SimpleNamespace(held=held))
        consuming = SimpleNamespace(retention=Retention(state, running))
        return SimpleNamespace(parts=parts, consuming=consuming, config_files=Files(state, running))

    monkeypatch.setattr(module, "build_with", build_with)
    store = SimpleNamespace(
        follows=True,
        dispatch_is_known=True,
        dispatched=1,
        positions=SimpleNamespace(publish=lambda slot, value: None),
        check_not_emptied=lambda: None,
        granted=lambda served: None,
    )
    fakes: list[Any] = [
        SimpleNamespace(
            queues=None,
            unit_checks=SimpleNamespace(settle=lambda: False),
            abandon=lambda: None,
        ),
        store,
        followed,
        Bell(),
        Health(SystemClock()),
        SimpleNamespace(fault=None, reads_open=False, publish_damage=lambda positions: None),
        SimpleNamespace(parts=None),
        SimpleNamespace(queues=None),
    ]
    stop = asyncio.Event()
    task = asyncio.create_task(Slave(*fakes).run(stop, 0))
    for number in (1, 2, 3):
        await until(lambda number=number: sorted(running) == [f"files {number}", f"state {number}"])  # type: ignore[misc]
        followed.far = True
    await until(lambda: followed.read == 4)
    stop.set()
    assert await task is None
    assert running == ["written at the stop"]
