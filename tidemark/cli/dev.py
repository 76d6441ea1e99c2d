"""``tidemark dev``: one node in one terminal, for trying out and for development.

Starts the broker and reput as children on one store with the local profile, shows what they say,
starts one again that dies, and stops both in order: the broker first, so that reput can dispatch
all that was appended. Children live in process groups of their own: Ctrl-C reaches this process
alone, which then decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import click

from shared.files.os_disk import OsDisk
from shared.files.store_config import LocalStoreConfig, config_of
from shared.runtime.doorbell import SOCKET_PATH_SIZE_MAX
from shared.runtime.listening import listening_on
from tidemark.cli.output import expected_errors, say
from tidemark.errors import NotServing

READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05
READY: Final = "ready"
TELL_EVERY_S: Final = 2.0
STOP_TIMEOUT_S: Final = 30.0
RESTART_DELAY_S: Final = 0.5
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 60.0
LINE_SIZE_MAX: Final = 1 << 20
QUIET_LEVELS: Final = frozenset({"debug", "info"})


_ADMIN_HOST: Final = "127.0.0.1"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """In a child before it becomes the service: SIGTERM when this process is gone, however.

    Without it a killed ``tidemark dev`` leaves two services behind that hold the store.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Ports(NamedTuple):
    """Where the node listens: the API, and both services' probes and metrics."""

    api: int
    broker_admin: int
    reput_admin: int

    @classmethod
    def from_api(cls, port: int) -> Ports:
        """The API's port and the two behind it."""
        return cls(port, port + 1, port + 2)

    def check(self, host: str) -> None:
        """Raise CannotListen if somebody else listens on one of them.

        Else another node's /ready would be taken for that of this one, which never starts.
        """
        for name, port in ((host, self.api), *((_ADMIN_HOST, port) for port in self[1:])):
            with listening_on(name, port):
                for family, kind, number, _, address in socket.getaddrinfo(
                    name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                ):
                    with socket.socket(family, kind, number) as probe:
                        # As the services do: connections that are over do not keep a port.
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(address)


class Child:
    """One service: its process, what it says, when it died."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        *,
        ready_url: str,
        verbose: bool,
    ) -> None:
        """environment: variables beside those of this process."""
        self.name = name
        self._environment = environment
        self.ready_url = ready_url
        self._command = command
        self._verbose = verbose
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._stopping = False
        self.was_ready = False
        """It has once said so; a service that dies before that would only do it again."""

    async def run(self) -> None:
        """Keep the service running until ``stop``; raises NotServing if it dies again and again."""
        while not self._stopping:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, **os.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=LINE_SIZE_MAX,
                process_group=0,
                preexec_fn=_die_with_parent,
            )
            if self._stopping:  # asked to stop while it was being started
                self._process.terminate()
            await self._show(self._process)
            status = await self._process.wait()
            if self._stopping:
                return
            if not self.was_ready:
                raise NotServing(
                    f"{self.name} ended with status {status} before it was ready. "
                    "The node does not serve.",
                    "See its last words above.",
                )
            now = time.monotonic()
            self._deaths.append(now)
            if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_WINDOW_S:
                raise NotServing(
                    f"{self.name} ended {DEATHS_MAX} times within {DEATHS_WINDOW_S:.0f} s, at last "
                    f"with status {status}. What was acked is on the disk.",
                    "See its last words above; `tidemark store verify --store DIR` checks the "
                    "store.",
                )
            say(f"{self.name} ended with status {status}; it is started again")
            await asyncio.sleep(RESTART_DELAY_S * len(self._deaths))

    async def _show(self, process: asyncio.subprocess.Process) -> None:
        """Print what the service says until it closes its output."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # longer than a line may be: readline has dropped it
            if not line:
                return
            text = readable(line, verbose=self._verbose)
            if text is not None:
                say(f"{self.name:<6} | {text}")

    async def stop(self) -> None:
        """SIGTERM, then wait for the end; SIGKILL (safe at any instant) if it does not come."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            say(f"{self.name} did not end within {STOP_TIMEOUT_S:.0f} s; it is killed")
            process.kill()
            await process.wait()


def readable(line: bytes, *, verbose: bool) -> str | None:
    """A service's log line for a terminal: its sentence and facts; None if nobody needs it now."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        entry = json.loads(text)
    except ValueError:
        return text or None
    if not isinstance(entry, dict):
        return text
    level = str(entry.pop("level", "info")).lower()
    if level in QUIET_LEVELS and not verbose:
        return None
    sentence = entry.pop("message", entry.pop("msg", ""))
    for name in ("time", "timestamp", "ts", "logger", "service", "event"):
        entry.pop(name, None)
    facts = " ".join(f"{name}={value}" for name, value in entry.items())
    return " ".join(part for part in (f"{level}:", str(sentence), facts) if part)


@click.command()
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Directory of the store; made if it is not there.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_533),
    default=8080,
    show_default=True,
    help="Port of the API; probes and metrics take the next two.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show all that the services log.")
@expected_errors
def dev(store: Path, host: str, port: int, verbose: bool) -> None:
    """Run a node here until Ctrl-C: broker and reput on one store; a first send makes a topic."""
    ports = Ports.from_api(port)
    ports.check(host)
    with _run_dir(store) as run_dir:
        asyncio.run(_dev(store, run_dir, host, ports, verbose))


@contextlib.contextmanager
def _run_dir(store: Path) -> Iterator[Path]:
    """Where the services' sockets are: below the store, unless its path is too long for them."""
    beside = store / "run"
    longest = os.fsencode(beside / "broker.sock")
    if len(longest) < SOCKET_PATH_SIZE_MAX:
        yield beside
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-") as elsewhere:
        yield Path(elsewhere)


def sizes_of(service: str, store: Path) -> dict[str, str]:
    """The file sizes of an existing store, as a service's settings: the profile's are for new ones.

    So that any store opens here, one that RocketMQ made with sizes of its own as well. What the
    caller's environment says wins, and is compared with the store. Raises StoreFormatUnknown.
    """
    sizes = config_of(OsDisk(), store, LocalStoreConfig()).sizes
    return {f"TIDEMARK_{service}_STORE_{name.upper()}": str(size) for name, size in sizes.items()}


async def _dev(store: Path, run_dir: Path, host: str, ports: Ports, verbose: bool) -> None:
    common = ["--store", str(store), "--run-dir", str(run_dir), "--profile", "local"]
    broker = Child(
        "broker",
        [
            *(sys.executable, "-m", "services.broker", *common, "--host", host),
            *("--port", str(ports.api), "--admin-port", str(ports.broker_admin)),
        ],
        sizes_of("BROKER", store),
        ready_url=f"http://{_ADMIN_HOST}:{ports.broker_admin}/ready",
        verbose=verbose,
    )
    reput = Child(
        "reput",
        [sys.executable, "-m", "services.reput", *common, "--admin-port", str(ports.reput_admin)],
        sizes_of("REPUT", store),
        ready_url=f"http://{_ADMIN_HOST}:{ports.reput_admin}/ready",
        verbose=verbose,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    running = [asyncio.create_task(child.run(), name=child.name) for child in (broker, reput)]
    announcing = asyncio.create_task(_announce(store, host, ports, (broker, reput)))
    stopping = asyncio.create_task(stop.wait())
    try:
        waiting = {*running, announcing, stopping}
        while stopping in waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        announcing.cancel()
        stopping.cancel()
        # In this order: reput then has the whole log before it and dispatches it to the end.
        await broker.stop()
        await reput.stop()
        await asyncio.gather(*running, announcing, stopping, return_exceptions=True)
    say("stopped")


async def _announce(store: Path, host: str, ports: Ports, children: tuple[Child, ...]) -> None:
    """Wait until both are ready, then say where and how."""
    started = time.monotonic()
    told = started
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        for child in children:
            while (state := await _readiness(session, child.ready_url)) != READY:
                now = time.monotonic()
                if state is None and now - started > READY_TIMEOUT_S:
                    raise NotServing(
                        f"{child.name} does not answer at {child.ready_url} after "
                        f"{READY_TIMEOUT_S:.0f} s.",
                        "See what it said above; another --port may help.",
                    )
                if state is not None and now - told > TELL_EVERY_S:
                    say(f"{child.name} is not ready yet: {state}")
                    told = now
                await asyncio.sleep(READY_POLL_S)
            child.was_ready = True
    click.echo(greeting(store, _connectable(host), ports, time.monotonic() - started))


async def _readiness(session: aiohttp.ClientSession, url: str) -> str | None:
    """READY, else the service's own words for why not; None while it does not answer."""
    try:
        async with session.get(url) as response:
            if response.status == 200:
                return READY
            return not_ready(await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return None


def not_ready(body: bytes) -> str:
    """What /ready says, for a terminal: the reasons, and how far recovery is."""
    try:
        answer = json.loads(body)
        parts = [str(reason["detail"]) for reason in answer["reasons"]]
        recovery = answer.get("recovery", {})
        if recovery.get("total_bytes"):
            done = 100 * recovery["done_bytes"] // recovery["total_bytes"]
            eta_s = recovery["eta_seconds"]  # null until the speed is known
            left = "" if eta_s is None else f", about {eta_s:.0f} s left"
            parts.append(f"recovered {done} %{left}")
        return "; ".join(parts) or str(answer["state"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def greeting(store: Path, host: str, ports: Ports, seconds: float) -> str:
    """What a newcomer can copy and paste."""
    url = f"http://{host}:{ports.api}"
    return f"""\
Tidemark is ready after {seconds:.1f} s. Store: {store.resolve()}

  API      {url}/v1  (document: {url}/v1/openapi.json)
  probes   http://127.0.0.1:{ports.broker_admin}/ready  http://127.0.0.1:{ports.reput_admin}/ready
  metrics  the same two with /metrics

Send and read with curl:

  curl -s {url}/v1/topics/orders/messages -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"body_text": "hello", "tags": "new", "keys": ["order-1"]}}]}}'
  curl -s '{url}/v1/topics/orders/queues/0/messages?offset=0' -H 'Accept: application/json'

or from Python (python -m asyncio):

  import tidemark
  async with tidemark.connect("{url}") as mq:
      await mq.send("orders", b"hello", tags="new", keys=["order-1"])
      print(await mq.messages_by_key("orders", "order-1"))

Stop with Ctrl-C."""


def _connectable(host: str) -> str:
    """A host that a client can connect to, where the node listens on all of them."""
    match host:
        case "0.0.0.0" | "":
            return "127.0.0.1"
        case "::":
            return "[::1]"
        case _:
            return f"[{host}]" if ":" in host else host
