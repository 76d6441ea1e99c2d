"""Encode and walk records in memory, against copying and checksumming the same bytes."""

from __future__ import annotations

import zlib

from bench.harness import measure, show
from tidemark.formats import properties
from tidemark.formats.hosts import parse
from tidemark.formats.record import Checks, Message, encode_batch, encoded_size
from tidemark.formats.scan import walk
from tidemark.offsets import PhysicalOffset

COUNT = 4_000


def main() -> None:
    """Print one line per body size and direction."""
    host = parse("127.0.0.1:10911")
    raw = properties.encode({"TAGS": "new", "KEYS": "order-1", "UNIQ_KEY": "7F" * 16})
    figures = []
    for body_size in (128, 1024):
        body = bytes(range(256)) * (body_size // 128)
        message = Message("orders", 0, body[:body_size], host, host, properties=raw)
        messages = [message] * COUNT
        offsets = list(range(COUNT))
        buffer = bytearray(COUNT * encoded_size(message, record_crc=True))
        plain = bytes(len(buffer))

        def encode(
            messages: list[Message] = messages,
            offsets: list[int] = offsets,
            buffer: bytearray = buffer,
        ) -> int:
            encode_batch(
                buffer,
                messages,
                queue_offsets=offsets,
                physical_offset=PhysicalOffset(0),
                store_timestamp_ms=1,
                record_crc=True,
            )
            return COUNT

        def copy(buffer: bytearray = buffer, plain: bytes = plain) -> int:
            zlib.crc32(memoryview(bytearray(plain)))
            return COUNT

        def scan(buffer: bytearray = buffer) -> int:
            found = walk(
                memoryview(buffer),
                at=PhysicalOffset(0),
                checks=Checks(),
                records_max=COUNT,
                delay_levels_ms=[],
            )
            return len(found.entries)

        name = f"{body_size} B bodies, record CRC on"
        baseline = "copy + CRC-32 of the same bytes"
        figures.append(measure(f"encode, {name}", "records", encode, baseline, copy))
        figures.append(measure(f"walk and check, {name}", "records", scan, baseline, copy))
    show(figures, f"{COUNT:,} records in memory, one core, interleaved with the baseline")


if __name__ == "__main__":
    main()
