"""Registers this broker with every name service of its cluster.

One task for each name service sends what ``registration_plan`` decides. Nothing waits for it: sends
and reads go on whatever the name services do. A registration with all topics is made in slices, and
signed in a thread. Step before: ``api.own_route``. Step after: the name service.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any, Final, Self

import aiohttp
import msgspec

from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig
from services.broker.log.open_store import OpenStore
from services.broker.metrics import BrokerMetrics
from services.broker.registration_plan import RegistrationPlan, Standing
from shared.cluster import signature
from shared.cluster.routes import RENEW_S, registration_path
from shared.cluster.secret_file import read_secret
from shared.files.store_id import store_id
from shared.runtime.media_types import JSON
from shared.runtime.pauses import Pauses
from shared.runtime.rate_limited_logger import RateLimitedLogger
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock
from tidemark.errors import StaleRegistration, Unreachable

ANSWER_TIMEOUT_S: Final = 10.0
ANSWER_SIZE_MAX: Final = 1 << 16
KEEPALIVE_S: Final = 2 * RENEW_S
"""Time that an unused connection is kept: each renewal takes that of the one before, because a name
service at its limit of connections accepts no further ones."""
LEAVE_TIMEOUT_S: Final = 1.0
"""Longest time that a stop waits for the name services."""
POLL_S: Final = 1.0
"""Longest time between two looks at what is due."""


class Registrar:
    """The registrations of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        own_route: OwnRoute,
        identity: str,
        secret: bytes | None,
        metrics: BrokerMetrics,
        clock: Clock,
    ) -> None:
        """identity: id of the store. secret: registrations are signed with it; None: they are not
        signed."""
        self._config, self._own = config, own_route
        self._secret = secret
        self._metrics = metrics
        self._clock = clock
        self._fixed = {
            "cluster": config.cluster.name,
            "api": own_route.api,
            "admin": config.cluster.own.admin if config.cluster.grouped else None,
            "identity": identity,
        }
        self._path = registration_path(config.cluster.group, own_route.node)
        self._plans = {url.rstrip("/"): RegistrationPlan() for url in config.names.urls}
        self._limited_log = RateLimitedLogger(clock.monotonic)
        self._news = asyncio.Condition()
        metrics.show_names(
            len(self._plans),
            lambda: sum(plan.is_registered for plan in self._plans.values()),
        )

    @classmethod
    async def prepare(
        cls,
        config: BrokerConfig,
        own_route: OwnRoute,
        store: OpenStore,
        metrics: BrokerMetrics,
        clock: Clock,
    ) -> Self:
        """Return the registrar of an open store. Raises BadConfig if the secret cannot be read."""
        identity, secret = "", None
        if config.names.urls:
            identity = await asyncio.to_thread(store_id, store.directory)
            secret = await asyncio.to_thread(registration_secret, config)
        return cls(config, own_route, identity, secret, metrics, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the registrations up to date until stop."""
        if not self._plans:
            await stop.wait()
            return
        is_tls = any(url.startswith("https:") for url in self._plans)
        # The process was started without the system's certificates (``quick_start``).
        connector = aiohttp.TCPConnector(
            ssl=ssl.create_default_context() if is_tls else True, keepalive_timeout=KEEPALIVE_S
        )
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with asyncio.TaskGroup() as tasks:
                registering = [
                    tasks.create_task(self._register_with(session, url, plan), name=f"names {url}")
                    for url, plan in self._plans.items()
                ]
                telling = tasks.create_task(self._tell_changes())
                await stop.wait()
                for task in (*registering, telling):
                    task.cancel()
            await self._leave(session)

    async def _tell_changes(self) -> None:
        """Wake the tasks of all name services when roles or topics have changed."""
        while True:
            await self._own.changed.wait()
            self._own.changed.clear()
            async with self._news:
                self._news.notify_all()

    async def _register_with(
        self, session: aiohttp.ClientSession, url: str, plan: RegistrationPlan
    ) -> None:
        while True:
            left_s = plan.due_s(self._standing()) - self._clock.monotonic()
            if left_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, POLL_S)), self._news:
                        await self._news.wait()
                continue
            await self._register_once(session, url, plan)

    def _standing(self) -> Standing:
        own = self._own
        return Standing(own.role, own.nodes.epoch, own.counter)

    async def _register_once(
        self, session: aiohttp.ClientSession, url: str, plan: RegistrationPlan
    ) -> None:
        standing, began_s = self._standing(), self._clock.monotonic()
        refusal = await self._send(session, url, standing, plan.base(standing))
        if refusal is None:
            plan.accept(standing, began_s)
        else:
            self._refused(url, plan, refusal, began_s)

    async def _send(
        self, session: aiohttp.ClientSession, url: str, standing: Standing, base: int | None
    ) -> dict[str, Any] | None:
        """Send a registration; return the error if it was not accepted."""
        body = await self._body(standing, base)
        headers = {"Content-Type": JSON, "Accept": JSON}
        if self._secret is not None:
            headers[signature.HEADER] = await asyncio.to_thread(
                signature.sign, self._secret, self._clock.wall_ms(), "PUT", self._path, body
            )
        try:
            async with session.put(url + self._path, data=body, headers=headers) as response:
                if response.status < 300:
                    return None
                return _refusal(await response.content.read(ANSWER_SIZE_MAX), response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            return {"code": Unreachable.code, "detail": str(error) or type(error).__name__}

    async def _leave(self, session: aiohttp.ClientSession) -> None:
        """Report that this node stops, so that clients are not sent to it for two minutes more.

        With a higher counter than every registration before: a late or recorded one is refused.
        """
        leaving = Standing("unknown", self._own.nodes.epoch, self._own.counter + 1)
        registered = [url for url, plan in self._plans.items() if plan.is_registered]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await asyncio.gather(
                    *(self._send(session, url, leaving, None) for url in registered)
                )

    def _refused(
        self, url: str, plan: RegistrationPlan, refusal: dict[str, Any], began_s: float
    ) -> None:
        code = str(refusal["code"])
        self._metrics.names_refused.labels(code).inc()
        plan.refuse(code, began_s)
        known = refusal.get("counter")
        is_of_this_epoch = refusal.get("epoch") == self._own.nodes.epoch
        if code == StaleRegistration.code and is_of_this_epoch and isinstance(known, int):
            self._own.raise_counter(known + 1)
        if self._clock.monotonic() < plan.due_s(self._standing()):
            self._limited_log.say(
                f"{url} {code}",
                "names-refused",
                "a name service has not accepted the registration of this node; sends and reads "
                "go on",
                url=url,
                code=code,
                detail=refusal.get("detail", ""),
            )

    # -- bodies ---------------------------------------------------------------------------------

    async def _body(self, standing: Standing, base: int | None) -> bytes:
        """Return a registration: without topics, by difference to base, or with all topics."""
        head: dict[str, Any] = {**self._fixed, **standing._asdict()}
        views = self._own.topics
        if standing.role != "master" or views is None:
            return msgspec.json.encode(head)
        changed = None if base is None else self._own.changes_since(base)
        if changed is None:
            return _joined(head, b"topics", await self._entries(list(views.routed())))
        removed = [name for name in changed if views.route(name) is None]
        head |= {"base": base, "removed": removed}
        return _joined(head, b"changed", await self._entries(changed))

    async def _entries(self, names: Iterable[str]) -> bytes:
        """Return the topics of these names as a map in JSON, without those that do not exist."""
        views = self._own.topics
        assert views is not None, "the caller has checked it"
        slicer, entries = TimeSlicer(self._clock, Pauses()), dict[str, bytes]()
        for name in names:
            if slicer.over:
                await slicer.pass_on()
            if (topic := views.route(name)) is not None:
                entries[name] = msgspec.json.encode(name) + b":" + msgspec.json.encode(topic)
        return b"{" + b",".join(entries.values()) + b"}"


def _joined(head: dict[str, Any], name: bytes, entries: bytes) -> bytes:
    """Return the head, a JSON map, with one more member."""
    return msgspec.json.encode(head)[:-1] + b',"' + name + b'":' + entries + b"}"


def _refusal(body: bytes, status: int) -> dict[str, Any]:
    """Return the error in an answer; one that is no error of Tidemark gets its status as code."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("code"), str):
        return said
    return {"code": Unreachable.code, "detail": f"status {status}: {body[:200]!r}"}


def registration_secret(config: BrokerConfig) -> bytes | None:
    """Return the secret that registrations are signed with; None without one, or without name
    services. Blocks. Raises BadConfig."""
    if not config.names.urls:
        return None
    if config.names.secret_file is not None:
        return read_secret(config.names.secret_file, "names.secret_file")
    if config.cluster.secret_file is not None:
        return read_secret(config.cluster.secret_file, "cluster.secret_file")
    return None
