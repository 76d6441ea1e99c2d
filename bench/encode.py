"""Figures 1 and 2: encode, CRC and copy of messages into a mapping, on one core."""

from __future__ import annotations

import functools
import mmap
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from bench.harness import Figure, Options, Result, Series, benchmark, interleave, of_ratios
from bench.servers import SERVER_CORE, pin_to
from bench.stores import IMPLEMENTATION, message, run_of
from tidemark.formats import native
from tidemark.formats.runs import Run

CRC_OFF_GOAL: Final = 0.6
CRC_ON_GOAL: Final = 0.45
RECORDS_GOAL: Final = 4e6
BYTES: Final = 256 << 20
"""Approximate size of the records in each measured run."""
BYTES_QUICK: Final = 32 << 20
MAPPING_SIZE: Final = 32 << 20
"""Filled repeatedly from its start; larger than the caches of one core."""
BATCHES: Final = 64
"""Number of different batches, used in turn so that the next one is not in the nearest cache."""
BODY_SIZES: Final = (128, 256, 1024, 4096)
BATCH_SIZES: Final = (1, 16, 256)
BASELINE: Final = "memcpy + zlib CRC-32 of the same bytes"
NOW_MS: Final = 1_790_000_000_000

T = TypeVar("T")


class Encoding:
    """Batches of messages of one shape, and a mapping for their records."""

    def __init__(self, body_size: int, batch_size: int, *, named: bool, record_crc: bool) -> None:
        """named: with tags, one key and a unique id; else without properties."""
        self._record_crc = record_crc
        self._batch_size = batch_size
        self._runs = [
            [_run(body_size, batch_size, number * batch_size, named=named)]
            for number in range(BATCHES)
        ]
        self._sizes = [native.runs_size(runs, record_crc=record_crc) for runs in self._runs]
        self._mapping = mmap.mmap(-1, max(MAPPING_SIZE, 2 * max(self._sizes)))
        # Touched before, because the cost of page faults is not part of encoding.
        self._mapping.write(bytes(len(self._mapping)))
        self._made = []
        for runs, size in zip(self._runs, self._sizes, strict=True):
            buffer = bytearray(size)
            self._encode(buffer, runs, 0)
            self._made.append(bytes(buffer))

    @property
    def record_size(self) -> float:
        return sum(self._sizes) / (BATCHES * self._batch_size)

    def encode(self, size: int) -> float:
        """Encode about ``size`` bytes; return records/s."""
        return self._fill(size, self._runs, self._encode)

    def copy(self, size: int) -> float:
        """Copy the same bytes and compute their CRC-32; return records/s."""
        return self._fill(size, self._made, _copy)

    def _fill(
        self, size: int, pieces: Sequence[T], put: Callable[[memoryview, T, int], object]
    ) -> float:
        rounds = max(1, int(size / self.record_size / self._batch_size / BATCHES))
        jobs = list(zip(pieces, self._sizes, strict=True))
        with memoryview(self._mapping) as view:
            at, end = 0, len(view)
            began = time.perf_counter()
            for _ in range(rounds):
                for piece, piece_size in jobs:
                    if at + piece_size > end:
                        at = 0
                    put(view[at : at + piece_size], piece, at)
                    at += piece_size
            seconds = time.perf_counter() - began
        return rounds * BATCHES * self._batch_size / seconds

    def _encode(self, view: memoryview | bytearray, runs: list[Run], at: int) -> None:
        native.encode_runs(
            view,
            runs,
            firsts=(7,),
            physical_offset=at,
            store_timestamp_ms=NOW_MS,
            record_crc=self._record_crc,
        )


def _copy(view: memoryview, data: bytes, _: int) -> None:
    view[:] = data
    zlib.crc32(view)


def _run(body_size: int, count: int, first: int, *, named: bool) -> Run:
    pattern = bytes(range(256)) * (body_size // 256 + 2)
    names = ("TAGS", "KEYS", "UNIQ_KEY") if named else ()
    run = run_of(
        (
            message(number, pattern[number % 256 :][:body_size], names)
            for number in range(first, first + count)
        ),
        queue=3,
    )
    return run._replace(born_timestamp_ms=NOW_MS)


def main(given: Options) -> Result:
    size = given.pick(BYTES, quick=BYTES_QUICK)
    pin_to(SERVER_CORE)
    shapes = {
        "1 KiB off": Encoding(1024, 256, named=False, record_crc=False),
        "1 KiB on": Encoding(1024, 256, named=False, record_crc=True),
        "128 B off": Encoding(128, 256, named=True, record_crc=False),
        "128 B on": Encoding(128, 256, named=True, record_crc=True),
    }
    jobs: dict[str, Callable[[], float]] = {}
    for name, shape in shapes.items():
        jobs[name] = functools.partial(shape.encode, size)
        jobs[f"{name} copy"] = functools.partial(shape.copy, size)
    found = interleave(jobs, runs=given.runs)
    named = "128 B bodies with tags, one key and a unique id"
    figures = []
    for crc, ratio in (("off", CRC_OFF_GOAL), ("on", CRC_ON_GOAL)):
        what, rates = f"encode + CRC + copy, 1 KiB bodies, record CRC {crc}", found[f"1 KiB {crc}"]
        figures.append(of_ratios(what, rates, found[f"1 KiB {crc} copy"], ratio, BASELINE))
    for body, bodies, goal in (("1 KiB", "1 KiB bodies", None), ("128 B", named, RECORDS_GOAL)):
        for crc in ("off", "on"):
            what, rates = f"encode + CRC + copy, {bodies}, record CRC {crc}", found[f"{body} {crc}"]
            base = found[f"{body} {crc} copy"]
            figures.append(Figure(what, "records/s", rates, goal, BASELINE, base))
    return Result(
        figures,
        f"""encode_runs ({IMPLEMENTATION}) of one run of 256 messages at a time into a mapping
        of {MAPPING_SIZE >> 20} MiB of anonymous memory, filled again and again, {size >> 20} MiB of
        records per run; {BATCHES} different batches in turn; one core. Each body's CRC is computed,
        and with record CRC on that of the whole record too. The baseline copies the same records'
        bytes into the same mapping, a batch at a time, and computes their zlib CRC-32 once.""",
        series=[] if given.quick else _series(size // 4),
    )


def _series(size: int) -> list[Series]:
    """Measure how the rates depend on body and batch size, with record CRC and properties."""
    by_batch: dict[str, list[tuple[float, float]]] = {}
    by_size: dict[str, list[tuple[float, float]]] = {}
    for body_size in BODY_SIZES:
        for batch_size in BATCH_SIZES:
            shape = Encoding(body_size, batch_size, named=True, record_crc=True)
            jobs = {
                "encode": functools.partial(shape.encode, size),
                "copy": functools.partial(shape.copy, size),
            }
            found = interleave(jobs, runs=3)
            rate, base = (statistics.median(found[name]) for name in ("encode", "copy"))
            by_batch.setdefault(f"bodies of {body_size} B", []).append((batch_size, rate))
            lines = [(f"batches of {batch_size}", rate)]
            if batch_size == BATCH_SIZES[-1]:
                lines.append((BASELINE, base))
            for name, value in lines:
                gigabytes = value * shape.record_size / 1e9
                by_size.setdefault(name, []).append((body_size, gigabytes))
    title, messages = "Encode + CRC + copy by", "messages in a batch"
    return [
        Series("encode_sizes", f"{title} body size", "body [B]", "GB/s", by_size),
        Series("encode_batches", f"{title} batch size", messages, "records/s", by_batch),
    ]


if __name__ == "__main__":
    benchmark(main)
