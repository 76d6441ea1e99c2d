"""``/primary``, ``/replica`` and ``/in-sync``: this node's role, from the checkpoint page alone.

The broker obeys the same page, so the answers agree with its behaviour: a node whose lease has
expired is not a primary, whatever this process decided last. ``/in-sync`` is for tools that stop
nodes one by one: 200 if this node is the master or could become it, so that the next node may be
stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from aiohttp import web

from services.ha.core.states import State
from shared.files.positions import Positions
from tidemark.clock import Clock
from tidemark.formats.checkpoint import NodeRole, Slot


class Probes:
    """Answers 200 or 503, with the state on the page."""

    def __init__(self, clock: Clock, state: Callable[[], State]) -> None:
        """state: returns the present state of the replica."""
        self._clock, self._state = clock, state
        self.positions: Positions | None = None
        """None until the store is open and recovered."""

    def open(self, positions: Positions) -> None:
        """Answer from this page: the store is open and recovered."""
        self.positions = positions

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/primary", self._primary),
            web.get("/replica", self._replica),
            web.get("/in-sync", self._in_sync),
        ]

    @property
    def is_primary(self) -> bool:
        """Whether the grant is valid and its deadline has not passed."""
        positions = self.positions
        return (
            positions is not None
            and not positions.get(Slot.FENCED)
            and positions.get(Slot.ROLE) == NodeRole.MASTER
            and self._clock.boot_ms() < positions.get(Slot.LEASE_DEADLINE)
        )

    @property
    def is_replica(self) -> bool:
        """Whether the node follows a master, or waits for one."""
        positions = self.positions
        return positions is not None and positions.get(Slot.ROLE) == NodeRole.FOLLOWER

    async def _primary(self, _: web.Request) -> web.Response:
        return self._answer(self.is_primary)

    async def _replica(self, _: web.Request) -> web.Response:
        return self._answer(self.is_replica)

    async def _in_sync(self, _: web.Request) -> web.Response:
        return self._answer(self.is_primary or self._state() is State.IN_SYNC)

    def _answer(self, yes: bool) -> web.Response:
        positions = self.positions
        role = None if positions is None else role_name(positions.get(Slot.ROLE))
        epoch = None if positions is None else positions.get(Slot.EPOCH) or None
        body = {"role": role, "state": self._state().value, "epoch": epoch}
        return web.Response(
            text=json.dumps(body) + "\n",
            status=200 if yes else 503,
            content_type="application/json",
        )


def role_name(value: int) -> str:
    """Return the name of a value of Slot.ROLE; the number if a later version defines it."""
    try:
        return NodeRole(value).name.lower()
    except ValueError:
        return str(value)
