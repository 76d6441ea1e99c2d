"""The reput service in this process, with the test in the role of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import pytest
from click.testing import CliRunner, Result

from services.reput.__main__ import main
from services.reput.config import ReputConfig
from services.reput.dispatcher import Dispatcher
from services.reput.index_writer import IndexWriter
from services.reput.queue_writer import QueueWriter
from services.reput.service import Reput
from services.reput.unit_mending import UnitMending
from shared.files.os_disk import OsDisk, OsFile
from shared.files.store_dir import LockByte, StoreConfig
from shared.runtime.clock import SystemClock, boot_id
from shared.runtime.doorbell import Doorbell
from shared.runtime.traced_ranges import TracedRange, encode
from tests.support.node import free_port
from tests.support.small_store import CONFIG, SmallStore
from tidemark.errors import (
    DamagedFile,
    DiskFull,
    FlushFailed,
    OutOfResources,
    ReplacedPositions,
    RestartNeeded,
    StoreLocked,
)
from tidemark.formats.checkpoint import NodeRole, Slot, queue_number
from tidemark.offsets import UNIT_SIZE


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as name:  # pytest's paths are too long
        yield Path(name)


BROKER: Final = 4711
HOUR_MS: Final = 3_600_000


@pytest.fixture
def config(tmp_path: Path, run_dir: Path) -> ReputConfig:
    return ReputConfig(
        store_dir=tmp_path / "store",
        run_dir=run_dir,
        store=CONFIG,
        admin_port=free_port(),
        retry_interval_ms=20,
        sync_interval_ms=50,
    )


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Restore the test's logging after a command has configured its own."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook
    logging.captureWarnings(False)


def recovered(small: SmallStore) -> SmallStore:
    """Publish the state of a store that a running broker has recovered."""
    small.positions.publish(Slot.BROKER_PID, BROKER)
    small.positions.publish(Slot.BROKER_HEARTBEAT_MS, SystemClock().boot_ms() + HOUR_MS)
    small.positions.publish(Slot.RECOVERED_BY, BROKER)
    small.positions.publish(Slot.BOOT_ID_HIGH, boot_id().high)
    small.positions.publish(Slot.BOOT_ID_LOW, boot_id().low)
    return small


@pytest.fixture
def small(config: ReputConfig) -> Iterator[SmallStore]:
    store = recovered(SmallStore(config.store_dir))
    yield store
    store.close()


class Running:
    """A reput that runs in this event loop."""

    def __init__(self, config: ReputConfig) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(Reput(config, self.stop).run())
        self._url = f"http://127.0.0.1:{config.admin_port}"

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(self._url + path) as answer:
                    if answer.content_type == "application/json":
                        return answer.status, await answer.json()
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectionError:
                return 0, {}

    async def wait_for(self, is_true: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until the body of /ready fulfils the condition."""
        body: dict[str, Any] = {}
        async with asyncio.timeout(20):
            while not self.task.done():
                _, body = await self.get("/ready")
                if body and is_true(body):
                    return
                await asyncio.sleep(0.005)
        pytest.fail(f"reput ended while waiting for {what}: {body}")

    async def wait_ready(self) -> None:
        await self.wait_for(lambda body: bool(body["ready"]), "ready")

    async def wait_reason(self, code: str) -> str:
        await self.wait_for(
            lambda body: code in [reason["code"] for reason in body["reasons"]], code
        )
        _, body = await self.get("/ready")
        return str(next(one["detail"] for one in body["reasons"] if one["code"] == code))

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 30)


@contextlib.asynccontextmanager
async def running(config: ReputConfig) -> AsyncIterator[Running]:
    reput = Running(config)
    try:
        yield reput
    finally:
        reput.stop.set()
        await asyncio.wait({reput.task}, timeout=30)


@contextlib.asynccontextmanager
async def ready(config: ReputConfig) -> AsyncIterator[Running]:
    async with running(config) as reput:
        await reput.wait_ready()
        yield reput


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process's page rings no event
            await asyncio.sleep(0.002)


async def test_it_waits_for_the_store_then_for_its_recovery_then_dispatches(
    config: ReputConfig,
) -> None:
    async with running(config) as reput:
        await reput.wait_reason("waiting-for-store")
        small = SmallStore(config.store_dir)
        await reput.wait_reason("waiting-for-recovery")
        small.put(keys="k")
        small.flush()
        assert small.positions.get(Slot.DISPATCHED) == 0
        recovered(small)
        await reput.wait_ready()
        assert small.positions.get(Slot.DISPATCHED) == small.end
        assert small.positions.get(Slot.REPUT_GENERATION) == small.positions.get(Slot.GENERATION)
        _, text = await reput.get("/metrics")
        assert f"tidemark_dispatch_offset_bytes {small.end}" in text
        assert "tidemark_dispatch_messages_total 1.0\n" in text
        assert "tidemark_dispatch_lag_bytes 0.0\n" in text
        await reput.end()
        small.close()


@pytest.mark.parametrize(
    ("visible_after", "service"), [("flushed", "the broker"), ("confirmed", "ha")]
)
async def test_while_it_waits_it_names_the_service_that_recovers(
    config: ReputConfig, visible_after: Literal["flushed", "confirmed"], service: str
) -> None:
    # In a group it named the broker, which waits for ha itself.
    store = replace(config.store, visible_after=visible_after)
    async with running(replace(config, store=store)) as reput:
        detail = await reput.wait_reason("waiting-for-store")
        assert detail.endswith(f"check that {service} runs")


@pytest.mark.parametrize("stale", ["heartbeat", "recovered by another start", "stopped"])
async def test_the_page_of_an_earlier_start_is_no_recovery(
    config: ReputConfig, small: SmallStore, stale: str
) -> None:
    """An old copy of the page claims that the log was recovered in this boot.

    Reput once resumed with it and zeroed the units that prove what was flushed since.
    """
    small.put()
    small.flush()
    match stale:
        case "heartbeat":
            small.positions.publish(Slot.BROKER_HEARTBEAT_MS, SystemClock().boot_ms() - 1)
        case "stopped":
            small.positions.publish(Slot.BROKER_PID, 0)
            small.positions.publish(Slot.RECOVERED_BY, 0)
        case _:
            small.positions.publish(Slot.BROKER_PID, BROKER + 1)
    async with running(config) as reput:
        await reput.wait_reason("waiting-for-recovery")
        assert small.positions.get(Slot.DISPATCHED) == 0
        recovered(small)
        await reput.wait_ready()
        assert small.positions.get(Slot.DISPATCHED) == small.end


async def test_each_step_has_metrics_of_its_work_and_of_its_delay(
    config: ReputConfig, small: SmallStore
) -> None:
    small.put(at_ms=time.time_ns() // 1_000_000 - 3000)
    small.flush()
    async with ready(config) as reput:
        _, text = await reput.get("/metrics")
        assert 'tidemark_dispatch_duration_seconds_count{target="queue"} 1\n' in text
        assert 'tidemark_dispatch_duration_seconds_count{target="index"} 0\n' in text  # no keys
        assert 'tidemark_dispatch_duration_seconds_count{target="notify"} 1\n' in text
        assert "tidemark_dispatch_visible_delay_seconds_count 1\n" in text
        (delay_s,) = re.findall(r"tidemark_dispatch_visible_delay_seconds_sum (\S+)", text)
        assert 3.0 <= float(delay_s) < 60.0
        small.put(keys="k", at_ms=time.time_ns() // 1_000_000)
        small.flush()
        await until(lambda: small.positions.get(Slot.DISPATCHED) == small.end)
        _, text = await reput.get("/metrics")
        assert 'tidemark_dispatch_duration_seconds_count{target="index"} 1\n' in text
        assert "tidemark_dispatch_visible_delay_seconds_count 2\n" in text


async def test_a_traced_message_is_logged_when_it_is_in_its_queue(
    config: ReputConfig, small: SmallStore, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[dict[str, object]]:
        found = [vars(line) for line in caplog.records]
        return [line for line in found if line.get("event") == "trace-dispatched"]

    with contextlib.closing(Doorbell(run_dir, "broker")) as bell:
        async with ready(config):
            start = small.end
            unit = small.put()
            traced = TracedRange("order-4711", start, unit.end)
            bell.ring("reput", encode(traced))  # as a broker does: before it is flushed
            await asyncio.sleep(0)
            assert said() == []
            small.flush()
            bell.ring("reput")
            await until(lambda: bool(said()))
    (line,) = said()
    assert (line["trace"], line["start_offset"], line["end_offset"]) == traced


async def test_a_ring_is_answered_at_once_and_the_broker_is_rung(
    config: ReputConfig, small: SmallStore, run_dir: Path
) -> None:
    broker = Doorbell(run_dir, "broker")
    async with ready(config):
        while await broker.wait(0.05):
            pass  # rings of the start
        delays = []
        for _ in range(5):
            await asyncio.sleep(0.06)  # long enough for reput to be idle again
            small.put()
            small.flush()
            started = time.perf_counter()
            broker.ring("reput")
            assert await broker.wait(5), "no ring although DISPATCHED moved"
            delays.append(time.perf_counter() - started)
            assert small.positions.get(Slot.DISPATCHED) == small.end
        print(f"from ring to ring: median {sorted(delays)[2] * 1000:.1f} ms")
    broker.close()


async def test_without_a_ring_a_poll_dispatches_and_queues_are_synced(
    config: ReputConfig, small: SmallStore
) -> None:
    async with ready(config):
        small.put()
        small.flush()
        await until(lambda: small.positions.get(Slot.DISPATCHED) == small.end)
        await until(lambda: small.positions.get(Slot.DISPATCHED_DURABLE) == small.end)


async def test_a_damaged_record_leaves_it_alive_unready_and_with_its_place(
    config: ReputConfig, small: SmallStore
) -> None:
    async with ready(config) as reput:
        small.put()
        bad = small.put()
        small.overwrite(bad.physical_offset + 95, b"\xff\xff")
        small.flush()
        detail = await reput.wait_reason("corrupt-record")
        assert f"physical offset {bad.physical_offset}" in detail
        assert str(small.log_file()) in detail
        assert small.positions.get(Slot.DISPATCHED) == bad.physical_offset
        assert (await reput.get("/live"))[0] == 200
        assert (await reput.get("/ready"))[0] == 503
        _, text = await reput.get("/metrics")
        assert 'tidemark_dispatch_errors_total{reason="corrupt-record"} 1' in text
        await reput.end()
    assert reput.task.exception() is None, "stopping is no failure"


async def test_a_full_disk_is_waited_out_and_named_meanwhile(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: OsDisk, path: Path, size: int, *, reserve: bool) -> OsFile:
        raise DiskFull(f"no room for {size} bytes in {path}: 0 bytes are free.", path=path)

    async with ready(config) as reput:
        with monkeypatch.context() as patched:
            patched.setattr(OsDisk, "create", full)
            small.put(topic="other")
            small.flush()
            detail = await reput.wait_reason("disk-full")
            assert "consumequeue/other/0" in detail
            assert small.positions.get(Slot.DISPATCHED) < small.end
        await reput.wait_ready()
        await until(lambda: small.positions.get(Slot.DISPATCHED) == small.end)


async def test_a_store_that_is_to_be_emptied_is_left_even_while_its_disk_is_full(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Dispatcher) -> None:
        raise DiskFull("no room for a file: 0 bytes are free.")

    monkeypatch.setattr(Dispatcher, "resume", full)
    grouped = replace(config, store=replace(config.store, visible_after="confirmed"))
    small.positions.publish(Slot.HA_BOOT_ID_HIGH, boot_id().high)
    small.positions.publish(Slot.HA_BOOT_ID_LOW, boot_id().low)
    async with running(grouped) as reput:
        await reput.wait_reason("disk-full")
        # ha waits until this process has ended before it empties the store.
        small.positions.publish(Slot.ROLE, NodeRole.RESYNC)
        await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(RestartNeeded):
            reput.task.result()


async def test_a_failed_sync_ends_the_process_and_the_next_start_trusts_the_disk_only(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "input/output error")

    async with ready(config) as reput:
        small.put()
        small.flush()
        with monkeypatch.context() as patched:
            patched.setattr("os.fdatasync", fails)
            await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(FlushFailed):
            reput.task.result()
    assert small.positions.get(Slot.REPUT_GENERATION) == 0
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    async with ready(config) as reput:
        await until(lambda: small.positions.get(Slot.DISPATCHED_DURABLE) == small.end)


# Reading the log needs no file descriptor, but a sync needs one per file. At the process limit, the
# first sync ended the process, and so did that of its next start.
async def test_a_sync_for_which_there_is_no_descriptor_is_made_later(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real_open, is_out = OsDisk.open, True

    def opened(self: OsDisk, path: Path, *, writable: bool) -> OsFile:
        if not writable and "consumequeue" in path.parts:
            if is_out:
                raise OutOfResources(f"cannot open or map {path}: Too many open files.")
            synced.append(path)
        return real_open(self, path, writable=writable)

    async with ready(config) as reput:
        monkeypatch.setattr(OsDisk, "open", opened)
        small.put()
        small.flush()
        assert "a sync waits" in await reput.wait_reason("out-of-resources")
        await until(lambda: small.positions.get(Slot.DISPATCHED) == small.end)
        assert small.positions.get(Slot.DISPATCHED_DURABLE) < small.end
        is_out = False
        await until(lambda: small.positions.get(Slot.DISPATCHED_DURABLE) == small.end)
        assert small.queue_file("orders", 0, 0) in synced
        await reput.wait_ready()


async def test_a_replaced_checkpoint_ends_the_process(
    config: ReputConfig, small: SmallStore
) -> None:
    async with ready(config) as reput:
        copy = small.store.checkpoint_path.read_bytes()
        small.store.checkpoint_path.unlink()
        small.store.checkpoint_path.write_bytes(copy)
        await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(ReplacedPositions):
            reput.task.result()


@pytest.mark.parametrize("how", ["removed", "cut", "replaced"])
@pytest.mark.parametrize("what", ["queue", "index"])
async def test_a_queue_file_that_is_taken_away_or_an_index_file_ends_it_and_the_next_start_makes_it(
    config: ReputConfig, small: SmallStore, what: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulls once returned an empty queue, and lookups by key nothing, while the node was ready."""
    checks: list[Path | None] = []
    real = IndexWriter.lost_file

    def counted(self: IndexWriter) -> Path | None:
        checks.append(real(self))
        return checks[-1]

    monkeypatch.setattr(IndexWriter, "lost_file", counted)
    for _ in range(5):
        small.put("orders", 0, keys="order-1")
    small.flush()
    directory = (
        small.queue_file("orders", 0, 0).parent if what == "queue" else small.store.index_dir
    )
    async with ready(config) as reput:
        await until(lambda: small.positions.get(Slot.DISPATCHED_DURABLE) == small.end)
        (path,) = directory.iterdir()
        content = path.read_bytes()
        count = len(checks)
        await until(lambda: len(checks) > count)
        if how == "cut":
            os.truncate(path, 40)
        else:
            path.unlink()
        if how == "replaced":
            path.write_bytes(content)
        await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(DamagedFile, match=f"rebuilds the {what}"):
            reput.task.result()
    async with ready(config) as reput:
        (again,) = directory.iterdir()
        head = 0 if what == "queue" else 40  # the header has times of its own
        assert again.read_bytes()[head:] == content[head:]


async def test_another_recovery_is_noticed_while_it_runs(
    config: ReputConfig, small: SmallStore
) -> None:
    async with ready(config) as reput:
        generation = small.positions.get(Slot.GENERATION) + 1
        small.positions.publish(Slot.GENERATION, generation)
        await until(lambda: small.positions.get(Slot.REPUT_GENERATION) == generation)
        small.put()
        small.flush()
        await until(lambda: small.positions.get(Slot.DISPATCHED) == small.end)
        assert (await reput.get("/ready"))[0] == 200


async def test_a_comparison_of_a_unit_begins_anew_once_the_log_was_recovered(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a comparison starts again after the log was recovered.

    Its read offset may be behind the new end, and a damaged unit would count as valid. Here the log
    is recovered during a comparison, and dispatch has to resume.
    """
    for _ in range(3):
        small.put("orders", 0)
    small.flush()
    get, publish = small.positions.get, small.positions.publish
    calls: list[str] = []
    begin, step = UnitMending.begin, UnitMending.step

    def begun(mending: UnitMending, queue: int, number: int) -> None:
        calls.append("begin")
        begin(mending, queue, number)

    def stepped(mending: UnitMending, end: int, bytes_max: int) -> bool:
        calls.append("step")
        if len(calls) == 2:
            publish(Slot.GENERATION, get(Slot.GENERATION) + 1)
        return step(mending, end, bytes_max)

    monkeypatch.setattr(UnitMending, "begin", begun)
    monkeypatch.setattr(UnitMending, "step", stepped)
    monkeypatch.setattr(Dispatcher, "adopt_generation", lambda _: False)
    async with ready(config):
        path = small.queue_file("orders", 0, 0)
        with path.open("r+b") as file:
            file.seek(UNIT_SIZE)
            file.write(b"\xff" * UNIT_SIZE)
        publish(Slot.UNIT_CHECK_QUEUE, queue_number("orders", 0))
        publish(Slot.UNIT_CHECK_OFFSET, 1)
        publish(Slot.UNIT_CHECK_COUNT, 1)
        await until(lambda: get(Slot.UNIT_CHECKED) >> 1 == 1)
    assert calls[:3] == ["begin", "step", "begin"]


async def test_a_unit_that_cannot_be_replaced_is_a_reason_until_it_is(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers were once asked to try again, without a reported reason for the failures."""
    small.put("orders", 0)
    small.flush()
    get, publish = small.positions.get, small.positions.publish
    fails, step = [True], UnitMending.step

    def stepped(mending: UnitMending, end: int, bytes_max: int) -> bool:
        if fails[0]:
            raise OSError(errno.EROFS, "read-only")
        return step(mending, end, bytes_max)

    monkeypatch.setattr(UnitMending, "step", stepped)
    async with ready(config) as reput:
        publish(Slot.UNIT_CHECK_QUEUE, queue_number("orders", 0))
        publish(Slot.UNIT_CHECK_COUNT, 1)
        await reput.wait_reason("os-error")
        fails[0] = False
        await until(lambda: get(Slot.UNIT_CHECKED) >> 1 == 1)
        assert (await reput.get("/ready"))[0] == 200


async def test_a_damaged_unit_whose_file_is_gone_ends_it_and_the_next_start_makes_the_queue_again(
    config: ReputConfig, small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may find the loss before reput does: the reason was once only the system's words."""
    small.put("orders", 0)
    small.flush()
    monkeypatch.setattr(QueueWriter, "lost_file", lambda _, files_max: None)
    async with ready(config) as reput:
        small.queue_file("orders", 0, 0).unlink()
        small.positions.publish(Slot.UNIT_CHECK_QUEUE, queue_number("orders", 0))
        small.positions.publish(Slot.UNIT_CHECK_COUNT, 1)
        await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(DamagedFile, match="rebuilds the queue"):
            reput.task.result()


async def test_a_second_reput_is_refused(config: ReputConfig, small: SmallStore) -> None:
    lock = small.store.lock(LockByte.REPUT)
    small.positions.publish(Slot.REPUT_PID, 4711)
    async with running(config) as reput:
        await asyncio.wait({reput.task}, timeout=20)
        with pytest.raises(StoreLocked, match="held by process 4711"):
            reput.task.result()
    lock.release()


async def test_stopping_dispatches_and_syncs_the_rest_and_the_last_one_marks_a_clean_stop(
    config: ReputConfig, small: SmallStore
) -> None:
    small.store.mark_running(1)
    async with ready(config) as reput:
        small.put()
        small.flush()
        small.positions.publish(Slot.BROKER_PID, 0)  # the broker has stopped, in order
        await reput.end()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end
    assert small.positions.get(Slot.REPUT_PID) == 0
    assert not small.store.abort_path.exists(), "no other process ran: stopped clean"


async def test_a_broker_that_died_is_no_clean_stop(config: ReputConfig, small: SmallStore) -> None:
    small.store.mark_running(1)
    small.positions.publish(Slot.BROKER_PID, 4711)
    async with ready(config) as reput:
        await reput.end()
    assert small.store.abort_path.exists()


def run_once(config: ReputConfig, small: SmallStore, tmp_path: Path) -> Result:
    """Run the command over a stopped store."""
    settings = tmp_path / "reput.toml"
    sizes = "\n".join(f"{name} = {size}" for name, size in small.store.config.sizes.items())
    settings.write_text(f"[store]\n{sizes}\n")
    arguments = ["--store", str(config.store_dir), "--config", str(settings), "--once"]
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("own_logs")
def test_once_dispatches_a_stopped_store_and_exits(
    config: ReputConfig, small: SmallStore, tmp_path: Path
) -> None:
    small.put(keys="k")
    small.put("other")
    small.flush()
    result = run_once(config, small, tmp_path)
    assert result.exit_code == 0, result.output
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end
    assert small.queue_file("orders", 0, 0).exists()
    assert small.queue_file("other", 0, 0).exists()


@pytest.mark.usefixtures("own_logs")
def test_once_finds_the_end_of_a_log_whose_checkpoint_is_gone(
    config: ReputConfig, tmp_path: Path
) -> None:
    small = SmallStore(config.store_dir)
    for number in range(40):
        small.put(body=b"x" * 200, keys=f"k{number}")
    small.flush()
    end = small.end
    small.close()
    small.store.checkpoint_path.unlink()
    assert run_once(config, small, tmp_path).exit_code == 0
    checkpoint = small.store.checkpoint_path.read_bytes()
    at = Slot.DISPATCHED_DURABLE * 8
    assert int.from_bytes(checkpoint[at : at + 8], "little") == end


@pytest.mark.usefixtures("own_logs")
def test_settings_that_cannot_be_used_are_named_and_end_with_status_2(tmp_path: Path) -> None:
    settings = tmp_path / "reput.toml"
    settings.write_text("sync_interval_ms = 0\nadmin_prt = 1\n[store]\ndelay_levels = '1x'\n")
    result = CliRunner().invoke(main, ["--config", str(settings), "--store", str(tmp_path)])
    assert result.exit_code == 2
    for part in ("sync_interval_ms = 0", "from 1 to 10000 ms", "admin_prt is not a setting"):
        assert part in result.output


def test_the_local_profile_has_the_sizes_of_the_brokers() -> None:
    from services.broker.config import LocalBrokerConfig
    from services.reput.config import LocalReputConfig

    assert LocalReputConfig().store.sizes == LocalBrokerConfig().store.sizes
    assert ReputConfig().store == StoreConfig()
