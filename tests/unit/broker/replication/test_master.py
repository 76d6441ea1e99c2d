"""A term is served and closed in one order, by a node of a group and by a standalone node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.broker.log.term import EndlessTerm
from services.broker.replication.master import Master
from shared.runtime.clock import SystemClock
from tidemark.errors import FlushFailed
from tidemark.offsets import PhysicalOffset

END = PhysicalOffset(500)


class Term:
    """A grant that a test ends."""

    epoch = 3
    is_valid = True


class World:
    """A leadership with its log and components; it notes what is done to them."""

    poll_s = 0.001

    def __init__(self, term: object) -> None:
        self.term = cast(Any, term)
        self.steps: list[str] = []
        self.flushed = PhysicalOffset(0)
        self.is_damaged = False
        self.flush_fault: Exception | None = None
        self.closed: asyncio.Future[bool] | None = None
        self.opened = asyncio.Event()
        self.is_recorded = asyncio.Event()

    # -- the leadership ---------------------------------------------------------------------------

    async def recover_and_build(self, over: asyncio.Event) -> Any:
        if self.is_damaged:
            await over.wait()
            return None
        note = self.steps.append
        log_context = SimpleNamespace(
            flusher=SimpleNamespace(run=self._flush, failed=self.flush_fault is not None),
            files=SimpleNamespace(run=asyncio.Event.wait),
            committer_part=lambda stop: {},
            durability=SimpleNamespace(poll=self._poll, end_waits=lambda: note("waits end")),
            appender=SimpleNamespace(close=lambda *, clean: note(f"log closed, clean={clean}")),
            abandon=lambda: None,
        )
        held = SimpleNamespace(close=lambda: note("pulls end"))
        puller = SimpleNamespace(wake_held=lambda: False, long_polls=held)
        return SimpleNamespace(
            components=SimpleNamespace(read=SimpleNamespace(puller=puller)),
            core=SimpleNamespace(
                log=log_context,
                append=SimpleNamespace(close=lambda: note("appends end")),
                state_log=SimpleNamespace(run=asyncio.Event.wait),
            ),
            consuming=SimpleNamespace(runners=self._runners, finish=self._noted("finished")),
            config_files=SimpleNamespace(
                run=asyncio.Event.wait, write_all=self._noted("files written")
            ),
            opening=SimpleNamespace(run=self._open),
        )

    def begin(self) -> None:
        self.steps.append("begun")

    def recorded(self, log_context: object, end: PhysicalOffset) -> None:
        self.steps.append("recorded")
        self.is_recorded.set()

    def is_confirmed(self, log_context: object, end: PhysicalOffset | None) -> bool:
        return end is not None and self.flushed >= end

    def open(self) -> None:
        self.steps.append("open")

    def watch(self, log_context: object) -> None:
        """The disk has space."""

    def shut(self) -> None:
        if self.steps[-1:] != ["shut"]:
            self.steps.append("shut")

    def release(self) -> None:
        self.steps.append("released")

    # -- the parts --------------------------------------------------------------------------------

    def _noted(self, step: str) -> Any:
        async def part() -> None:
            self.steps.append(step)

        return part

    async def _open(self, over: asyncio.Event) -> PhysicalOffset:
        return END

    async def _flush(self, stop: asyncio.Event) -> None:
        if self.flush_fault is not None:
            raise self.flush_fault
        await stop.wait()
        self.steps.append("flushed")

    def _poll(self) -> bool:
        if "finished" in self.steps:
            self.steps.append("senders polled")
        return self.steps.count("senders polled") == 1

    def _runners(self, stop: asyncio.Event, opened: asyncio.Event, closed: Any) -> Any:
        self.opened, self.closed = opened, closed
        return {}


async def served(world: World, *, stops: bool = True) -> bool:
    """Serve; confirm the first records, then stop the process or end the grant."""
    bell = SimpleNamespace(wake=lambda: None, ring=lambda _: None, wait=asyncio.sleep)
    context = SimpleNamespace(
        broker=SimpleNamespace(doorbell=bell, clock=SystemClock()), serve=lambda *_: None
    )
    stop = asyncio.Event()
    running = asyncio.create_task(Master(cast(Any, context), world).run(stop, stop))
    async with asyncio.timeout(10):
        if not world.is_damaged and world.flush_fault is None:
            await world.is_recorded.wait()
            assert "open" not in world.steps, "the first records are not confirmed"
            world.flushed = END
            await world.opened.wait()
        if stops:
            stop.set()
        else:
            world.term.is_valid = False
        return await running


BEGIN = ["begun", "recorded", "open"]
ENDS = ["appends end", "pulls end"]
CLOSE = ["shut", *ENDS, "waits end", "flushed", "log closed, clean=True", "released"]


@pytest.mark.parametrize("term", [Term, EndlessTerm])
async def test_a_stop_closes_in_order_whoever_confirms(term: type) -> None:
    world = World(term())
    assert await served(world)
    finish = ["shut", "finished", *ENDS, *["senders polled"] * 2, "files written"]
    assert world.steps == [*BEGIN, *finish, *CLOSE, "shut", "released"]
    assert world.closed is not None
    assert world.closed.result(), "the process ends"


async def test_a_term_that_ends_finishes_nothing() -> None:
    world = World(Term())
    assert await served(world, stops=False)
    assert world.steps == [*BEGIN, *CLOSE, "shut", "released"]
    assert world.closed is not None
    assert not world.closed.result(), "the node goes on as a slave"


async def test_a_failed_flush_ends_the_term_and_the_log_is_not_closed_clean() -> None:
    world = World(EndlessTerm())
    world.flush_fault = FlushFailed("planted")
    with pytest.raises(FlushFailed):
        await served(world, stops=False)
    assert "log closed, clean=False" in world.steps
    assert world.steps[-1] == "released"


async def test_a_damaged_store_is_not_closed_in_order() -> None:
    world = World(EndlessTerm())
    world.is_damaged = True
    assert not await served(world)
    assert world.steps == ["shut", "released"]
