"""A dispatcher on a small store, records for it, and the queues and index files that it made."""

from __future__ import annotations

from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogReader
from tests.support.small_store import BOOT, SmallStore
from tidemark.clock import Clock
from tidemark.formats.queue_unit import encode


def dispatcher_of(
    small: SmallStore, boot: tuple[int, int] = BOOT, *, clock: Clock | None = None
) -> Dispatcher:
    """A dispatcher that has resumed; it is closed with the store."""
    log = CommitLogReader(small.store, small.positions)
    dispatcher = Dispatcher(small.store, small.positions, log, clock=clock, boot_id=boot)
    small.with_it.callback(dispatcher.close)
    dispatcher.resume()
    return dispatcher


def dispatched(small: SmallStore) -> Dispatcher:
    """A dispatcher that has dispatched everything."""
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    return dispatcher


def dispatch_all(dispatcher: Dispatcher, bytes_max: int = 700) -> int:
    done = 0
    while step := dispatcher.step(bytes_max):
        done += step
    return done


def fill(small: SmallStore, count: int = 60) -> None:
    """Records of three queues over several log, queue and index files."""
    for number in range(count):
        topic, queue = (("orders", 0), ("orders", 1), ("bills", 0))[number % 7 % 3]
        small.put(topic, queue, body=b"x" * (number * 37 % 500), tags="A", keys=f"k{number} all")
    small.flush()


def queue_files(small: SmallStore) -> dict[str, bytes]:
    root = small.store.consume_queues_dir
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("0*")
            if path.is_file()}  # fmt: skip


def index_files(small: SmallStore) -> list[bytes]:
    return [path.read_bytes() for path in sorted(small.store.index_dir.iterdir())]


def expected_units(small: SmallStore) -> dict[tuple[str, int, int], bytes]:
    return {(topic, queue, number): encode(unit) for topic, queue, number, unit in small.units}


def units(small: SmallStore) -> dict[tuple[str, int, int], bytes]:
    found = {}
    for name, raw in queue_files(small).items():
        topic, queue, start = name.split("/")
        for at in range(0, len(raw), 20):
            if raw[at : at + 20] != bytes(20):
                found[topic, int(queue), (int(start) + at) // 20] = raw[at : at + 20]
    return found
