"""One node on a simulated disk: the real recovery, appender and reput, run in one thread.

It is the composition of the services without their sockets and loops: every call below is one that
the broker or reput makes, in an order that the schedule chooses. ``history`` and ``checks`` decide
what is correct.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.index import IndexReader
from shared.files.positions import Positions
from shared.files.pull import get_message
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import StoreConfig, StoreDir
from tests.simulation.history import Flying, History, Sent, Violation
from tests.support.index_query import query
from tests.support.runs import runs_of
from tests.support.sim_disk import SimDisk
from tidemark.errors import DiskFull, FileNotReady, ReadOnlyDisk
from tidemark.formats import batch, inner_batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record import Message, encode
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue

ROOT: Final = Path("/store")
HOST: Final = Host(b"\x7f\0\0\1", 8080)


class NewOne(NamedTuple):
    """A message that a producer wants to send."""

    topic: str
    queue: int
    body: bytes
    tags: str
    keys: tuple[str, ...]
    unique_id: str
    in_batch: bool = False
    """Whether its topic has batch queues."""

    @property
    def properties(self) -> bytes:
        """Encoded properties of the message."""
        pairs = {properties.UNIQ_KEY: self.unique_id}
        if self.tags:
            pairs[properties.TAGS] = self.tags
        if self.keys:
            pairs[properties.KEYS] = " ".join(self.keys)
        return properties.encode(pairs)


class Log(NamedTuple):
    """How the commit log is written."""

    pool_size: int = 0
    warm_up: bool = False
    lock_memory: bool = False


def single_message(one: NewOne, now_ms: int) -> Message:
    """Return the record of a message in an ordinary queue."""
    return Message(
        topic=one.topic,
        queue_id=one.queue,
        body=one.body,
        born_host=HOST,
        store_host=HOST,
        properties=one.properties,
        born_timestamp_ms=now_ms,
    )


def flying_batch(ones: Sequence[NewOne], base: int) -> Flying:
    """Return the inner batch of messages of one queue. base: queue offset of the first."""
    keys = dict.fromkeys(key for one in ones for key in one.keys)
    tags = {one.tags for one in ones}
    return Flying(
        ones[0].topic,
        ones[0].queue,
        base,
        batch.encode(WireMessage(one.body, one.properties) for one in ones),
        tags.pop() if len(tags) == 1 else "",
        (ones[0].unique_id, *keys),
        len(ones),
    )


def batch_run(flying: Flying, now_ms: int) -> Run:
    """Return what the appender takes of an inner batch."""
    unique_id, *keys = flying.keys
    raw = inner_batch.encode_properties(
        unique_id,
        flying.message_count,
        tags=flying.tags.encode() or None,
        keys=" ".join(keys).encode() or None,
    )
    return Run(
        flying.topic,
        flying.queue,
        flying.body,
        flying.message_count,
        HOST,
        HOST,
        now_ms,
        batch_properties=raw,
    )


def batch_message(run: Run, base: int) -> Message:
    """Return the record that must become of an inner batch."""
    return Message(
        run.topic,
        run.queue_id,
        run.entries,
        HOST,
        HOST,
        inner_batch.with_base(run.batch_properties, base),
        born_timestamp_ms=run.born_timestamp_ms,
        sys_flag=inner_batch.SYS_FLAGS,
    )


class SimClock:
    """A clock that shows the time of the simulated disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._disk.now_ms

    def monotonic(self) -> float:
        """Seconds."""
        return self._disk.now_ms / 1000

    def boot_ms(self) -> int:
        """Milliseconds since some boot."""
        return self._disk.now_ms


class Machine:
    """The processes of one start. When they are killed, they are dropped without a close."""

    def __init__(
        self, disk: SimDisk, config: StoreConfig, log: Log, history: History, boot: int
    ) -> None:
        """boot: number of the machine's boot; a power cut begins another."""
        self.disk = disk
        self.log = log
        self.history = history
        self.boot_id = (boot, boot)
        self.config = config
        self.start_broker()
        self.dispatcher: Dispatcher | None = None

    # The broker's part

    def start_broker(self) -> None:
        """Do everything that a start of the broker does, up to the point where it serves."""
        disk = self.disk
        self.store = StoreDir(disk, ROOT, self.config)
        self.store.open_or_create()
        self.store.mark_running(pid=1)
        self.positions = Positions.open(disk, self.store.checkpoint_path)
        self.recovered: Recovered = recover(self.store, self.positions, boot_id=self.boot_id)
        self.next_queue_offsets: dict[Queue, int] = dict(self.recovered.next_queue_offsets)
        self.appender = CommitLogAppender(
            self.store, self.positions, background=False, **self.log._asdict()
        )
        self.appender.start_at(self.recovered.end)
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.appender.prepare_next()

    def restart_broker(self) -> int:
        """SIGKILL the broker alone; reput lives on and finds another generation. Returns the
        end."""
        self.start_broker()
        assert self.dispatcher is not None
        if not self.dispatcher.adopt_generation():
            self.dispatcher.resume()
        return self.recovered.end

    def send(self, request: list[NewOne]) -> None:
        """Number and append a request, and tell the history its place. Makes a file if one is
        missing."""
        offsets = dict(self.next_queue_offsets)
        flying: list[Flying] = []
        messages: list[Message] = []
        runs: list[Run] = []
        firsts: list[int] = []
        for queue, group in itertools.groupby(request, key=lambda one: (one.topic, one.queue)):
            ones = list(group)
            first = offsets.get(queue, 0)
            offsets[queue] = first + len(ones)
            firsts.append(first)
            if ones[0].in_batch:
                flying.append(flying_batch(ones, first))
                runs.append(batch_run(flying[-1], self.disk.now_ms))
                messages.append(batch_message(runs[-1], first))
                continue
            flying += (
                Flying(*queue, first + index, one.body, one.tags, (one.unique_id, *one.keys))
                for index, one in enumerate(ones)
            )
            singles = [single_message(one, self.disk.now_ms) for one in ones]
            messages += singles
            runs += runs_of(singles)
        self.history.in_flight = flying
        try:
            placed = self.appender.append(runs, firsts, self.disk.now_ms)
        except (FileNotReady, DiskFull):
            self.appender.prepare_next()
            placed = self.appender.append(runs, firsts, self.disk.now_ms)
        start = placed.start
        sizes = memoryview(placed.sizes).cast("I")
        done: list[Sent] = []
        for sending, message, size in zip(flying, messages, sizes, strict=True):
            raw = encode(
                message,
                queue_offset=sending.queue_offset,
                physical_offset=start,
                store_timestamp_ms=self.disk.now_ms,
                record_crc=self.config.record_crc,
            )
            if len(raw) != size:
                raise Violation(f"the record at {start} takes {len(raw)} bytes, not {size}")
            done.append(sending.stored(start, raw, self.disk.now_ms))
            start = PhysicalOffset(start + size)
        self.next_queue_offsets = offsets
        self.history.in_flight = []
        self.history.sent += done
        self._answer_memory()

    def commit(self) -> None:
        """Write the pool into the file; senders at ``memory`` are answered."""
        self.appender.commit()
        self._answer_memory()

    def flush(self) -> None:
        """Do one group commit: every waiting sender below its end is answered."""
        flushed = self.appender.flush()
        self._answer_memory()
        self.history.ack(flushed)

    @property
    def in_memory(self) -> PhysicalOffset:
        """End of the records whose senders at ``memory`` are answered."""
        return self.appender.written

    def _answer_memory(self) -> None:
        before, written = self.history.written_end, self.appender.written
        self.history.stored(self.in_memory)
        for sent in reversed(self.history.sent):
            if sent.end <= before:
                break
            if sent.end <= written and self._cached(sent.start, sent.size) != sent.raw:
                raise Violation(f"the record at {sent.start} is called written and is not there")

    def prepare_next(self) -> None:
        """Do the work of the thread that makes files ahead."""
        self.appender.prepare_next()

    # Reput's part

    def start_reput(self) -> None:
        """Start reput, or restart it after a kill: only reput loses its memory."""
        self.dispatcher = Dispatcher(
            self.store,
            self.positions,
            CommitLogReader(self.store, self.positions),
            clock=SimClock(self.disk),
            boot_id=self.boot_id,
        )
        self.dispatcher.resume()

    def dispatch(self, bytes_max: int) -> int:
        """Run one step of the follower."""
        assert self.dispatcher is not None
        return self.dispatcher.step(bytes_max)

    def dispatch_all(self) -> None:
        """Catch up with the flushed end."""
        for _ in range(10_000):
            if self.dispatch(1 << 20) == 0:
                return
        raise AssertionError("dispatch does not come to an end")

    def sync(self) -> None:
        """Run the follower's sync: queues and index, then the dispatched mark; then the page
        itself."""
        assert self.dispatcher is not None
        self.dispatcher.sync()

    @property
    def sync_covers_all(self) -> bool:
        """Return whether the dispatched mark covers everything that was dispatched."""
        assert self.dispatcher is not None
        dispatcher = self.dispatcher
        return dispatcher.dispatched_mark.offset == dispatcher.dispatched == dispatcher.position

    @property
    def dispatched(self) -> int:
        """Return the dispatched offset that reput has published."""
        return self.positions.get(Slot.DISPATCHED)

    # Both

    def stop(self) -> None:
        """SIGTERM: finish everything, in the services' order."""
        self.flush()
        assert self.dispatcher is not None
        self.dispatch_all()
        self.sync()
        self.dispatcher.close()
        self.appender.close(clean=True)
        self.positions.sync()
        self.store.mark_clean()

    def read_queue(self, topic: str, queue: int) -> list[tuple[int, Unit]]:
        """Return all units that are visible to consumers, with their first queue offsets."""
        log = CommitLogReader(self.store, self.positions)
        reader = ConsumeQueueReader(self.store, topic, queue, log)
        try:
            units: list[tuple[int, Unit]] = []
            at = 0
            while at < reader.max_offset(self.dispatched):
                pulled = get_message(
                    reader, log, offset=at, dispatched=self.dispatched, count_max=32, bulk=True
                )
                units += ((first, unit) for first, unit, _ in pulled.records())
                if pulled.next_offset <= at:
                    break
                at = pulled.next_offset
            return units
        finally:
            reader.close()
            log.close()

    def lookups(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
        """Physical offsets that each (topic, key) finds below ``dispatched``, newest 64."""
        reader = IndexReader(self.store, CommitLogReader(self.store, self.positions))
        try:
            return {key: list(query(reader, *key, dispatched=self.dispatched)) for key in keys}
        finally:
            reader.close()

    def _cached(self, start: int, size: int) -> bytes:
        file_size = self.store.config.commit_log_file_size
        base = start - start % file_size
        raw = self.disk.peek(ROOT / "commitlog" / f"{base:020}") or b""
        return raw[start - base : start - base + size]
