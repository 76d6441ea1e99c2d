from collections.abc import Sequence

from tidemark.formats.record_layout import Buffer
from tidemark.formats.runs import Run

def runs_size(runs: Sequence[Run], *, record_crc: bool) -> int: ...
def encode_runs(
    buffer: bytearray | memoryview,
    runs: Sequence[Run],
    *,
    firsts: Sequence[int],
    physical_offset: int,
    store_timestamp_ms: int,
    record_crc: bool,
) -> bytes: ...
def body_size_counts(entries: bytes, bounds: Sequence[int]) -> list[int]: ...
def entry_starts(entries: Buffer) -> bytes: ...
