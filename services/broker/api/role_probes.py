"""``GET /primary`` and ``GET /replica`` on the admin port: the node's role, for load balancers.

The status is 200 if the node has the role, 503 if not. It is evaluated for each request, including
the lease's deadline, so that a load balancer drops a former master as soon as its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from shared.runtime.health import probe_answer


def role_probes(
    is_primary: Callable[[], bool], is_replica: Callable[[], bool]
) -> Sequence[web.RouteDef]:
    """Return both routes. is_primary: the node accepts sends. is_replica: it follows a master."""

    def probe(name: str, holds: Callable[[], bool]) -> web.RouteDef:
        async def handle(_: web.Request) -> web.Response:
            answer = holds()
            return probe_answer({name: answer}, 200 if answer else 503)

        return web.get(f"/{name}", handle)

    return (probe("primary", is_primary), probe("replica", is_replica))
