"""Sends the calls of ``tidemark cluster`` to the right node.

Any node of the group reports the others' addresses (``GET /v1/cluster``), and the master has the
most information. A command is sent to the admin port of the node that executes it, or over its
socket if this process runs on that node, because a node may accept commands only there. Used by
``cluster``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from shared.runtime.doorbell import socket_path
from tidemark.client.transport import reason_of
from tidemark.errors import BrokenAnswer, ClusterRefused, NotServing, TidemarkError, Unreachable

TIMEOUT_S: Final = 30.0
"""Long, because a command may wait for a slave to catch up."""
VIEW_TIMEOUT_S: Final = 2.0
"""Short: a running node answers a view at once, a stopped or partitioned one not at all."""
CONNECT_TIMEOUT_S: Final = 2.0

SOCKET_NAME: Final = "ha-control"
"""Name of the ha service's socket (``services/ha/shell/control.py``)."""
RUN_DIR_VARIABLE: Final = "TIDEMARK_RUN_DIR"
NODE_VARIABLE: Final = "TIDEMARK_HA_CLUSTER_NODE"
"""If both are set, this process runs on a node of the group, e.g. in the ha container of a pod."""


class OwnNode(NamedTuple):
    """The node on which this process runs."""

    name: str
    run_dir: Path


def own_node(environment: Mapping[str, str] | None = None) -> OwnNode | None:
    """Return the node on which this process runs, from the environment; None if on none."""
    variables = os.environ if environment is None else environment
    name, run_dir = variables.get(NODE_VARIABLE), variables.get(RUN_DIR_VARIABLE)
    return OwnNode(name, Path(run_dir)) if name and run_dir else None


class Refusal(ClusterRefused):
    """The error that a node answered to a command, with its own code."""

    def __init__(self, code: str, detail: str, advice: str) -> None:
        self.code = code  # type: ignore[misc]
        super().__init__(detail, advice)


class ClusterCalls:
    """Calls to one group through any of its nodes."""

    def __init__(self, urls: Sequence[str]) -> None:
        """urls: API addresses of one or several nodes."""
        self._urls = urls
        self._own = own_node()

    async def view(self) -> dict[str, Any]:
        """Return the master's view of the group if it answers, else the most complete one.

        Raises Unreachable, NotServing, BrokenAnswer; ClusterRefused if the node is in no group.
        """
        views = await _views(self._urls)
        if not any(map(_is_of_master, views)):
            apis = [node.get("api") for view in views for node in view["nodes"]]
            others = {api.rstrip("/") for api in apis if api is not None} - set(self._urls)
            views += await _views(sorted(others), or_none=True)
        found = max(views, key=_rank)
        if not found["nodes"]:
            raise ClusterRefused(
                f"{found.get('reason') or 'this node is alone, in no group'}. Nothing was changed.",
                "A group of nodes is started with `tidemark dev --nodes 2`.",
            )
        return found

    async def name_services(self) -> list[str]:
        """Return the URLs of the name services that the nodes register with."""
        asked = [
            _call("GET", f"{url}/v1/route", None, timeout_s=VIEW_TIMEOUT_S) for url in self._urls
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        routes = [answer for answer in answers if isinstance(answer, dict)]
        return sorted({str(url) for route in routes for url in route.get("names", ())})

    async def at(self, node: str, command: str, order: Mapping[str, object]) -> dict[str, Any]:
        """Send a command to a node. Raises Refusal, Unreachable and others."""
        return await self._order(node_of(await self.view(), node), command, order)

    async def own_view(self, admin: str) -> dict[str, Any]:
        """Return what the ha at an admin URL reports. Raises Unreachable, BrokenAnswer."""
        return await _call("GET", f"{admin}/v1/cluster", None, timeout_s=VIEW_TIMEOUT_S)

    async def at_port(self, node: str, command: str, order: Mapping[str, object]) -> dict[str, Any]:
        """Send a command to a node's admin port, also from the node itself."""
        admin = node_of(await self.view(), node)["admin"]
        return await _call("POST", f"{admin}/v1/cluster/{command}", order)

    async def at_master(
        self, command: str, order: Mapping[str, object], *, or_any: bool = False
    ) -> dict[str, Any]:
        """Send a command to the master; or_any: without a master, to any node that answers."""
        view = await self.view()
        master = view["master"]
        if master is None:
            if or_any:
                return await self.at_any(command, order)
            raise NotServing(
                f"the group has no master now: {view.get('reason') or 'reason unknown'}. "
                "Nothing was changed.",
                "See `tidemark cluster status`, and try again.",
            )
        return await self._order(node_of(view, master), command, order)

    async def at_any(self, command: str, order: Mapping[str, object]) -> dict[str, Any]:
        """Send a command to the first node that answers."""
        unreachable: Unreachable | None = None
        own = None if self._own is None else self._own.name
        for node in sorted((await self.view())["nodes"], key=lambda node: node["node"] != own):
            try:
                return await self._order(node, command, order)
            except Unreachable as error:
                unreachable = error
        assert unreachable is not None, "a group has nodes"
        raise unreachable

    async def _order(
        self, node: Mapping[str, Any], command: str, order: Mapping[str, object]
    ) -> dict[str, Any]:
        path = f"/v1/cluster/{command}"
        if self._own is not None and node["node"] == self._own.name:
            socket = socket_path(self._own.run_dir, SOCKET_NAME)
            return await _call("POST", f"http://{self._own.name}{path}", order, socket=socket)
        return await _call("POST", f"{node['admin']}{path}", order)


def node_of(view: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a node of the view. Raises ClusterRefused if there is none of that name."""
    for node in view["nodes"]:
        if node["node"] == name:
            found: Mapping[str, Any] = node
            return found
    names = ", ".join(node["node"] for node in view["nodes"])
    raise ClusterRefused(f"there is no node {name!r}; the group has {names}. Nothing was changed.")


async def _views(urls: Sequence[str], *, or_none: bool = False) -> list[dict[str, Any]]:
    """Return the views of the nodes that answer. If none does, raises the first error."""
    asked = [_call("GET", f"{url}/v1/cluster", None, timeout_s=VIEW_TIMEOUT_S) for url in urls]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    views = [answer for answer in answers if isinstance(answer, dict)]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, TidemarkError):
            raise answer
    if not views and not or_none:
        raise next(answer for answer in answers if isinstance(answer, TidemarkError))
    for view in views:
        if not isinstance(view.get("nodes"), list):
            raise BrokenAnswer("the answer to GET /v1/cluster has no list `nodes`")
    return views


def _is_of_master(view: Mapping[str, Any]) -> bool:
    """Whether the view is the master's own: only the master knows the deadline of its lease."""
    return (view.get("lease") or {}).get("deadline_in_ms") is not None


def _rank(view: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
    """Return how complete a view is; the largest value is the best."""
    return (
        _is_of_master(view),
        view.get("master") is not None,
        view.get("epoch") or 0,
        len(view["nodes"]),
    )


async def _call(
    method: str,
    url: str,
    order: Mapping[str, object] | None,
    *,
    timeout_s: float = TIMEOUT_S,
    socket: Path | None = None,
) -> dict[str, Any]:
    """Make one call. socket: if given, the call goes there, whatever host the URL names."""
    connector = None if socket is None else aiohttp.UnixConnector(str(socket))
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
    headers = {"Accept": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector) as session,
            session.request(method, url, json=order) as response,
        ):
            body = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unreachable(
            f"{url} does not answer: "
            f"{'it took too long' if isinstance(error, TimeoutError) else reason_of(error)}.",
            "Does the node run? --url accepts the addresses of several nodes, separated by commas.",
        ) from error
    except ValueError as error:
        raise BrokenAnswer(f"{url} answers something that is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise BrokenAnswer(f"{url} answers {type(body).__name__} instead of an object.")
    if response.status >= 400:
        raise Refusal(
            str(body.get("code", "internal")),
            str(body.get("detail", f"{url} answers {response.status}.")),
            str(body.get("advice", "")),
        )
    return body
