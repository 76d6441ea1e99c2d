"""A Kubernetes API server for tests and drills: Leases and pods over HTTP, with faults.

Run ``python -m drills.lease_api --host 127.0.0.1 --port 8001 --seed 7``, or use
``LeaseApi`` in a test. ``faulty_server`` has the faults, which are changed at run time.

Paths: ``/apis/coordination.k8s.io/v1/namespaces/NS/leases[/NAME]`` (GET, POST, PUT, DELETE) and
``/api/v1/namespaces/NS/pods/NAME`` (GET, PATCH).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from drills.faulty_server import FaultyServer, serve_until_stopped
from drills.lease_objects import COORDINATION, LEASES, Answer, LeaseObjects, failure

BODY_SIZE_MAX: Final = 1 << 20
REASONS: Final = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Judge = Callable[[str, str, str], Answer | None]
"""Maps token, method and path of a request to a rejection; None: it is allowed."""


class LeaseApi(FaultyServer):
    """The server: ``await start()``, ``url``, ``faults``, ``objects``, ``await close()``."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.objects: Final = LeaseObjects()
        self.tokens: set[str] | None = None
        """Accepted bearer tokens; None: all requests are accepted."""
        self.judge: Judge | None = None
        """Authorizes every request; None: everything is allowed."""

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        """Start to listen. port 0: any free one, see ``url``. tls: None for plain HTTP."""
        app = web.Application(client_max_size=BODY_SIZE_MAX, middlewares=[self._authorize])
        leases = f"{COORDINATION}/namespaces/{{namespace}}/{LEASES}"
        app.router.add_post(leases, self._handle)
        for method in ("GET", "PUT", "DELETE"):
            app.router.add_route(method, leases + "/{name}", self._handle)
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        app.router.add_get(pod, self._handle)
        app.router.add_patch(pod, self._handle)
        await self.listen(app, host, port, tls)

    def failure_of(self, status: int) -> Answer:
        reason = REASONS.get(status, "InternalError")
        return failure(status, reason, "injected", LEASES, "")

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests that the judge rejects, even those for unknown paths."""
        if self.judge is not None:
            refusal = self.judge(_token(request), request.method, request.path)
            if refusal is not None:
                return self.answer(request.method, refusal)
        return await handler(request)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        change = self._request(request.method, request.path, await request.read(), request)

        async def apply() -> Answer:
            return change()

        return await self.handle(request, request.method, apply)

    def _request(
        self, method: str, path: str, body: bytes, request: web.Request
    ) -> Callable[[], Answer]:
        """Return a function that applies the request, possibly late or twice."""
        namespace = request.match_info["namespace"]
        name = request.match_info.get("name", "")
        if self.tokens is not None and _token(request) not in self.tokens:
            return lambda: failure(401, "Unauthorized", "Unauthorized", "", "")
        try:
            content = json.loads(body) if body else {}
        except ValueError as error:
            text = str(error)
            return lambda: failure(400, "BadRequest", text, "", "")
        if not isinstance(content, dict):
            return lambda: failure(400, "BadRequest", "not an object", "", "")
        objects = self.objects
        if "/pods/" in path:
            if method == "GET":
                return lambda: objects.get_pod(namespace, name)
            return lambda: objects.patch_pod(namespace, name, content)
        return {
            "GET": lambda: objects.get(namespace, name),
            "POST": lambda: objects.post(namespace, content),
            "PUT": lambda: objects.put(namespace, name, content),
            "DELETE": lambda: objects.delete(namespace, name),
        }[method]


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def main() -> None:
    """Serve until SIGTERM; the first line of output is the URL."""
    parser = argparse.ArgumentParser(prog="python -m drills.lease_api")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices")
    arguments = parser.parse_args()
    api = LeaseApi(seed=arguments.seed)
    asyncio.run(serve_until_stopped(api, api.start(arguments.host, arguments.port)))


if __name__ == "__main__":
    main()
