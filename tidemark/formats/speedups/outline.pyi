from tidemark.formats.outline import Outlines, Unpacked, Values
from tidemark.formats.record_check import Checks

def outline_records(
    view: bytes | bytearray | memoryview,
    *,
    at: int | None,
    until: int,
    records_max: int,
    verify: Checks | None = ...,
    topics: frozenset[str] | None = ...,
) -> Outlines: ...
def unpack_rows(view: bytes | bytearray | memoryview, rows: bytes) -> Unpacked: ...
def property_values(
    view: bytes | bytearray | memoryview, rows: bytes, *, wanted: bytes
) -> Values: ...
