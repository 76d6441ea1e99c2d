"""A bare aiohttp server on uvloop: reads the body, answers 200 with some bytes, stores nothing.

It shows the cost of the transport alone, as the baseline of the broker's HTTP figures.
``python -m bench.bare_http PORT ANSWER_SIZE``; run by ``http_single``.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web


async def serve(port: int, answer_size: int) -> None:
    answer = bytes(answer_size)

    async def send(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/msgpack")

    app = web.Application()
    app.router.add_post("/v1/topics/{topic}/messages", send)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
