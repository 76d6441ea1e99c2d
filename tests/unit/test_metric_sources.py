"""Everything that the catalogue promises of a service has a source once the service is built."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.broker.config import LocalBrokerConfig
from services.broker.service import Broker
from services.ha.config import LocalHaConfig
from services.ha.service import Ha
from services.names.config import NamesConfig
from services.names.service import Names
from services.reput.config import ReputConfig
from services.reput.service import Reput
from shared.cluster.config import ClusterConfig
from shared.files.store_config import LocalStoreConfig
from shared.metrics.registry import Registry
from tests.support.metrics import exposed, missing
from tests.support.node import free_port
from tests.support.prometheus import check

WITHIN_S = 60.0


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as name:  # pytest's paths are too long
        yield Path(name)


async def until(condition: Callable[[], bool], *parts: asyncio.Task[None]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            for part in parts:
                assert not part.done(), part.exception()
            await asyncio.sleep(0.01)


def assert_whole(registry: Registry) -> None:
    assert missing(registry) == []
    assert check("promtool", "check", "metrics", text=exposed(registry)).strip() == ""


async def test_a_broker_and_a_reput_have_a_source_for_each_family(
    tmp_path: Path, run_dir: Path
) -> None:
    store, stop = LocalStoreConfig(), asyncio.Event()
    broker = Broker(
        LocalBrokerConfig(
            store_dir=tmp_path / "store", run_dir=run_dir, store=store, port=0, admin_port=0
        ),
        stop,
    )
    reput = Reput(
        ReputConfig(store_dir=tmp_path / "store", run_dir=run_dir, store=store, admin_port=0),
        stop,
    )
    tasks = [asyncio.create_task(broker.run()), asyncio.create_task(reput.run())]
    try:
        await until(lambda: broker._health.ready and reput._health.ready, *tasks)
        assert_whole(broker.registry)
        assert_whole(reput.registry)
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def test_a_name_service_has_a_source_for_each_family() -> None:
    stop = asyncio.Event()
    names = Names(NamesConfig(port=0, admin_port=0), None, stop)
    task = asyncio.create_task(names.run())
    try:
        await until(lambda: names.health.ready, task)
        assert_whole(names.registry)
    finally:
        stop.set()
        await task


async def test_ha_has_a_source_for_each_family(tmp_path: Path, run_dir: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    (tmp_path / "lease").mkdir()
    cluster = ClusterConfig(
        node="n0",
        nodes=(f"n0=127.0.0.1:{free_port()}", f"n1=127.0.0.1:{free_port()}"),
        api=("n0=http://127.0.0.1:1", "n1=http://127.0.0.1:2"),
        admin=("n0=http://127.0.0.1:3", "n1=http://127.0.0.1:4"),
        secret_file=secret,
        lease_dir=tmp_path / "lease",
        profile="local",
    )
    asked = asyncio.Event()
    ha = Ha(
        LocalHaConfig(
            store_dir=tmp_path / "store",
            run_dir=run_dir,
            store=LocalStoreConfig(visible_after="confirmed"),
            cluster=cluster,
            admin_port=0,
        ),
        asked,
    )
    handler = asyncio.get_running_loop().get_exception_handler()
    task = asyncio.create_task(ha.run())
    try:
        await until(lambda: ha._health.state == "serving", task)
        assert_whole(ha.registry)
    finally:
        asked.set()
        await task
        asyncio.get_running_loop().set_exception_handler(handler)
