from __future__ import annotations

import asyncio
import os
import resource
import signal

import pytest

from shared.runtime.lifecycle import (
    raise_descriptor_limit,
    run_parts,
    run_process,
    run_work,
    stop_on_signals,
)
from tidemark.errors import BadConfig, PartEnded, StoreLocked


async def test_parts_run_until_stop_and_return() -> None:
    stop, ended = asyncio.Event(), []

    async def part() -> None:
        await stop.wait()
        ended.append(1)

    asyncio.get_running_loop().call_soon(stop.set)
    await run_parts(stop, {"one": part, "two": part})
    assert ended == [1, 1]


async def test_a_part_that_fails_stops_the_others_and_its_error_comes_out() -> None:
    stop, ended = asyncio.Event(), []

    async def fails() -> None:
        raise StoreLocked("held")

    async def works() -> None:
        await stop.wait()
        ended.append(1)

    with pytest.raises(StoreLocked):
        await run_parts(stop, {"fails": fails, "works": works})
    assert ended == [1]


async def test_several_failures_come_out_together() -> None:
    async def fails() -> None:
        raise StoreLocked("held")

    with pytest.raises(ExceptionGroup) as caught:
        await run_parts(asyncio.Event(), {"a": fails, "b": fails})
    assert len(caught.value.exceptions) == 2


async def test_a_part_that_just_ends_is_a_failure() -> None:
    async def ends() -> None:
        pass

    with pytest.raises(PartEnded, match="flusher"):
        await run_parts(asyncio.Event(), {"flusher": ends})


async def test_a_part_that_does_not_hear_stop_is_cancelled_after_the_grace_time() -> None:
    stop = asyncio.Event()
    cancelled = []

    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    asyncio.get_running_loop().call_soon(stop.set)
    await run_parts(stop, {"deaf": deaf}, grace_s=0.01)
    assert cancelled == [1]


async def test_a_signal_asks_to_stop() -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), 5)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(signum)


def test_the_exit_status_shows_the_kind_of_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    async def good() -> None:
        pass

    async def locked() -> None:
        raise StoreLocked("held by process 7")

    async def misconfigured() -> None:
        raise BadConfig("port")

    async def both() -> None:
        raise ExceptionGroup("two", [StoreLocked("a"), OSError("b")])

    async def bug() -> None:
        raise RuntimeError("bug")

    assert [run_process(one) for one in (good, locked, misconfigured, both)] == [0, 1, 2, 1]
    assert "tidemark: [store-locked] held by process 7" in capsys.readouterr().err
    with pytest.raises(RuntimeError):
        run_process(bug)


def test_a_command_without_a_loop_ends_with_the_same_statuses() -> None:
    def fails() -> None:
        raise StoreLocked("held")

    assert run_work(lambda: None) == 0
    assert run_work(fails) == 1


def test_descriptors_are_allowed_as_far_as_the_system_lets_us() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        raise_descriptor_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("why", "lines"), [("TIDEMARK_PURE is set", 1), ("", 0)])
def test_a_service_logs_once_that_the_pure_implementation_runs(
    why: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidemark.formats.native.WHY_PURE", why)

    async def good() -> None:
        pass

    with caplog.at_level("WARNING"):
        assert run_process(good) == 0
    said = [record for record in caplog.records if getattr(record, "event", "") == "pure-twins"]
    assert [getattr(record, "reason", "") for record in said] == [why] * lines
