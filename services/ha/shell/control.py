"""Commands of operators and the status of the group, over HTTP.

The same routes exist on the admin port and on the socket ``ha-control.sock`` of this node, where
the broker reads what it shows its clients. A command goes to the replica as an event and waits for
its answer; this module decides nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.shell.command_bodies import (
    BODY_S,
    TEXT_TYPE,
    Answer,
    error_answer,
    error_body,
    json_answer,
    read_arguments,
)
from shared.runtime.doorbell import socket_path
from shared.runtime.health import end_line
from tidemark.errors import (
    BadRequest,
    ClusterRefused,
    Overloaded,
    TidemarkError,
    UnknownCall,
)

SOCKET_NAME: Final = "ha-control"
COMMANDS: Final = frozenset(
    {
        "switchover",
        "failover",
        "pause",
        "resume",
        "remove-member",
        "add-node",
        "remove-node",
        "recreate-lease",
        "resync",
        "adopt",
    }
)
COMMANDS_MAX: Final = 16
"""Commands that wait at a time; even two operators at once are unusual."""
ADVICE: Final = "Check `tidemark cluster status` before you give another command."
SHUTDOWN_S: Final = 1.0
"""Time that answers under way get when the process ends."""
OWN_ARGUMENT: Final = "reason"
"""Argument of commands that this process gives itself before it ends; after them it takes no
lease."""


class CommandTimeout(TidemarkError):
    """A command was accepted and has not ended in time."""

    code, title, status = "command-timeout", "The command continues; its outcome is unknown", 504


class OrderBySocket(ClusterRefused):
    """A command came over the network, where the settings allow none."""

    code, title, status = "order-by-socket", "Commands are not accepted on this port", 403


class ForeignOrder(ClusterRefused):
    """A command on the admin port may come from a web page that an operator has open."""

    code, title, status = "foreign-order", "The order may come from a web page", 403


class Control:
    """The HTTP calls of one ha process. Used on its event loop only."""

    def __init__(
        self,
        post: Callable[[Command], None],
        status: Callable[[], Mapping[str, Any]],
        *,
        timeout_s: float,
    ) -> None:
        """post: hands a command to the replica. status: returns the status of the group."""
        self._post = post
        self._status = status
        self._timeout_s = timeout_s
        self._next_token = 1
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    def socket_routes(self) -> list[web.RouteDef]:
        """Return ``GET /v1/cluster``, ``POST /v1/cluster/{command}`` for this node's own socket."""
        return self._routes(self._on_command)

    def port_routes(self, hosts: Collection[str] | None) -> list[web.RouteDef]:
        """Return the same routes for the admin port.

        hosts: names of nodes that a request may be addressed to. None: the port takes no commands.
        """
        if hosts is None:
            return self._routes(self._on_refused)

        async def on_command(request: web.Request) -> web.Response:
            why = foreign(request.headers, hosts)
            return (
                await self._on_command(request) if why is None else error_answer(ForeignOrder(*why))
            )

        return self._routes(on_command)

    def _routes(self, on_command: Handler) -> list[web.RouteDef]:
        return [
            web.get("/v1/cluster", self._on_status),
            web.post("/v1/cluster/{command}", on_command),
        ]

    def close(self) -> None:
        """Answer all waiting commands that their outcome is unknown, because this process ends."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(
                    CommandTimeout(
                        "the process that took the command up has ended. It may still take effect.",
                        ADVICE,
                    )
                )

    def replied(self, reply: Reply) -> None:
        """Answer a command; it is ignored if the call has timed out."""
        waiter = self._waiting.get(reply.token)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    async def command(self, name: str, arguments: Mapping[str, str]) -> Answer:
        """Run a command and return its outcome.

        Raises UnknownCall, Overloaded; CommandTimeout if it takes longer than the limit.
        """
        if name not in COMMANDS:
            raise UnknownCall(
                f"there is no command {name!r} of a cluster.",
                f"Use one of {', '.join(sorted(COMMANDS))}.",
            )
        if len(self._waiting) >= COMMANDS_MAX:
            raise Overloaded(
                f"{COMMANDS_MAX} commands wait already. Nothing was done.", "Try again later."
            )
        token, self._next_token = self._next_token, self._next_token + 1
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[token] = waiter
        try:
            self._post(Command(token, name, dict(arguments)))
            async with asyncio.timeout(self._timeout_s):
                reply = await waiter
        except TimeoutError:
            raise CommandTimeout(
                f"{name} has not ended within {self._timeout_s} s. It may end later.",
                ADVICE,
            ) from None
        finally:
            del self._waiting[token]
        return Answer(200, reply.body) if reply.ok else _refused(name, reply.body)

    async def _on_status(self, _: web.Request) -> web.Response:
        return json_answer(Answer(200, self._status()))

    async def _on_refused(self, request: web.Request) -> web.Response:
        """Refuse a command: clients of the port may read the status, commands come from the node
        itself."""
        error = OrderBySocket(
            f"{request.match_info['command']} is taken on the node itself only. Nothing was done.",
            "Give the order there: `tidemark cluster` goes over the socket where TIDEMARK_RUN_DIR "
            "and TIDEMARK_HA_CLUSTER_NODE are set, as in the container ha of a pod: "
            "`kubectl exec POD -c ha -- tidemark cluster ...`.",
        )
        return error_answer(error)

    async def _on_command(self, request: web.Request) -> web.Response:
        try:
            arguments = await read_arguments(request, timeout_s=min(BODY_S, self._timeout_s))
            if OWN_ARGUMENT in arguments:
                raise BadRequest(f"{OWN_ARGUMENT} is not a valid argument. Nothing was done.")
            return json_answer(await self.command(request.match_info["command"], arguments))
        except TidemarkError as error:
            return error_answer(error)


class ControlSocket:
    """The calls on a unix socket of this node, for its broker and its operator."""

    def __init__(self, control: Control, run_dir: Path) -> None:
        """Raises PathTooLong."""
        self._path = socket_path(run_dir, SOCKET_NAME)
        self._app = web.Application(middlewares=[end_line])
        self._app.add_routes(control.socket_routes())
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ControlSocket:
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        self._runner = runner
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process left it. A live one is excluded by the lock byte of ha.
        self._path.unlink(missing_ok=True)
        await web.UnixSite(runner, str(self._path)).start()
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening. ha must still hold its lock byte, because later the path may belong to a
        successor."""
        if self._runner is None:
            return
        await self._runner.cleanup()
        self._runner = None
        self._path.unlink(missing_ok=True)


def foreign(headers: Mapping[str, str], hosts: Collection[str]) -> tuple[str, str] | None:
    """Return why a request may come from a web page, with advice; None if it cannot.

    A page in an operator's browser can send requests to every address that the browser reaches,
    without being able to read the answers. Browsers name the page's origin in all of them. Before
    they send JSON they ask whether the server accepts it from that origin, which this one never
    does. A page whose name was made to resolve to this node (DNS rebinding) sends that name as
    ``Host``.
    """
    if (origin := headers.get("Origin")) is not None:
        return (
            f"the request comes from the web page {origin}. Nothing was done.",
            "Give orders with `tidemark cluster`; requests of web pages carry the header Origin.",
        )
    sent_as = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if sent_as != TEXT_TYPE:
        return (
            f"the body is sent as {sent_as or 'no type'}, not as {TEXT_TYPE}. Nothing was done.",
            f"Send a JSON object, {{}} for no arguments, with Content-Type: {TEXT_TYPE}.",
        )
    try:
        host = URL.build(scheme="http", authority=headers.get("Host", "")).host or ""
    except ValueError:
        host = ""
    if host in {"localhost", *hosts} or _is_address(host):
        return None
    return (
        f"the request is addressed to {host or 'no host'}, which is not the name of a node. "
        "Nothing was done.",
        "Use a node's IP address, localhost, or a name that cluster.admin has.",
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refused(name: str, body: Mapping[str, Any]) -> Answer:
    """Return an error in the form of all API calls, with all facts of the replica."""
    error = ClusterRefused(
        str(body.get("detail", f"{name} is refused.")), str(body.get("advice", ""))
    )
    return Answer(error.status, {**error_body(error), **body})
