"""``GET /v1/cluster``: any node answers it; clients and people use it to find the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web
from yarl import URL

from services.broker.api.calls import Route, answer
from services.broker.api.components import Components
from services.broker.api.http_requests import query_of
from services.broker.schema.values import NoParameters
from shared.cluster.config import ClusterConfig
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.offsets import PhysicalOffset

ALONE: Final[Mapping[str, Any]] = {
    "cluster": None,
    "group": None,
    "epoch": None,
    "master": None,
    "reason": "this node is alone, in no group: it serves everything itself",
    "nodes": [],
}


READ_MAX: Final = 100
"""Epochs whose first records are read for one answer, and kept for the next."""


class View(Protocol):
    """The state of the group (implemented by ``cluster_view``)."""

    async def now(self) -> Mapping[str, Any]:
        """Return the body of the response."""
        ...


class Known:
    """A view with a constant answer."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    async def now(self) -> Mapping[str, Any]:
        """Return the body of the response."""
        return self._answer


def starting(config: ClusterConfig) -> Known:
    """Return the view of a node that has not opened its store yet."""
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
    """The calls of the group. They need no open gate, because they show why it is shut."""

    def __init__(
        self, view: Callable[[], View], components: Callable[[], Components | None]
    ) -> None:
        """components: returns the components of the open store; None while it is not open."""
        self._view, self._components = view, components
        self._began: dict[int, dict[str, Any]] = {}

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return (Route("GET", "/v1/cluster", "cluster", self._cluster),)

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        view = await self._view().now()
        if view.get("history"):
            view = {**view, "history": self._history(view)}
        return answer(request, view)

    def _history(self, view: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the epochs with node and time of their beginning, from the first record of each.

        Both are None if that record has expired, is not dispatched yet, or cannot be read. Only the
        newest epochs are read; ha keeps the older ones for as long as the log has them.
        """
        addresses = {_authority(each["api"]): each["node"] for each in view["nodes"]}
        rows = [{**row, "node": None, "at_ms": None} for row in view["history"]]
        for row in rows[-READ_MAX:]:
            began = self._began.get(row["epoch"]) or self._read(row["start"])
            if began is not None:
                self._began[row["epoch"]] = began
                address = began["address"]
                row |= {"node": addresses.get(address, address), "at_ms": began["at_ms"]}
        for epoch in sorted(self._began)[:-READ_MAX]:
            del self._began[epoch]
        return rows

    def _read(self, start: int) -> dict[str, Any] | None:
        if (components := self._components()) is None:
            return None
        try:
            first = components.read.queries.stored_at(PhysicalOffset(start))
        except (CorruptRecord, DamagedFile):
            return None
        if first is None:
            return None
        return {"address": first.store_host.text, "at_ms": first.store_timestamp_ms}


def _authority(url: str | None) -> str:
    return "" if url is None else URL(url).authority
