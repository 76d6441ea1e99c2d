"""Planted mistakes in what carries decisions out, as changes of its text."""

from __future__ import annotations

from typing import Final

from services.broker.replication import grouped_store, master
from services.ha import following
from tests.simulation.replication.mutation import change

BYTE_0_BEFORE_THE_FLUSH_ENDED: Final = change(
    master,
    (
        "            for ended in self._appending_ended.values():\n"
        "                await ended.wait()\n"
        "            await asyncio.to_thread("
        "ground.appender.close, clean=not ground.flusher.failed)\n",
        "",
    ),
)
"""The append lock goes back while a flush runs."""

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
"""The page says that an epoch is served when the log is ha's already."""

HELLO_BEFORE_THE_PROMISE_IS_DURABLE: Final = change(
    following,
    (
        "master is None or self._promises.pending or master.epoch != self._promises.promised",
        "master is None",
    ),
)
"""A slave follows a new master while its promise is being written."""
