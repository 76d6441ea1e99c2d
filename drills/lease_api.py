"""An API server of Kubernetes for tests and drills: Leases and pods over real HTTP, and faults.

``python -m drills.lease_api --host 127.0.0.1 --port 8001 --seed 7``, or ``LeaseApi`` in a
test. What is wrong with it is said while it runs: ``PUT /faults`` with the fields of ``Faults``
replaces them all, ``GET /faults`` gives them back with counts of answers per method and status.
Requests with the header ``By-Hand`` meet no fault: so a drill edits an object that nobody reaches.

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
"""How long a request without an answer is held; clients give up long before."""
LATE_MAX: Final = 1000
"""Requests under way that are applied later."""
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
    """What is wrong with the server. Rates are from 0 to 1; true is 1."""

    delay_ms: float = 0
    """Before a request is looked at,"""
    jitter_ms: float = 0
    """and up to so much more, at random: requests overtake each other."""
    drop_requests: float = 0
    """Rate: nothing is applied, nothing answered."""
    drop_answers: float = 0
    """Rate: applied, not answered."""
    apply_late_ms: float = 0
    """Writes are not answered, and applied so much later, if their version still stands then."""
    duplicate: float = 0
    """Rate: a write is applied a second time, after the answer, as a network may repeat it."""
    error_rate: float = 0
    errors: tuple[int, ...] = (409, 429, 500)
    """Statuses, one at random, without anything being applied."""
    only_from: tuple[str, ...] = ()
    """Addresses of clients that meet these faults; empty: all."""
    only_methods: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Faults:
        """From JSON. Raises ValueError, naming what is no field or no such value."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in known:
                raise ValueError(f"{name} is no fault; there are {', '.join(known)}")
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
        """Whether a request of that kind from there meets them."""
        return (not self.only_from or address in self.only_from) and (
            not self.only_methods or method in self.only_methods
        )


class Fate(NamedTuple):
    """What happens to one request, drawn before it is looked at."""

    delay_s: float = 0.0
    dropped: bool = False
    error: int | None = None
    late_s: float | None = None
    answered: bool = True
    twice: bool = False


def draw(faults: Faults, method: str, chance: random.Random) -> Fate:
    """Draw a request's fate. Always the same number of draws, so that a seed is a history."""
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
"""Token, method and path of a request to its refusal; None: it may."""


class LeaseApi:
    """The server: ``await start()``, ``url``, ``faults``, ``objects``, ``await close()``."""

    def __init__(self, *, seed: int = 0) -> None:
        """seed: of all that is random in it."""
        self.objects: Final = LeaseObjects()
        self.faults = Faults()
        self.tokens: set[str] | None = None
        """Bearer tokens that are let in; None: everybody."""
        self.judge: Judge | None = None
        """Says who may do what, of every request; None: everybody everything."""
        self.answers: Final[Counter[str]] = Counter()
        """By method and status, ``PUT 409``; ``PUT none`` where there was no answer."""
        self.url = ""
        self._chance = random.Random(seed)
        self._late: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen. port 0: any, see ``url``. tls: None: without."""
        app = web.Application(client_max_size=BODY_SIZE_MAX, middlewares=[self._let_in])
        leases = f"{COORDINATION}/namespaces/{{namespace}}/{LEASES}"
        app.router.add_post(leases, self._handle)
        for method in ("GET", "PUT", "DELETE"):
            app.router.add_route(method, leases + "/{name}", self._handle)
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        app.router.add_get(pod, self._handle)
        app.router.add_patch(pod, self._handle)
        app.router.add_get("/faults", self._say_faults)
        app.router.add_put("/faults", self._take_faults)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound = self._runner.addresses[0]
        self.url = f"http{'' if tls is None else 's'}://{host}:{bound[1]}"

    async def close(self) -> None:
        """End at once; what was to be applied later is not."""
        for task in self._late:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what the judge refuses, paths that are not there included."""
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
        """The request as something that can be applied now, later, or twice."""
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
        """Never answer; the client goes away by itself, or with the connection after HANG_S."""
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

    async def _say_faults(self, request: web.Request) -> web.Response:
        return web.json_response(dataclasses.asdict(self.faults) | {"answers": dict(self.answers)})

    async def _take_faults(self, request: web.Request) -> web.Response:
        try:
            self.faults = Faults.of(await request.json())
        except ValueError as error:
            return web.json_response({"message": str(error)}, status=400)
        return await self._say_faults(request)


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
    parser.add_argument("--port", type=int, default=0, help="default: any")
    parser.add_argument("--seed", type=int, default=0, help="of what is random")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.host, arguments.port, arguments.seed))


if __name__ == "__main__":
    main()
