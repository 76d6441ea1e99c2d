"""Queries of the index as RocketMQ answers them, for comparison with its own answers."""

from __future__ import annotations

from typing import NamedTuple

from shared.files.commit_log import CommitLogReader
from shared.files.index import HITS_MAX, TIME_MAX, IndexReader
from tidemark.formats import hashing
from tidemark.formats.index_file import Header
from tidemark.offsets import PhysicalOffset


class Hits(NamedTuple):
    """Raw result of one query."""

    physical_offsets: list[PhysicalOffset]
    """Ascending; includes other keys with the same hash, and duplicates of one record."""
    last_update_timestamp_ms: int
    """End time of the newest index file; 0 without hits."""
    last_update_offset: int


def headers(index: IndexReader) -> list[Header]:
    """The headers of all files, oldest first."""
    return [file.header for name in index.names() if (file := index.file(name)) is not None]


def query(
    index: IndexReader,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX,
    hits_max: int = HITS_MAX,
    dispatched: int,
    unique_id_only: bool = False,
) -> list[PhysicalOffset]:
    """The physical offsets of the records that the index finds, ascending."""
    found = index.records(
        topic,
        key,
        begin_ms=begin_ms,
        end_ms=end_ms,
        hits_max=hits_max,
        dispatched=dispatched,
        unique_id_only=unique_id_only,
    )
    return [each.physical_offset for each in found]


def hits(
    index: IndexReader,
    log: CommitLogReader,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX,
    hits_max: int = HITS_MAX,
    dispatched: int,
) -> Hits:
    """The result of RocketMQ's query: by hash only, without unreadable records."""
    wanted = min(hits_max, HITS_MAX)
    raw: list[int] = []
    for name in reversed(index.names()):
        file = index.file(name)
        if file is None or len(raw) >= wanted:
            continue
        first_ms, last_ms = file.times_ms
        if first_ms <= end_ms and begin_ms <= last_ms:
            raw += file.lookup(
                hashing.index_hash(topic, key),
                begin_ms=begin_ms,
                end_ms=end_ms,
                hits_max=wanted - len(raw),
            )
    if not raw:
        return Hits([], 0, 0)
    newest = headers(index)[-1]
    readable = [
        PhysicalOffset(offset)
        for offset in sorted(raw)
        if log.min_offset <= offset < dispatched
        and log.find(PhysicalOffset(offset), PhysicalOffset(dispatched)) is not None
    ]
    return Hits(readable, newest.end_timestamp_ms, newest.end_offset)
