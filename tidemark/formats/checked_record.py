"""One record at a known place, judged and decoded in one go (docs/formats.md, 2.14). Pure.

For whoever reads single records: queries by key and by offset, the state in the log. The compiled
twin is ``speedups.checked``; ``twins`` chooses. ``scan`` reads many in a row.
"""

from __future__ import annotations

from tidemark.formats.record import Buffer, Record, UndecodableRecord, decode
from tidemark.formats.record_check import Checks, Kind, validate


def read_record(view: Buffer, *, at: int, checks: Checks) -> Record | None:
    """The record at view[0], its body borrowed; None if no valid one begins there: what does,
    ``record_check.validate`` says.

    view: from the record's start to the end of what may be read. at: physical offset of view[0].
    """
    if validate(view, 0, at=at, checks=checks).kind is not Kind.VALID:
        return None
    try:
        return decode(view)
    except UndecodableRecord:  # whoever shortens the log writes zeros, now between two looks
        return None
