"""Compiled twins on bytes that another process changes while they read: ``python -m`` this module.

    python -m tests.support.fuzz_changing --seed 1 --seconds 1 [--speedups DIRECTORY]

They read mappings that other processes write to. A length that is loaded twice may have two values;
here it often has. The bytes end where an unreadable page begins, so that a read past them ends the
process. There is no result to compare: each call must return a value or raise the one error that
damage may cause.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.support.fuzz_twins import OnlyFrom

NO_ACCESS = 0
"""PROT_NONE of sys/mman.h."""


@contextmanager
def changing(rng: Random, data: bytes) -> Iterator[memoryview]:
    """A writable view of data, right before an unreadable page, that a child process spoils and
    mends all the time."""
    cases = importlib.import_module("tests.support.fuzz_cases")
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(address + size)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), NO_ACCESS) == 0
    view = memoryview(mapping)[size - len(data) : size]
    view[:] = data
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        spoiled = bytearray(data)
        while os.getppid() == parent:
            for _ in range(200):
                at = rng.randrange(len(data))
                end = min(len(data), at + rng.choice((1, 4, 8, 64)))
                cases.overwrite(rng, spoiled)
                view[at:end] = spoiled[at:end]
                view[at:end] = data[at:end]
            spoiled[:] = data
        os._exit(0)
    try:
        yield view
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def jobs(rng: Random) -> Iterator[tuple[str, bytes, Callable[[memoryview], object]]]:
    """(name, bytes to be changed, what to do with them)."""
    from tests.support import fuzz_cases as cases
    from tests.support.twin_pairs import function_pairs
    from tidemark.formats import hashing, queue_unit, record
    from tidemark.formats.index_chains import ENTRY_SIZE, HEADER_SIZE, ROW, SLOT_SIZE, put_rows
    from tidemark.formats.queue_unit import Unit
    from tidemark.formats.record import Checks
    from tidemark.formats.select import Limits, Wanted

    twin: dict[str, Callable[..., Any]] = {
        name: compiled for name, (_, compiled) in function_pairs().items()
    }
    log = b""
    while len(log) < 3000:
        log += record.encode(
            cases.message(rng)._replace(queue_id=rng.randrange(3)),
            queue_offset=len(log),
            physical_offset=len(log),
            store_timestamp_ms=1_790_000_000_000,
            record_crc=rng.random() < 0.5,
        )
    read = {"at": 0, "checks": Checks(), "records_max": 100, "delay_levels_ms": (1000,)}
    loose = read | {"checks": Checks(body_crc=False, record_crc=False, position=False)}
    yield "walk", log, lambda view: twin["walk"](view, **rng.choice((read, loose)))
    yield (
        "plan_range",
        log,
        lambda view: twin["plan_range"](view, **rng.choice((read, loose)), index=True),
    )
    yield (
        "read_record",
        log[: record.peek_size(log, 0)],
        lambda view: twin["read_record"](view, at=0, checks=loose["checks"]),
    )

    common = cases.message(rng)._replace(queue_id=3, topic="orders")
    units, window = bytearray(), bytearray()
    for number, tag in enumerate(("a", "b", "a", "größe", "a", "b")):
        made = record.encode(
            common._replace(properties=b"TAGS\x01" + tag.encode() + b"\x02"),
            queue_offset=number,
            physical_offset=len(window),
            store_timestamp_ms=5,
            record_crc=True,
        )
        units += queue_unit.encode(Unit(len(window), len(made), hashing.tags_code(tag)))
        window += made
    wanted = Wanted(frozenset(map(hashing.tags_code, ("a", "größe"))), frozenset(("a", "größe")))
    still = {
        "topic": b"orders",
        "queue": 3,
        "limits": Limits(100, 1 << 20, 800, 1 << 20),
        "wanted": wanted,
    }
    record_bytes, unit_bytes = bytes(window), bytes(units)
    yield (
        "select, records",
        record_bytes,
        lambda view: twin["select"](unit_bytes, 0, view, 0, **still),
    )
    yield (
        "select, units",
        unit_bytes,
        lambda view: twin["select"](view, 0, record_bytes, 0, **still),
    )
    yield (
        "leading_units",
        unit_bytes,
        lambda view: twin["leading_units"](view, end=0, end_max=1 << 40),
    )

    slots, entries = 20, 30
    rows = b"".join(
        ROW.pack(100 * number, 1_790_000_000_000 + number, number % 7) for number in range(29)
    )
    file = bytearray(HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries)
    put_rows(memoryview(file), slots, entries, rows, 0)
    index = bytes(file)
    assert len(index) % 8 == 0, "put_rows takes an aligned view"
    yield (
        "look_up",
        index,
        lambda view: twin["look_up"](view, slots, entries, rng.randrange(8), 0, 1 << 62, 64, 0, 64),
    )
    yield "held_rows", index, lambda view: twin["held_rows"](view, slots, entries, rows, 0, 29)
    yield (
        "chains_are_sound",
        index,
        lambda view: twin["chains_are_sound"](view, slots, entries, 1),
    )
    yield "put_rows", index, lambda view: twin["put_rows"](view, slots, entries, rows, 20)


def main() -> int:
    """Run; 0 if every call came back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each function")
    parser.add_argument("--speedups", help="directory of the compiled modules to test")
    options = parser.parse_args()
    if options.speedups:
        sys.meta_path.insert(0, OnlyFrom(options.speedups))
    rng = Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    from tidemark.errors import CorruptRecord

    for name, data, call in jobs(rng):
        calls = refused = 0
        with changing(rng, data) as view:
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                calls += 1
                try:
                    call(view)
                except CorruptRecord:
                    refused += 1  # a name or a number that was right a moment ago
        print(f"{name}: {calls} calls came back, {refused} refused", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
