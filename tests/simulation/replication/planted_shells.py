"""Planted mistakes in the code that carries decisions out, as changes of its source."""

from __future__ import annotations

from typing import Final

from services.broker.replication import followed_state, group_leadership, grouped_store, master
from services.ha.core import following, mastership, recreation, switchover
from tests.simulation.replication.mutation import change

BYTE_0_BEFORE_THE_FLUSH_ENDED: Final = change(
    master,
    (
        "            for ended in self._appending_ended.values():\n"
        "                await ended.wait()\n"
        "            await asyncio.to_thread(\n"
        "                log_context.appender.close, clean=not log_context.flusher.failed\n"
        "            )\n",
        "",
    ),
)
"""The append lock is released while a flush runs."""

BYTE_0_BEFORE_SERVING_EPOCH_IS_CLEARED: Final = change(
    grouped_store,
    (
        "        self.positions.publish(Slot.SERVING_EPOCH, 0)\n"
        "        if self._append_lock is not None:\n"
        "            self._append_lock.release()\n"
        "            self._append_lock = None\n",
        "        if self._append_lock is not None:\n"
        "            self._append_lock.release()\n"
        "            self._append_lock = None\n"
        "        self.positions.publish(Slot.SERVING_EPOCH, 0)\n",
    ),
)
"""The page has a serving epoch while ha already holds the log."""

HELLO_BEFORE_THE_PROMISE_IS_DURABLE: Final = change(
    following,
    (
        "master is None or self._promises.pending or master.epoch != self._promises.promised",
        "master is None",
    ),
)
"""A slave follows a new master while its promise is being written."""

GRANT_NOT_LOOKED_AT_WITH_BYTE_0: Final = change(
    group_leadership,
    (
        "            if await asyncio.to_thread(self._store.take_append_lock):\n"
        "                return self.term.is_valid\n",
        "            if await asyncio.to_thread(self._store.take_append_lock):\n"
        "                return True\n",
    ),
)
"""A broker serves a grant that ended while it waited for byte 0."""

SILENT_BROKER_RENEWED: Final = change(
    mastership,
    (
        "        if not context.broker_serves:\n"
        "            return  # a node that serves no clients must not keep the lease\n",
        "",
    ),
)
"""A node with a silent broker goes on renewing the lease."""

RELEASED_BEFORE_THE_TARGET_HAS_THE_END: Final = change(
    switchover,
    (
        "elif self._stage is _Stage.DRAINING and durable == context.end:",
        "elif self._stage is _Stage.DRAINING:",
    ),
)
"""A planned switch releases the lease as soon as the end of the log is fixed."""

PROMISE_OF_A_REPLACED_VOLUME: Final = change(
    recreation,
    (
        "        if peer is not None and peer.member in self._missing:\n"
        "            self._missing.discard(peer.member)\n",
        "        if peer is not None:\n"
        "            self._missing = {each for each in self._missing if each.node != peer.node}\n",
    ),
)
"""The promise of a node's new volume counts for the member that its old volume was."""

STATE_READ_FROM_THE_CONFIRM_OFFSET: Final = change(
    followed_state,
    (
        "        at = max(dispatched, log.min_offset)\n",
        "        at = max(PhysicalOffset(self._slots.get(Slot.CONFIRM)), log.min_offset)\n",
    ),
)
"""A new master's state lacks what is confirmed and not dispatched."""
