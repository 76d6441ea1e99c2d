"""Contents of a store's log, read by ``tidemark store dump``: messages, and the state in it.

They are the reference for every verb: results of commands and calls must be there, and nothing
else.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from pathlib import Path
from typing import Any

from shared.state import records
from shared.state.records import (
    DelayRecord,
    GroupConfig,
    GroupRecord,
    OffsetsRecord,
    SnapshotPart,
)
from tests.support.command import dump

Facts = dict[str, Any]


def body_of(facts: Facts) -> bytes:
    """A record's body, whatever form it has in JSON."""
    if "body_text" in facts:
        return str(facts["body_text"]).encode()
    return base64.b64decode(facts["body"])


class LogFacts:
    """One look at a log: a running node's as well."""

    def __init__(self, store_dir: Path) -> None:
        self.records = dump(store_dir)
        self.groups: dict[str, GroupConfig] = {}
        self.offsets: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        self.cancelled: set[tuple[int, int]] = set()
        """(delay level or 0, queue offset) of messages that were cancelled."""
        for facts in self.of(records.STATE_TOPIC):
            self._apply(records.decode(body_of(facts)))

    def of(self, topic: str) -> list[Facts]:
        """All records of a topic, in physical order."""
        return [facts for facts in self.records if facts["topic"] == topic]

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of a topic's records, in physical order."""
        return [body_of(facts) for facts in self.of(topic)]

    def ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Where each queue of a topic ends, of those that hold a record."""
        return {(topic, facts["queue"]): facts["queue_offset"] + 1 for facts in self.of(topic)}

    def _apply(self, state: records.StateRecord) -> None:
        match state:
            case GroupRecord(_, group):
                self.groups[group.name] = group
                if group.deleted:
                    self.offsets.pop(group.name, None)
            case OffsetsRecord(_, moves):
                for name, moved in moves.items():
                    self.offsets[name].update(moved)
            case DelayRecord():
                self.cancelled |= set(state.cancelled)
            case SnapshotPart():
                self.groups.update({group.name: group for group in state.groups})
                for name, moved in state.offsets:
                    self.offsets[name].update(moved)
                self.cancelled |= {key for key, _ in state.cancelled}
