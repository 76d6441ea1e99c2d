from tidemark.formats.record_layout import Buffer
from tidemark.formats.select import Limits, Selected, Wanted

def select(
    units: Buffer,
    first: int,
    window: Buffer,
    window_at: int,
    *,
    topic: bytes,
    queue: int,
    limits: Limits,
    wanted: Wanted | None = None,
    count: int = 0,
    bytes_total: int = 0,
    skip_until: int = -1,
    is_batch: bool = False,
) -> Selected: ...
