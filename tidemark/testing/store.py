"""The real store in the test's process: broker and reput on a directory, with a movable clock.

The services are the real ones, with real files and HTTP; only their clock is the test's. They run
in one thread with its own event loop, so that synchronous and asynchronous tests can use the store,
and a test that blocks does not stop it. A crash is not possible in-process; use ``node.LocalNode``
for that.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uvloop

from services.broker.config import BrokerConfig
from services.broker.service import Broker
from services.reput.config import ReputConfig
from services.reput.service import Reput
from shared.runtime.config import load
from tidemark.testing.child import NodeFailed
from tidemark.testing.clock import FakeClock
from tidemark.testing.node import LOOPBACK, POLL_S, SMALL_STORE, START_TIMEOUT_S, is_ready
from tidemark.testing.ports import free_ports

STORE_TABLE: Final = "store."
"""Settings of this table apply to both services, because they share the files."""


class LocalStore:
    """Broker and reput on ``directory``, in a thread. Use ``with``, or ``start`` and ``stop``."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: FakeClock | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """settings: of the broker, by name; ``{"store.delay_levels": "1s 2s"}`` for both services.

        Raises BadConfig with all invalid settings.
        """
        self.clock = clock if clock is not None else FakeClock()
        self.store_dir = directory / "store"
        # Not below directory: a socket's path has at most 108 bytes. Created at the first start.
        self._run_dir = Path(tempfile.gettempdir(), f"tidemark-{secrets.token_hex(4)}")
        api_port, broker_port, reput_port = free_ports(3)
        self._admin_ports = (broker_port, reput_port)
        shared_settings: dict[str, object] = {
            "store_dir": self.store_dir,
            "run_dir": self._run_dir,
            **{STORE_TABLE + name: value for name, value in SMALL_STORE.items()},
            **{name: value for name, value in (settings or {}).items() if _is_shared(name)},
        }
        self._broker_config = load(
            BrokerConfig,
            overrides={
                "port": api_port,
                "admin_port": broker_port,
                "auto_create_topics": True,
                **shared_settings,
                **(settings or {}),
            },
        )
        self._reput_config = load(
            ReputConfig, overrides={"admin_port": reput_port, **shared_settings}
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The URL for ``tidemark.connect``."""
        return f"http://127.0.0.1:{self._broker_config.port}"

    def __enter__(self) -> LocalStore:
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start both services and wait until both are ready; a restart uses the same ports.

        Raises NodeFailed if one of them ends or they are not ready in time.
        """
        if self._thread is not None:
            raise RuntimeError("the store is already running")
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="tidemark-store", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        for port in self._admin_ports:
            while not is_ready(f"http://{LOOPBACK}:{port}"):
                if not self._thread.is_alive() or time.monotonic() > deadline:
                    self.stop()  # raises the error of a service that ended
                    raise NodeFailed(f"the store was not ready within {START_TIMEOUT_S:.0f} s")
                time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop in order: the broker, then reput, which dispatches the rest of the log.

        Raises NodeFailed if one of them had ended by itself, so that the test fails.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        loop, asked = self._loop, self._asked_to_stop
        if loop is not None and asked is not None and thread.is_alive():
            loop.call_soon_threadsafe(asked.set)
        thread.join()
        self._loop = self._asked_to_stop = None
        if self._failure is not None:
            raise NodeFailed(f"the store ended by itself: {self._failure}") from self._failure

    def restart(self) -> None:
        """Stop and start: state in memory is lost, state in the log is recovered."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the files outside ``directory``."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._run_dir, ignore_errors=True)

    def _run(self) -> None:
        """Run both services in this thread until asked to stop or until one of them ends."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - raised again by ``stop``
            self._failure = failure

    async def _serve(self) -> None:
        self._asked_to_stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        stop_broker, stop_reput = asyncio.Event(), asyncio.Event()
        broker = asyncio.ensure_future(Broker(self._broker_config, stop_broker, self.clock).run())
        reput = asyncio.ensure_future(Reput(self._reput_config, stop_reput, self.clock).run())
        asked = asyncio.ensure_future(self._asked_to_stop.wait())
        await asyncio.wait({broker, reput, asked}, return_when=asyncio.FIRST_COMPLETED)
        stop_broker.set()
        await asyncio.wait({broker})
        stop_reput.set()
        await asyncio.wait({reput})
        asked.cancel()
        broker.result()
        reput.result()


def _is_shared(name: str) -> bool:
    return name.startswith(STORE_TABLE)
