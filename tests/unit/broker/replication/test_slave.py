"""A slave's broker: what it keeps up besides serving reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.broker.api.gate import Gate
from services.broker.replication import slave as module
from services.broker.replication.slave import Slave
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.unit.broker.replication.page import Page
from tidemark.errors import DamagedFile
from tidemark.formats.checkpoint import Slot, Trouble


class Retention:
    """Runs until it is stopped, and reports its state."""

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
        self.whole = True

    def is_far_behind(self, dispatched: int) -> bool:
        return self.far

    def is_whole(self) -> bool:
        return self.whole

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
        """No test waits for time."""

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the slave's own loop goes on meanwhile
            await asyncio.sleep(0)


def a_slave(
    monkeypatch: pytest.MonkeyPatch,
    followed: Followed,
    running: list[str],
    *,
    positions: object,
    health: Health,
    gate: object,
    changes: Callable[[], int] = lambda: 0,
    wake: Callable[[], None] = lambda: None,
    answer: Callable[[], None] = lambda: None,
) -> Slave:
    held = SimpleNamespace(close=lambda: None, wake_all_queues=wake, answer_all=answer)

    def build_with(log_context: object, metrics: object, state: str, queue_ends: object) -> Any:
        components = SimpleNamespace(read=SimpleNamespace(puller=SimpleNamespace(long_polls=held)))
        consuming = SimpleNamespace(retention=Retention(state, running))
        return SimpleNamespace(
            components=components, consuming=consuming, config_files=Files(state, running)
        )

    monkeypatch.setattr(module, "build_with", build_with)
    store = SimpleNamespace(
        follows=True,
        dispatch_is_known=True,
        dispatched=1,
        positions=positions,
        check_not_emptied=lambda: None,
        granted=lambda served: None,
    )
    checks = SimpleNamespace(changes=changes, may_heal=lambda error: False)
    context = SimpleNamespace(
        broker=SimpleNamespace(doorbell=Bell(), health=health),
        gate=gate,
        metrics=SimpleNamespace(),
        serve=lambda components, log_context: None,
    )
    fakes: list[Any] = [
        context,
        SimpleNamespace(queues=None, unit_checks=checks, abandon=lambda: None),
        store,
        followed,
    ]
    return Slave(*fakes)


async def test_retention_uses_the_state_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state read before is no longer updated: every log file behind its snapshot would be
    kept."""
    followed, running = Followed(), cast("list[str]", [])
    slave = a_slave(
        monkeypatch,
        followed,
        running,
        positions=Page(),
        health=Health(SystemClock()),
        gate=cast(Any, Gate(Health(SystemClock()))),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(slave.run(stop, 0))
    for number in (1, 2, 3):
        await until(lambda number=number: sorted(running) == [f"files {number}", f"state {number}"])  # type: ignore[misc]
        followed.far = True
    await until(lambda: followed.read == 4)
    stop.set()
    assert await task is None
    assert running == ["written at the stop"]


class ReputPage(Page):
    """A page that says which start of reput made the queues."""

    resumed = (1, 1)

    def resumed_dispatch(self) -> tuple[int, int]:
        return self.resumed


async def test_a_slave_that_met_damage_serves_again_once_reput_has_made_the_queues_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Reads stayed open behind the damage, with a state that was not updated. After reput had
    # rebuilt the queues, the node still served nothing, and reported trouble, until its broker was
    # restarted. Pulls that were held waited for a node that served nothing.
    class Damaged(Followed):
        damaged = False

        def follow(self, dispatched: int) -> int:
            if self.damaged:
                raise DamagedFile("a unit of the state queue")
            return 0

    followed, page, health = Damaged(), ReputPage(), Health(SystemClock())
    gate, answered = Gate(health), list[bool]()
    slave = a_slave(
        monkeypatch,
        followed,
        [],
        positions=page,
        health=health,
        gate=gate,
        answer=lambda: answered.append(gate.reads_open),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(slave.run(stop, 0))
    await until(lambda: gate.reads_open)

    followed.damaged = True
    await until(lambda: page.get(Slot.BROKER_TROUBLE) == Trouble.DAMAGED)
    assert (gate.reads_open, answered) == (False, [False])
    with pytest.raises(DamagedFile):
        gate.check_reads(anywhere=True)
    followed.damaged = False
    for _ in range(5):
        await asyncio.sleep(0)
    assert not gate.reads_open, "reput has made nothing anew"

    page.resumed = (1, 2)
    await until(lambda: gate.reads_open)
    gate.check_reads(anywhere=True)
    assert page.get(Slot.BROKER_TROUBLE) == Trouble.NONE
    assert [reason.code for reason in health.reasons] == []
    stop.set()
    assert await task is None


async def test_reads_open_once_the_copied_log_has_a_whole_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed, health = Followed(), Health(SystemClock())
    followed.whole, gate = False, Gate(health)
    slave = a_slave(monkeypatch, followed, [], positions=Page(), health=health, gate=gate)
    stop = asyncio.Event()
    task = asyncio.create_task(slave.run(stop, 0))
    await until(lambda: [reason.code for reason in health.reasons] == ["no-state"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert not gate.reads_open
    followed.whole = True
    await until(lambda: gate.reads_open)
    assert [reason.code for reason in health.reasons] == []
    stop.set()
    assert await task is None


async def test_pulls_are_woken_after_a_restart_of_reput_that_reaches_the_same_offset_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pull that had read the shorter queue meanwhile was held to its time-out."""
    changes, wakes, gate = [0], cast("list[int]", []), Gate(Health(SystemClock()))
    slave = a_slave(
        monkeypatch,
        Followed(),
        [],
        positions=Page(),
        health=Health(SystemClock()),
        gate=gate,
        changes=lambda: changes[0],
        wake=lambda: wakes.append(changes[0]),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(slave.run(stop, 0))
    await until(lambda: wakes == [0])
    for _ in range(5):
        await asyncio.sleep(0)
    assert wakes == [0], "nothing was dispatched"
    changes[0] = 1
    await until(lambda: wakes == [0, 1])
    stop.set()
    assert await task is None


async def test_a_slave_that_is_stopped_shows_that_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    # It showed `serving` until its files were written, although its reads were refused.
    health = Health(SystemClock())
    gate = Gate(health)
    slave = a_slave(monkeypatch, Followed(), [], positions=Page(), health=health, gate=gate)
    stop = asyncio.Event()
    task = asyncio.create_task(slave.run(stop, 0))
    await until(lambda: health.ready)
    stop.set()
    await until(lambda: not gate.reads_open)
    assert health.state == "stopping"
    assert await task is None
