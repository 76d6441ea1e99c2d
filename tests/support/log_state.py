"""The state that a store's log adds up to, read from the log's bytes alone.

Neither queues nor index nor checkpoint are read. It is the reference for what a broker serves, and
must serve again when everything but the log is gone.
"""

from __future__ import annotations

from pathlib import Path

from shared.state import records
from shared.state.records import STATE_TOPIC
from shared.state.state import BrokerState
from tidemark.cli.offline import OfflineStore, Window
from tidemark.formats import record


def state_in_log(root: Path) -> BrokerState:
    """All state records of the log applied, from its first byte on."""
    state = BrokerState()
    with OfflineStore(root) as offline:
        for window in offline.windows():
            if isinstance(window, Window):
                for entry in window.entries:
                    if entry.topic == STATE_TOPIC:
                        body = bytes(record.decode(window.view, window.at(entry)).body)
                        state.apply(records.decode(body), entry.physical_offset)
    return state


def ends_in_log(root: Path) -> dict[tuple[str, int], int]:
    """(topic, queue) → the offset behind its last record, of every queue with a record."""
    ends: dict[tuple[str, int], int] = {}
    with OfflineStore(root) as offline:
        for window in offline.windows():
            if isinstance(window, Window):
                for entry in window.entries:
                    key = entry.topic, entry.queue_id
                    ends[key] = max(ends.get(key, 0), entry.queue_offset + 1)
    return ends
