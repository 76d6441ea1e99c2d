"""Offsets of consumer groups, from the store's files; no process needs to run.

Our broker keeps its state in the log (docs/formats.md, the state topic). Each file begins with a
whole snapshot, so the log from the start of any file on suffices. RocketMQ keeps
``config/consumerOffset.json``. Min and max offset of each queue come from its files, so that lag is
one subtraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from analytics.schema import Gap
from analytics.sources.record_columns import RecordColumns
from analytics.sources.store import log_parts
from analytics.sources.store.files import NoTimes, StoreFiles
from analytics.sources.store.options import OFFSET_MAX, StoreOptions
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.disk import read_whole
from shared.state import records
from shared.state.json_tables import offsets_of
from shared.state.records import STATE_TOPIC, StateRecordUnreadable
from shared.state.state import BrokerState
from tidemark.errors import DamagedFile
from tidemark.formats.metadata_json import MetadataUnreadable, parse_consumer_offsets
from tidemark.offsets import PhysicalOffset, Queue

Offsets = dict[str, dict[Queue, int]]
"""Group → queue → next queue offset to consume."""


class OffsetsPart(NamedTuple):
    """The whole table; one task reads it."""

    broker: str


def plan(files: StoreFiles, options: StoreOptions) -> list[OffsetsPart]:
    """Return the only part of a read."""
    return [OffsetsPart(files.broker if options.broker is None else options.broker)]


def read(part: OffsetsPart, options: StoreOptions) -> Iterator[pa.RecordBatch]:
    """All offsets, by group, topic and queue. Raises DamagedFile if no file has all of them."""
    files = StoreFiles(options.root)
    origin, offsets = _offsets_of(files)
    ranges = _Ranges(files)
    rows = []
    for group, queues in sorted(offsets.items()):
        for (topic, queue), offset in sorted(queues.items()):
            if options.topics is not None and topic not in options.topics:
                continue
            low, high = ranges.of(topic, queue)
            rows.append(
                {
                    "broker": part.broker,
                    "group": group,
                    "topic": topic,
                    "queue": queue,
                    "commit_offset": offset,
                    "min_offset": low,
                    "max_offset": high,
                    "origin": origin,
                }
            )
    if rows:
        yield from pa.Table.from_pylist(rows, schema=options.schema).to_batches()


def _offsets_of(files: StoreFiles) -> tuple[str, Offsets]:
    state = _from_log(files)
    if state is not None:
        return "log", {group: dict(queues) for group, queues in state.offsets.items()}
    path = files.root / "config" / "consumerOffset.json"
    raw = read_whole(files.disk, path)
    if raw is None:
        return "json", {}
    try:
        return "json", offsets_of(parse_consumer_offsets(raw.decode()).offsets)
    except (MetadataUnreadable, UnicodeDecodeError) as error:
        raise DamagedFile(
            f"{path} cannot be read: {error}. Nothing was changed.",
            "Copy consumerOffset.json.bak over it, in a copy of the store.",
            path=path,
        ) from error


def _from_log(files: StoreFiles) -> BrokerState | None:
    """Offsets by the state records up to the confirm offset; None: the log has no snapshot."""
    for start in sorted(files.log_sizes, reverse=True):
        state = BrokerState()
        for at, body in _state_bodies(files, start):
            try:
                state.apply(records.decode(body), at)
            except StateRecordUnreadable:
                continue  # RocketMQ let a client send to this topic
        if state.snapshots:
            return state
    return None


def _state_bodies(files: StoreFiles, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield physical offset and body of each state record from that file on."""
    options = StoreOptions(
        files.root, topics=frozenset({STATE_TOPIC}), from_offset=start, split_bytes=OFFSET_MAX,
        split_min=1, verify=True,
    )  # fmt: skip
    for part in log_parts.plan(files, options):
        for found in log_parts.walk(part, options):
            if not isinstance(found, RecordColumns):
                if files.is_foreign or found.reason is Gap.TORN:
                    return  # no record after a torn tail was acknowledged
                raise DamagedFile(
                    f"{found.detail}. Offsets after it cannot be read; nothing was changed.",
                    "Run `tidemark store verify`, or read another replica.",
                    path=part.path,
                )
            bodies = found.column("body").to_pylist()
            yield from zip(found.column("physical_offset").to_pylist(), bodies, strict=True)


class _Ranges:
    """Min and max offset of each queue, from its files."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._min_physical = PhysicalOffset(min(files.log_sizes, default=0))
        self._end = OFFSET_MAX if files.published is None else files.published.confirm
        self._known: dict[tuple[str, int], tuple[int | None, int | None]] = {}

    def of(self, topic: str, queue: int) -> tuple[int | None, int | None]:
        """(min, max) queue offset; None if the queue has no file."""
        key = topic, queue
        if key not in self._known:
            self._known[key] = self._read(topic, queue)
        return self._known[key]

    def _read(self, topic: str, queue: int) -> tuple[int | None, int | None]:
        times = NoTimes(self._min_physical)
        reader = ConsumeQueueReader(self._files.directory, topic, queue, times)
        try:
            if reader.directory_is_empty:
                return None, None
            high = reader.max_offset(self._end)
            return min(reader.min_offset(self._min_physical), high), high
        finally:
            reader.close()
