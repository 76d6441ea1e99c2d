"""An S3 server of this machine, and faults in front of it.

The faults are those that make a commit ambiguous: an answer that gets lost after the request was
done, besides requests that never arrive and servers that ask to slow down.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from tidemark.testing.ports import free_ports
from tidemark.testing.waiting import wait_until

BUCKET: Final = "lag"
FAULTS: Final = ("lost request", "lost answer", "slow down")
_HOP: Final = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-encoding",
}
"""Headers that belong to one connection, or that the proxy's client has resolved."""


class FaultyProxy:
    """Passes requests on, and fails a share of those to objects, chosen by a seed."""

    def __init__(self, server_port: int, port: int, share: float, seed: int) -> None:
        self._server = f"http://127.0.0.1:{server_port}"
        self._port, self._share = port, share
        self._chance = random.Random(seed)
        self.counts = dict.fromkeys(FAULTS, 0)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        """Answer no more."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)
        self._loop.close()

    async def _run(self) -> None:
        async with aiohttp.ClientSession(auto_decompress=False) as self._client:
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            self._ready.set()
            await self._ended.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        fault = self._chance.choice(FAULTS) if self._chance.random() < self._share else ""
        if fault:
            self.counts[fault] += 1
        body = await request.read()
        if fault == "slow down":
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        if fault == "lost request":
            return self._cut(request)
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _HOP}
        async with self._client.request(
            request.method, self._server + request.raw_path, data=body, headers=headers
        ) as answer:
            content = await answer.read()
        if fault == "lost answer":
            return self._cut(request)
        kept = {name: text for name, text in answer.headers.items() if name.lower() not in _HOP}
        if request.method == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        return web.Response(status=answer.status, body=content, headers=kept)

    def _cut(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=500)


class ObjectStore:
    """A running store with one bucket, and what programs need to use it."""

    def __init__(self, server_port: int, port: int, proxy: FaultyProxy) -> None:
        self.uri = f"s3a://{BUCKET}/tables"
        self.proxy = proxy
        self.environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server_port}",
        }
        self.faulty = ["env", f"AWS_ENDPOINT_URL=http://127.0.0.1:{port}"]
        """Begin of a command whose requests meet the faults."""


@contextmanager
def object_store(log: Path, share: float, seed: int) -> Iterator[ObjectStore]:
    """Run a store for the time of the block. share: of requests that fail."""
    server_port, port = free_ports(2)
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1"]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "-p", str(server_port)], stdout=out, stderr=out)
    try:
        _made(server, server_port, log)
        proxy = FaultyProxy(server_port, port, share, seed)
        proxy.start()
        try:
            yield ObjectStore(server_port, port, proxy)
        finally:
            proxy.stop()
    finally:
        server.kill()
        server.wait()


def _made(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers, and make the bucket."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")

    def is_made() -> bool:
        assert server.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status) == 200
        return False

    wait_until(is_made, "the object store to answer", 120)
