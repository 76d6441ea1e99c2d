"""Validates and decodes a single record at a known place (docs/formats.md, 2.14). Pure.

It is used by readers of single records: queries by key and by offset, the state in the log. The
native implementation is ``speedups.checked``; ``native`` chooses. ``scan`` reads many in a row.
"""

from __future__ import annotations

from tidemark.formats.record import Buffer, Record, UndecodableRecord, decode
from tidemark.formats.record_check import Checks, Kind, validate


def read_record(view: Buffer, *, at: int, checks: Checks) -> Record | None:
    """Return the record at view[0], whose body borrows from view; None if it is not valid.

    view: from the record's start to the end of what may be read. at: physical offset of view[0].
    ``record_check.validate`` gives the reason for None.
    """
    if validate(view, 0, at=at, checks=checks).kind is not Kind.VALID:
        return None
    try:
        return decode(view)
    except UndecodableRecord:  # the log was cut, i.e. zeroed, between the two steps
        return None
