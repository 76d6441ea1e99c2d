"""``GET /v1/cluster``: what clients and people ask any node to find the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from services.broker.calls import Route, answer
from services.broker.http_requests import parameters
from shared.cluster.config import ClusterConfig

ALONE: Final[Mapping[str, Any]] = {
    "cluster": None,
    "group": None,
    "epoch": None,
    "master": None,
    "reason": "this node is alone, in no group: it serves everything itself",
    "nodes": [],
}


class View(Protocol):
    """Who knows what the group looks like (``cluster_view``)."""

    async def now(self) -> Mapping[str, Any]:
        """The answer."""
        ...


class Known:
    """The same answer whenever somebody asks."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    async def now(self) -> Mapping[str, Any]:
        """The answer."""
        return self._answer


def starting(config: ClusterConfig) -> Known:
    """What a node of a group says before it has opened its store."""
    own = config.own
    return Known(
        {
            "cluster": config.name,
            "group": config.group,
            "epoch": None,
            "master": None,
            "reason": f"node {own.name} is starting: its store is not open yet",
            "nodes": [{"node": own.name, "role": None, "api": own.api, "admin": own.admin}],
        }
    )


class ClusterCalls:
    """The calls about the group. Needs no open gate: they tell why it is shut."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    @property
    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (Route("GET", "/v1/cluster", "cluster", self._cluster),)

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        parameters(request, frozenset())
        return answer(request, await self._view().now())
