from collections.abc import Sequence

from tidemark.formats.plan import PlannedRange
from tidemark.formats.record_check import Checks
from tidemark.formats.scan import Walk
from tidemark.offsets import PhysicalOffset

def walk(
    view: bytes | bytearray | memoryview,
    *,
    at: PhysicalOffset,
    checks: Checks,
    records_max: int,
    delay_levels_ms: Sequence[int],
) -> Walk: ...
def plan_range(
    view: bytes | bytearray | memoryview,
    *,
    at: PhysicalOffset,
    checks: Checks,
    records_max: int,
    delay_levels_ms: Sequence[int],
    index: bool,
    batch_topics: frozenset[str] = ...,
) -> PlannedRange: ...
