"""A Kubernetes API server for tests and drills: Leases and pods over HTTP, with faults.

Run ``python -m drills.lease_api --host 127.0.0.1 --port 8001 --seed 7``, or use
``LeaseApi`` in a test. Faults are changed at run time: ``PUT /faults`` with the fields of
``Faults`` replaces all, ``GET /faults`` returns them with counts of answers per method and status.
Requests with the header ``By-Hand`` are exempt from faults, so that a drill can edit an object that
is unreachable for the nodes.

Paths: ``/apis/coordination.k8s.io/v1/namespaces/NS/leases[/NAME]`` (GET, POST, PUT, DELETE) and
``/api/v1/namespaces/NS/pods/NAME`` (GET, PATCH).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import signal
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from aiohttp import web

from drills.lease_objects import COORDINATION, LEASES, Answer, LeaseObjects, failure

BY_HAND: Final = "By-Hand"
HANG_S: Final = 60.0
"""How long a request without an answer is held; clients time out long before."""
LATE_MAX: Final = 1000
"""Maximum number of requests that wait to be applied late."""
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


@dataclasses.dataclass(frozen=True)
class Faults:
    """The faults of the server. Rates are from 0 to 1; true is 1."""

    delay_ms: float = 0
    """Delay before a request is processed."""
    jitter_ms: float = 0
    """Maximum additional random delay, so that requests overtake each other."""
    drop_requests: float = 0
    """Rate of requests that are neither applied nor answered."""
    drop_answers: float = 0
    """Rate of requests that are applied but not answered."""
    apply_late_ms: float = 0
    """Delay after which writes are applied, without an answer, if their version is still valid."""
    duplicate: float = 0
    """Rate of writes that are applied a second time after the answer, as a network may do."""
    error_rate: float = 0
    errors: tuple[int, ...] = (409, 429, 500)
    """Statuses, chosen at random, of requests that are not applied."""
    only_from: tuple[str, ...] = ()
    """Addresses of clients to which the faults apply; empty: all."""
    only_methods: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Faults:
        """Parse JSON fields. Raises ValueError naming an unknown field or invalid value."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in known:
                raise ValueError(f"{name} is not a fault; the faults are {', '.join(known)}")
            if not isinstance(
                value, list if isinstance(known[name].default, tuple) else int | float
            ):
                raise ValueError(f"{name} cannot be {value!r}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**values)

    def meet(self, method: str, address: str) -> bool:
        """Whether the faults apply to a request with this method from this address."""
        return (not self.only_from or address in self.only_from) and (
            not self.only_methods or method in self.only_methods
        )


class Fate(NamedTuple):
    """What happens to one request, drawn before it is processed."""

    delay_s: float = 0.0
    dropped: bool = False
    error: int | None = None
    late_s: float | None = None
    answered: bool = True
    twice: bool = False


def draw(faults: Faults, method: str, chance: random.Random) -> Fate:
    """Draw a request's fate, always with the same number of draws so that a seed is repeatable."""
    jitter, dropped, errs, answered, twice = (chance.random() for _ in range(5))
    error = chance.choice(faults.errors or (500,))
    writes = method != "GET"
    return Fate(
        delay_s=(faults.delay_ms + jitter * faults.jitter_ms) / 1000,
        dropped=dropped < faults.drop_requests,
        error=error if errs < faults.error_rate else None,
        late_s=faults.apply_late_ms / 1000 if writes and faults.apply_late_ms else None,
        answered=answered >= faults.drop_answers,
        twice=writes and twice < faults.duplicate,
    )


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Judge = Callable[[str, str, str], Answer | None]
"""Maps token, method and path of a request to a rejection; None: it is allowed."""


class LeaseApi:
    """The server: ``await start()``, ``url``, ``faults``, ``objects``, ``await close()``."""

    def __init__(self, *, seed: int = 0) -> None:
        self.objects: Final = LeaseObjects()
        self.faults = Faults()
        self.tokens: set[str] | None = None
        """Accepted bearer tokens; None: all requests are accepted."""
        self.judge: Judge | None = None
        """Authorizes every request; None: everything is allowed."""
        self.answers: Final[Counter[str]] = Counter()
        """Counts by method and status, ``PUT 409``; ``PUT none`` for no answer."""
        self.url = ""
        self._chance = random.Random(seed)
        self._late: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

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
        app.router.add_get("/faults", self._get_faults)
        app.router.add_put("/faults", self._put_faults)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound = self._runner.addresses[0]
        self.url = f"http{'' if tls is None else 's'}://{host}:{bound[1]}"

    async def close(self) -> None:
        """Stop at once; pending late writes are not applied."""
        for task in self._late:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests that the judge rejects, even those for unknown paths."""
        if self.judge is not None:
            refusal = self.judge(_token(request), request.method, request.path)
            if refusal is not None:
                return self._answer(request, refusal)
        return await handler(request)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        apply = self._request(request.method, request.path, await request.read(), request)
        faults = self.faults
        if BY_HAND in request.headers or not faults.meet(request.method, request.remote or ""):
            return self._answer(request, apply())
        fate = draw(faults, request.method, self._chance)
        await asyncio.sleep(fate.delay_s)
        if fate.dropped:
            return await self._hang(request)
        if fate.error is not None:
            reason = REASONS.get(fate.error, "InternalError")
            return self._answer(request, failure(fate.error, reason, "injected", LEASES, ""))
        if fate.late_s is not None:
            self._apply_late(fate.late_s, apply)
            return await self._hang(request)
        answer = apply()
        if fate.twice:
            self._apply_late(0, apply)
        if not fate.answered:
            return await self._hang(request)
        return self._answer(request, answer)

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

    def _answer(self, request: web.Request, answer: Answer) -> web.Response:
        self.answers[f"{request.method} {answer.status}"] += 1
        return web.json_response(answer.body, status=answer.status)

    async def _hang(self, request: web.Request) -> web.StreamResponse:
        """Hold the request without an answer, at most HANG_S; then abort the connection."""
        self.answers[f"{request.method} none"] += 1
        gone = request.transport
        for _ in range(int(HANG_S * 10)):
            if gone is None or gone.is_closing():
                break
            await asyncio.sleep(0.1)
        if gone is not None:
            gone.abort()
        return web.Response(status=504)

    def _apply_late(self, seconds: float, apply: Callable[[], Answer]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            apply()

        if len(self._late) < LATE_MAX:
            task = asyncio.create_task(later())
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def _get_faults(self, request: web.Request) -> web.Response:
        return web.json_response(dataclasses.asdict(self.faults) | {"answers": dict(self.answers)})

    async def _put_faults(self, request: web.Request) -> web.Response:
        try:
            self.faults = Faults.of(await request.json())
        except ValueError as error:
            return web.json_response({"message": str(error)}, status=400)
        return await self._get_faults(request)


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


async def _serve(host: str, port: int, seed: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = LeaseApi(seed=seed)
    await api.start(host, port)
    print(api.url, flush=True)
    await stop.wait()
    await api.close()


def main() -> None:
    """Serve until SIGTERM; the first line of output is the URL."""
    parser = argparse.ArgumentParser(prog="python -m drills.lease_api")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.host, arguments.port, arguments.seed))


if __name__ == "__main__":
    main()
