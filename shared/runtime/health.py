"""The admin port: liveness, readiness and startup probes, and metrics.

``GET /live`` reports only that the event loop runs: a process that is unready on purpose (a damaged
log, a full disk) must not be restarted for it. ``GET /ready`` reports whether the process accepts
work, with every reason why not and the progress of recovery. ``GET /startup`` reports whether the
start makes progress (``startup``). ``GET /metrics`` is Prometheus text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from shared.metrics.endpoint import MetricsEndpoint
from shared.metrics.registry import Registry
from shared.runtime.connections import BoundedServer, Bounds
from shared.runtime.pauses import never
from shared.runtime.startup import StartupProbe
from tidemark.clock import Clock

BEAT_INTERVAL_S: Final = 0.25
LOOP_LAG_MAX_S: Final = 10.0
BOUNDS: Final = Bounds(
    connections_max=256,
    read_timeout_s=10.0,
    idle_timeout_s=75.0,
    write_timeout_s=10.0,
    finish_s=1.0,
)
"""Limits of the admin port. A probe or a scraper needs one connection. A new connection replaces an
idle one, so that idle connections cannot lock a probe out."""
_RATE_MIN_S: Final = 0.5


class Reason(NamedTuple):
    """Why a service is not ready: a code of docs/runbook.md and one sentence."""

    code: str
    detail: str


@dataclass(slots=True)
class Recovery:
    """Progress of rebuilding derived data or of catching up."""

    clock: Clock
    done_bytes: int = 0
    total_bytes: int = 0
    _started_at: float | None = None
    _started_bytes: int = 0

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Record the progress. The first call with a total starts the time for the estimate."""
        if self._started_at is None and total_bytes > 0:
            self._started_at, self._started_bytes = self.clock.monotonic(), done_bytes
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def eta_seconds(self) -> float | None:
        """Estimate the remaining time from the rate so far; None while the rate is unknown."""
        left = self.total_bytes - self.done_bytes
        if left <= 0:
            return 0.0
        if self._started_at is None:
            return None
        spent = self.clock.monotonic() - self._started_at
        moved = self.done_bytes - self._started_bytes
        if spent < _RATE_MIN_S or moved <= 0:
            return None
        return round(left * spent / moved, 1)

    def as_dict(self) -> dict[str, object]:
        """Return the fields as /ready shows them."""
        return {
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "eta_seconds": self.eta_seconds(),
        }


@dataclass(slots=True)
class Health:
    """State shown by the probes. The service writes it, the admin server reads it, on one loop."""

    clock: Clock
    state: str = "starting"
    recovery: Recovery = field(init=False)
    _reasons: dict[str, Reason] = field(default_factory=dict)
    _lasting: set[str] = field(default_factory=set)
    """Codes of reasons that stay when the node changes its role."""

    def __post_init__(self) -> None:
        self.recovery = Recovery(self.clock)

    def enter(self, state: str) -> None:
        """Show this state from now on."""
        self.state = state

    @property
    def reasons(self) -> list[Reason]:
        """Reasons why the service is not ready, in order of appearance."""
        return list(self._reasons.values())

    @property
    def ready(self) -> bool:
        """Whether the service serves, and no reason against it is set."""
        return self.state == "serving" and not self._reasons

    def add_reason(self, code: str, detail: str, *, lasting: bool = False) -> bool:
        """Become unready for a reason, or update its detail; return whether the code is new.

        lasting: the reason holds in every role of the node, as damage does.
        """
        new = code not in self._reasons
        self._reasons[code] = Reason(code, detail)
        if lasting:
            self._lasting.add(code)
        return new

    def clear_reason(self, code: str) -> bool:
        """Remove a reason; return whether it was set."""
        self._lasting.discard(code)
        return self._reasons.pop(code, None) is not None

    def end_role(self) -> None:
        """Remove reasons that are not lasting: the parts that set them have ended."""
        for code in self._reasons.keys() - self._lasting:
            self.clear_reason(code)

    def as_dict(self) -> dict[str, object]:
        """Return the body of /ready."""
        state = "unready" if self.state == "serving" and self._reasons else self.state
        return {
            "state": state,
            "ready": self.ready,
            "reasons": [reason._asdict() for reason in self._reasons.values()],
            "recovery": self.recovery.as_dict(),
        }


class AdminServer:
    """Serves the probes and the metrics on a port of its own."""

    def __init__(
        self,
        health: Health,
        registry: Registry,
        *,
        host: str,
        port: int,
        routes: Iterable[web.AbstractRouteDef] = (),
        before_scrape: Callable[[], Awaitable[None]] | None = None,
        is_awaited: Callable[[], bool] = never,
    ) -> None:
        """before_scrape: awaited before metrics are read, to collect expensive ones.
        is_awaited: returns whether a request is running to which a scrape must give way.
        """
        self._health = health
        self._startup = StartupProbe(health)
        metrics = MetricsEndpoint(
            registry, health.clock, before_scrape=before_scrape, is_awaited=is_awaited
        )
        self._host, self._port = host, port
        self._server: BoundedServer | None = None
        self._beat: asyncio.Task[None] | None = None
        self._beat_at = health.clock.monotonic()
        self.app = web.Application(middlewares=[end_line])
        self.app.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/startup", self._on_startup),
                web.get("/metrics", metrics.handle),
                *routes,
            ]
        )

    @property
    def port(self) -> int:
        """The port listened on; chosen by the kernel if 0 was requested."""
        return self._port if self._server is None else self._server.port

    async def start(self) -> None:
        """Listen. Raises CannotListen if the port is taken."""
        self._server = BoundedServer(self.app, BOUNDS)
        await self._server.start(self._host, self._port)
        self._beat = asyncio.create_task(self._keep_beating(), name="heartbeat")

    async def close(self) -> None:
        """Stop listening."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
            self._beat = None
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def __aenter__(self) -> AdminServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _keep_beating(self) -> None:
        while True:
            self._beat_at = self._health.clock.monotonic()
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def _live(self, _: web.Request) -> web.Response:
        lag = max(0.0, self._health.clock.monotonic() - self._beat_at - BEAT_INTERVAL_S)
        live = lag <= LOOP_LAG_MAX_S
        body = {"live": live, "loop_lag_seconds": round(lag, 3)}
        return probe_answer(body, 200 if live else 503)

    async def _ready(self, _: web.Request) -> web.Response:
        return probe_answer(self._health.as_dict(), 200 if self._health.ready else 503)

    async def _on_startup(self, _: web.Request) -> web.Response:
        startup = self._startup.look()
        return probe_answer(startup.body, 200 if startup.ok else 503)


def probe_answer(body: Mapping[str, object], status: int) -> web.Response:
    """Return the answer of a probe: a line of JSON."""
    return web.Response(
        text=json.dumps(body) + "\n", status=status, content_type="application/json"
    )


@web.middleware
async def end_line(request: web.Request, handler: Handler) -> web.StreamResponse:
    """End the line of the answer that aiohttp makes for an unknown path or method."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        error.text = f"{error.text}\n"
        raise
