"""Sends the requests of the replica to the store of the lease, each as a task of the loop.

Every request ends with an event; a failed one has an unknown outcome. The role of the node is also
announced in the store of the lease, after a change and then regularly; no decision reads it. Step
before: ``effect_runner``. Step after: a ``LeaseStore``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from services.ha.core import effects
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.interface import LeaseStore, carry_out
from tidemark.formats.checkpoint import NodeRole

log = logging.getLogger(__name__)

ANNOUNCE_AGAIN_S: Final = 0.5
ANNOUNCE_PAUSE_MAX_S: Final = 10.0
ANNOUNCED: Final[Mapping[int, str]] = {
    NodeRole.MASTER: "master",
    NodeRole.FOLLOWER: "slave",
    NodeRole.HALTED: "slave",
}
LeaseRequest = effects.LeaseGet | effects.LeasePut | effects.LeaseCreate


class LeaseClient:
    """Requests to one lease store. On the loop only."""

    def __init__(self, store: LeaseStore, *, request_timeout_ms: int) -> None:
        self._store, self._request_timeout_ms = store, request_timeout_ms
        self._tasks: set[asyncio.Task[None]] = set()
        self._error = ""
        """Type of the last unexpected error, so that a repeated one is logged once."""
        self._role = ""
        """The role to announce."""
        self._role_changed = asyncio.Event()

    def request(self, effect: LeaseRequest, answered: Callable[[LeaseAnswered], None]) -> None:
        """Send a request; answered is called with its outcome."""
        self._start(self._answer(effect, answered), type(effect).__name__)

    def announce(self, role: int) -> None:
        """Announce a role of the page; one that has no name there is not announced."""
        name = ANNOUNCED.get(role)
        if name is None:
            return
        if not self._role:
            self._start(self._announce(), "announce")
        if self._role != name:
            self._role = name
            self._role_changed.set()

    def close(self) -> None:
        """Cancel the requests that are under way; their callbacks are not called."""
        for task in list(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, effect: LeaseRequest, answered: Callable[[LeaseAnswered], None]
    ) -> None:
        try:
            answer = await carry_out(self._store, effect, self._request_timeout_ms)
            self._error = ""
        except Exception as error:  # a client library may raise any exception
            reason = "the request failed for a reason unknown to ha; its log has it as lease-error"
            if self._error != type(error).__name__:
                self._error = type(error).__name__
                log.exception("a request to the lease failed", extra={"event": "lease-error"})
            answer = LeaseAnswered(effect.request, LeaseOutcome.UNKNOWN, reason=reason)
        answered(answer)

    async def _announce(self) -> None:
        """Show the role of this node on its pod: after a change, after a failure, and regularly.

        Without the repetition a Service that selects the master's pod would lead to both nodes or
        to none forever:

        - 1. A master is partitioned from everything, steps down, and cannot announce it. 2. Another
          node is elected. 3. The network heals.
        - 1. A slave announces its role and gets no answer in time. 2. It becomes the master and
          announces that. 3. The first request reaches the API server.
        """
        failed, pause_s = "", ANNOUNCE_AGAIN_S
        while True:
            self._role_changed.clear()
            role = self._role
            reason = await self._store.announce(role)
            if reason and failed != role:
                log.warning(
                    "the role could not be shown on the pod; it is tried again",
                    extra={"event": "not-announced", "role": role, "reason": reason},
                )
            failed = role if reason else ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if reason else ANNOUNCE_PAUSE_MAX_S):
                    await self._role_changed.wait()
            pause_s = min(pause_s * 2, ANNOUNCE_PAUSE_MAX_S) if reason else ANNOUNCE_AGAIN_S
