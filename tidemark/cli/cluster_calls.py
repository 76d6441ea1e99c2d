"""The cluster's calls as the command line makes them: find the right node, ask it.

Any node of the group tells the others' addresses (``GET /v1/cluster``); commands go to the admin
port of the node that carries them out. Used by ``cluster``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from tidemark.errors import BrokenAnswer, ClusterRefused, NotServing, Unreachable

TIMEOUT_S: Final = 30.0
"""A command may wait for a slave to catch up."""


class Refusal(ClusterRefused):
    """What a node answered instead of carrying a command out, with its own code."""

    def __init__(self, code: str, detail: str, advice: str) -> None:
        self.code = code  # type: ignore[misc]
        super().__init__(detail, advice)


class ClusterCalls:
    """Calls to one group, beginning at any of its nodes."""

    def __init__(self, url: str) -> None:
        """url: of any node's API."""
        self._url = url.rstrip("/")

    async def view(self) -> dict[str, Any]:
        """What the node knows of the group. Raises Unreachable, NotServing, BrokenAnswer."""
        return await _call("GET", f"{self._url}/v1/cluster", None)

    async def at(self, node: str, command: str, order: Mapping[str, object]) -> dict[str, Any]:
        """Have a command carried out by a node. Raises Refusal, Unreachable …"""
        admin = node_of(await self.view(), node)["admin"]
        return await _call("POST", f"{admin}/v1/cluster/{command}", order)

    async def at_master(
        self, command: str, order: Mapping[str, object], *, or_any: bool = False
    ) -> dict[str, Any]:
        """The same by the master; or_any: by whoever answers, if there is none."""
        view = await self.view()
        master = view["master"]
        if master is None:
            if or_any:
                return await self.at_any(command, order)
            raise NotServing(
                f"the group has no master now: {view.get('reason') or 'not known why'}. "
                "Nothing was changed.",
                "See `tidemark cluster status`, and try again.",
            )
        admin = node_of(view, master)["admin"]
        return await _call("POST", f"{admin}/v1/cluster/{command}", order)

    async def at_any(self, command: str, order: Mapping[str, object]) -> dict[str, Any]:
        """The same by the first node that answers."""
        unreachable: Unreachable | None = None
        for node in (await self.view())["nodes"]:
            try:
                return await _call("POST", f"{node['admin']}/v1/cluster/{command}", order)
            except Unreachable as error:
                unreachable = error
        assert unreachable is not None, "a group has nodes"
        raise unreachable


def node_of(view: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A node of the view. Raises ClusterRefused if there is none of that name."""
    for node in view["nodes"]:
        if node["node"] == name:
            found: Mapping[str, Any] = node
            return found
    names = ", ".join(node["node"] for node in view["nodes"])
    raise ClusterRefused(f"there is no node {name}; the group has {names}. Nothing was changed.")


async def _call(method: str, url: str, order: Mapping[str, object] | None) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    headers = {"Accept": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.request(method, url, json=order) as response,
        ):
            body = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unreachable(
            f"{url} does not answer: {error or type(error).__name__}.",
            "Does the node run? Another node of the group can be asked with --url.",
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
