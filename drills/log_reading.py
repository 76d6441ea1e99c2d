"""Read the logs of the nodes of a drill: the records of the final master, and differences.

It only reads files. A log that is being written is read up to the last complete record.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Final

from drills.checker import EpochStart, FinalLog, Stored
from drills.ledger import Place
from shared.files.store_config import LocalStoreConfig
from shared.state import records
from shared.state.records import EpochRecord
from tidemark.cli.offline import LogEnd, OfflineStore
from tidemark.cli.store_dump import queue_lines
from tidemark.errors import StoreMissing
from tidemark.formats import record

CHUNK_SIZE: Final = 1 << 20
KEY_SIZE_MAX: Final = 40


def key_of(body: bytes) -> str:
    """Return the key of a message of the workload: its body up to the first space."""
    return body[:KEY_SIZE_MAX].split(b" ", 1)[0].decode("ascii", "replace")


def read_log(store_dir: Path, topic: str, until: int | None = None) -> FinalLog:
    """Return all messages of a topic and all epoch records, in physical order.

    until: physical offset at which to stop; None for the end of the log.
    """
    found = FinalLog()
    with OfflineStore(store_dir, LocalStoreConfig()) as offline:
        found.first_offset = offline.min_offset
        for window in offline.windows():
            if isinstance(window, LogEnd):
                found.end = window.end
                break
            for entry in window.entries:
                if until is not None and entry.physical_offset >= until:
                    found.end = until
                    return found
                if entry.topic == topic:
                    stored = record.decode(window.view, window.at(entry))
                    place = Place(entry.queue_id, entry.queue_offset)
                    found.messages.append(
                        Stored(place, entry.physical_offset, key_of(bytes(stored.body)))
                    )
                elif entry.topic == records.STATE_TOPIC:
                    stored = record.decode(window.view, window.at(entry))
                    state = records.decode(bytes(stored.body))
                    if isinstance(state, EpochRecord) and state.epoch:
                        found.epochs.append(EpochStart(state.epoch, entry.physical_offset))
    return found


def first_difference(left: Path, right: Path, end: int) -> int | None:
    """Return the first physical offset below end at which two logs differ; None if they are equal.

    The comparison starts at the higher of the two minimum offsets, because each node has its own
    retention.
    """
    begins, size = [], 0
    for store in (left, right):
        try:
            with OfflineStore(store, LocalStoreConfig()) as offline:
                begins.append(offline.files.starts[0])
                size = offline.files.file_size
        except (StoreMissing, IndexError):
            return 0 if end else None
    for at in range(max(begins), end, size):
        name = Path("commitlog") / f"{at:020d}"
        difference = _difference(left / name, right / name, min(end - at, size))
        if difference is not None:
            return at + difference
    return None


def _difference(left: Path, right: Path, size: int) -> int | None:
    if not left.exists() or not right.exists():
        return 0
    with left.open("rb") as one, right.open("rb") as other:
        for at in range(0, size, CHUNK_SIZE):
            count = min(CHUNK_SIZE, size - at)
            ours, theirs = one.read(count), other.read(count)
            if ours != theirs or len(ours) < count:
                equal = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
                return at + sum(1 for _ in equal)
    return None


def queue_table(store_dir: Path) -> list[str]:
    """Return every queue of a store at rest with its units, as ``store dump --queues`` does."""
    with OfflineStore(store_dir, LocalStoreConfig()) as offline:
        return [line for line in queue_lines(offline) if isinstance(line, str)]
