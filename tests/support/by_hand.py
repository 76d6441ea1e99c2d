"""The traces of a RocketMQ broker, made by a script: records appended to a log, files rewritten.

For stores of ours that RocketMQ has had in between. RocketMQ knows neither state records nor
snapshots, treats our record CRC property as one of a user and copies it along, and writes its JSON
files without our key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tidemark.cli.offline import LogEnd, OfflineStore
from tidemark.formats import record
from tidemark.formats.filenames import offset_name
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message

HOST: Final = Host(bytes([10, 0, 0, 9]), 10911)
FLAG_AT: Final = 16
"""Position of the flag in a record: the record CRC covers it, the body CRC does not."""

Table = TypeVar("Table")


class Appended(NamedTuple):
    """One record to append."""

    topic: str
    queue: int
    queue_offset: int
    body: bytes
    carries_crc: bool = False
    """It has the record CRC property of another record."""


def log_end(root: Path) -> int:
    """Physical offset behind the last record."""
    with OfflineStore(root) as offline:
        *_, last = offline.windows()
        assert isinstance(last, LogEnd)
        return last.end


def append(root: Path, messages: list[Appended], *, now_ms: int) -> tuple[int, int]:
    """Append records behind the log's end, across files; return the range that was written.

    Files begin as in RocketMQ, with the first record that does not fit into the previous one. As
    after an orderly stop of RocketMQ, there is no ``abort``, not even an earlier one.
    """
    (root / "abort").unlink(missing_ok=True)
    start = at = log_end(root)
    with OfflineStore(root) as offline:
        file_size = offline.config.commit_log_file_size
    for message in messages:
        raw = _encoded(message, at, now_ms)
        room = file_size - at % file_size
        if len(raw) + record.BLANK_SIZE > room:
            _write(root, file_size, at, record.encode_blank(room))
            at += room
            raw = _encoded(message, at, now_ms)
        _write(root, file_size, at, raw)
        at += len(raw)
    return start, at


def _encoded(message: Appended, at: int, now_ms: int) -> bytes:
    raw = bytearray(
        record.encode(
            Message(message.topic, message.queue, message.body, HOST, HOST),
            queue_offset=message.queue_offset,
            physical_offset=at,
            store_timestamp_ms=now_ms,
            record_crc=message.carries_crc,
        )
    )
    if message.carries_crc:
        raw[FLAG_AT : FLAG_AT + 4] = b"\0\0\0\7"
    return bytes(raw)


def _write(root: Path, file_size: int, at: int, data: bytes) -> None:
    path = root / "commitlog" / offset_name(at - at % file_size)
    if not path.exists():
        path.write_bytes(bytes(file_size))
    with path.open("r+b") as file:
        file.seek(at % file_size)
        file.write(data)


def rewrite(
    path: Path,
    parse: Callable[[str], Table],
    change: Callable[[Table], Table],
    text: Callable[[Table], str],
) -> None:
    """Replace a JSON file by what a change makes of it."""
    path.write_text(text(change(parse(path.read_text(encoding="utf-8")))), encoding="utf-8")
