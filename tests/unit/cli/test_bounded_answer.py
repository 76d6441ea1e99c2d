"""A response is read to its end, in whatever pieces it comes, and never beyond the bound."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemark.cli.bounded_answer import read_bounded

PIECES = 20
PIECE = b"x" * 1000


@pytest.mark.parametrize(
    ("size_max", "expected"), [(10**6, PIECES * len(PIECE)), (4321, 4321), (1, 1)]
)
async def test_an_answer_in_pieces_is_whole_or_cut_at_the_bound(
    size_max: int, expected: int
) -> None:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(PIECES):
            await response.write(PIECE)
            await asyncio.sleep(0)  # the reader runs in between, and has only what came so far
        return response

    application = web.Application()
    application.add_routes([web.get("/", in_pieces)])
    server = TestServer(application)
    await server.start_server()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(server.make_url("/")) as response,
        ):
            assert len(await read_bounded(response, size_max)) == expected
    finally:
        await server.close()
