"""The broker of a node of a group, whole: slave, master for an epoch, slave again.

ha decides (docs/replication.md); this class follows what ha publishes in the page. Readers, state
and doorbell are shared by all roles; everything else is made anew for each. Step before:
``service`` opened ports and store. Step after: ``slave`` and ``master``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from services.broker.log.log_context import LogContext, Readers
from services.broker.log.term import GrantedTerm
from services.broker.replication.cluster_view import ClusterView
from services.broker.replication.followed_state import FollowedState
from services.broker.replication.group_leadership import GroupLeadership
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.leaving import leave
from services.broker.replication.master import Master
from services.broker.replication.role_policy import SlavePolicy
from services.broker.replication.slave import Slave
from services.broker.roles import RoleContext

log = logging.getLogger(__name__)

SETTLE_S: Final = 2.0
"""Delay after the beginning of a role until work begins that only makes later requests faster."""


class GroupNode:
    """One start of the broker of a node of a group."""

    closed_in_order: Final = True
    """``stopped_clean`` finds in the page whether the store is closed in order."""

    def __init__(
        self,
        context: RoleContext,
        store: GroupedStore,
        view: ClusterView,
    ) -> None:
        self._context = context
        self._clock = context.broker.clock
        self._health = context.broker.health
        self._doorbell = context.broker.doorbell
        self._store = store
        self._gate = context.gate
        self._view = view
        self._as_slave = SlavePolicy(lambda: view.master)
        self._readers = Readers.of(store)
        self._followed = FollowedState(store)
        self._term: GrantedTerm | None = None
        self._settling: asyncio.TimerHandle | None = None

    @property
    def is_master(self) -> bool:
        """Whether this node is the group's master now."""
        return self._term is not None and self._gate.sends_open and self._term.may_answer

    @property
    def is_slave(self) -> bool:
        """Whether this node follows, and can be read."""
        return self._term is None and self._gate.reads_open

    async def run(self, stop: asyncio.Event) -> None:
        """Run one role after another until stop. Raises RestartNeeded, and errors that end a
        part."""
        served = 0
        while not stop.is_set():
            self._gate.take_role(self._as_slave)
            self._settle_later()
            slave = Slave(self._context, self._log_context(None), self._store, self._followed)
            epoch = await slave.run(stop, served)
            if epoch is None:
                return
            self._health.end_role()
            served = epoch
            log.info("an epoch was granted", extra={"event": "granted", "epoch": epoch})
            self._settle_later()
            await self._serve(epoch, stop)

    def _settle_later(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        loop = asyncio.get_running_loop()
        self._settling = loop.call_later(SETTLE_S, self._context.on_serving)

    async def _serve(self, epoch: int, stop: asyncio.Event) -> None:
        store = self._store
        term = self._term = GrantedTerm(
            store.positions, self._clock, epoch=epoch, nonce=store.nonce
        )
        lead = GroupLeadership(
            self._context,
            term,
            self._log_context,
            store,
            self._followed,
            stop,
            afterwards=self._as_slave,
        )
        may_end = asyncio.Event()
        leaving = asyncio.create_task(
            leave(stop, may_end, term, store.positions, self._doorbell, self._clock)
        )
        try:
            await Master(self._context, lead).run(may_end, stop)
        finally:
            leaving.cancel()
            self._term = None
            self._health.end_role()
        log.info("the term as master has ended", extra={"event": "term-ended", "epoch": epoch})

    def _log_context(self, term: GrantedTerm | None) -> LogContext:
        self._readers.log.refresh()  # log files were made and cut by another process
        return LogContext(
            self._context.broker,
            self._store,
            readers=self._readers,
            term=term,
            master_from=lambda: self._view.master_from,
        )
