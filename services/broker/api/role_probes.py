"""``GET /primary`` and ``GET /replica`` on the admin port: who is what, for load balancers.

200 if the node is that, 503 if not; asked anew each time, the lease's deadline included, so that a
former master is out as soon as it may not answer any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web


def role_probes(
    is_primary: Callable[[], bool], is_replica: Callable[[], bool]
) -> Sequence[web.RouteDef]:
    """Both routes. is_primary: sends are taken here. is_replica: this node follows another."""

    def probe(name: str, holds: Callable[[], bool]) -> web.RouteDef:
        async def handle(_: web.Request) -> web.Response:
            answer = holds()
            return web.json_response({name: answer}, status=200 if answer else 503)

        return web.get(f"/{name}", handle)

    return (probe("primary", is_primary), probe("replica", is_replica))
