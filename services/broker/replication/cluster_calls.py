"""``GET /v1/cluster``: what clients and people ask any node to find the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from services.broker.calls import Route, answer
from services.broker.http_requests import parameters
from services.broker.replication.cluster_view import ClusterView

ALONE: Final[Mapping[str, Any]] = {
    "cluster": None,
    "group": None,
    "epoch": None,
    "master": None,
    "reason": "this node is alone, in no group: it serves everything itself",
    "nodes": [],
}


class ClusterCalls:
    """The calls about the group. Needs no open gate: they tell why it is shut."""

    def __init__(self, view: Callable[[], ClusterView | None]) -> None:
        """view: None while the store is not open, and on a node alone."""
        self._view = view

    @property
    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (Route("GET", "/v1/cluster", "cluster", self._cluster),)

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        parameters(request, frozenset())
        view = self._view()
        return answer(request, ALONE if view is None else await view.now())
