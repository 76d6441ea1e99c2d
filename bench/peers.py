"""Small servers that benchmarks compare the broker with: ``python -m bench.peers NAME PORT …``.

``echo`` sends back all received bytes: a loopback round trip. ``canned FILE`` sends the bytes of a
mapped file, a whole HTTP answer, for every ``recv``: what loopback TCP can carry. ``bare_http
SIZE`` is an aiohttp handler that reads the body and answers 200 with some bytes: the cost of the
transport alone.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop
from aiohttp import web

from bench.servers import HOST


def echo(port: int) -> None:
    _serve(port, lambda data: data)


def canned(port: int, path: str) -> None:
    with Path(path).open("rb") as file:
        answer = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    _serve(port, lambda _: answer)


def _serve(port: int, answer: Callable[[bytes], bytes | memoryview]) -> None:
    """Answer each ``recv`` of each connection in a blocking thread."""

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    connection.sendall(answer(data))
            except ConnectionError:
                return

    with socket.create_server((HOST, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=run, args=(connection,), daemon=True).start()


def bare_http(port: int, size: str) -> None:
    answer = bytes(int(size))

    async def send(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/msgpack")

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/topics/{topic}/messages", send)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        await asyncio.Event().wait()

    uvloop.run(serve())


SERVERS: Final[dict[str, Callable[..., None]]] = {
    "echo": echo,
    "canned": canned,
    "bare_http": bare_http,
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
