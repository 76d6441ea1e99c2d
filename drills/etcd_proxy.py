"""A proxy before a member of etcd that passes calls of its JSON gateway on, with faults.

Run ``python -m drills.etcd_proxy --etcd http://127.0.0.1:2379 --host 127.0.0.1 --seed 7``.
``faulty_server`` has the faults; a transaction counts as PUT, any other call as GET.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

import aiohttp
from aiohttp import web

from drills.faulty_server import FaultyServer, serve_until_stopped
from drills.lease_objects import Answer

UNAVAILABLE: Final = 14
PASSED_ON: Final = ("Authorization", "Grpc-Metadata-hasleader")


class EtcdProxy(FaultyServer):
    """The proxy: ``await start()``, ``url``, ``faults``, ``await close()``."""

    def __init__(self, etcd: str, *, seed: int = 0) -> None:
        """etcd: URL of a member for clients."""
        super().__init__(seed=seed)
        self._etcd = etcd
        self._client: aiohttp.ClientSession | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start to listen. port 0: any free one, see ``url``."""
        self._client = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_post("/v3/{path:.+}", self._handle)
        await self.listen(app, host, port)

    async def close(self) -> None:
        await super().close()
        if self._client is not None:
            await self._client.close()

    def failure_of(self, status: int) -> Answer:
        return Answer(status, {"error": "injected", "message": "injected", "code": 0})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}

        async def apply() -> Answer:
            assert self._client is not None
            try:
                async with self._client.post(
                    f"{self._etcd}{request.path}", data=body, headers=headers
                ) as answer:
                    return Answer(answer.status, await answer.json(content_type=None))
            except aiohttp.ClientError as error:
                return Answer(503, {"error": str(error), "code": UNAVAILABLE})

        method = "PUT" if request.path.endswith("/kv/txn") else "GET"
        return await self.handle(request, method, apply)


def main() -> None:
    """Serve until SIGTERM; the first line of output is the URL."""
    parser = argparse.ArgumentParser(prog="python -m drills.etcd_proxy")
    parser.add_argument("--etcd", required=True, help="URL of a member for clients")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.etcd, arguments.host, arguments.port, arguments.seed))


async def _serve(etcd: str, host: str, port: int, seed: int) -> None:
    proxy = EtcdProxy(etcd, seed=seed)
    await serve_until_stopped(proxy, proxy.start(host, port))


if __name__ == "__main__":
    main()
