"""An HTTP server in a lease's place that can be made to fail; faults are set while it runs.

``PUT /faults`` with the fields of ``Faults`` replaces all, ``GET /faults`` returns them with counts
of answers per method and status. Requests with the header ``By-Hand`` are exempt from faults, so
that a drill can edit an object that is unreachable for the nodes. ``lease_api`` (Kubernetes) and
``etcd_proxy`` are such servers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from aiohttp import web

from drills.lease_objects import Answer

BY_HAND: Final = "By-Hand"
HANG_S: Final = 60.0
"""How long a request without an answer is held; clients time out long before."""
LATE_MAX: Final = 1000
"""Maximum number of requests that wait to be applied late."""


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


class FaultyServer(ABC):
    """Applies requests with faults. A subclass adds its routes and its form of an error."""

    def __init__(self, *, seed: int = 0) -> None:
        self.faults = Faults()
        self.answers: Final[Counter[str]] = Counter()
        """Counts by method and status, ``PUT 409``; ``PUT none`` for no answer."""
        self.url = ""
        self._chance = random.Random(seed)
        self._late: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    async def listen(
        self, app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Start to listen. port 0: any free one, see ``url``. tls: None for plain HTTP."""
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

    @abstractmethod
    def failure_of(self, status: int) -> Answer:
        """Return an injected error in the form of the server that this one stands for."""

    async def handle(
        self, request: web.Request, method: str, apply: Callable[[], Awaitable[Answer]]
    ) -> web.StreamResponse:
        """Apply a request as the faults want it. method: GET for a read, another for a write."""
        faults = self.faults
        if BY_HAND in request.headers or not faults.meet(method, request.remote or ""):
            return self.answer(method, await apply())
        fate = draw(faults, method, self._chance)
        await asyncio.sleep(fate.delay_s)
        if fate.dropped:
            return await self._hang(request, method)
        if fate.error is not None:
            return self.answer(method, self.failure_of(fate.error))
        if fate.late_s is not None:
            self._apply_late(fate.late_s, apply)
            return await self._hang(request, method)
        answer = await apply()
        if fate.twice:
            self._apply_late(0, apply)
        if not fate.answered:
            return await self._hang(request, method)
        return self.answer(method, answer)

    def answer(self, method: str, answer: Answer) -> web.Response:
        self.answers[f"{method} {answer.status}"] += 1
        return web.json_response(answer.body, status=answer.status)

    async def _hang(self, request: web.Request, method: str) -> web.StreamResponse:
        """Hold the request without an answer, at most HANG_S; then abort the connection."""
        self.answers[f"{method} none"] += 1
        gone = request.transport
        for _ in range(int(HANG_S * 10)):
            if gone is None or gone.is_closing():
                break
            await asyncio.sleep(0.1)
        if gone is not None:
            gone.abort()
        return web.Response(status=504)

    def _apply_late(self, seconds: float, apply: Callable[[], Awaitable[Answer]]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            await apply()

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


async def serve_until_stopped(server: FaultyServer, starting: Awaitable[None]) -> None:
    """Start the server, print its URL as the first line of output, and serve until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await starting
    print(server.url, flush=True)
    await stop.wait()
    await server.close()
