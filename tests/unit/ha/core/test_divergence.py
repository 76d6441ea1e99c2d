from __future__ import annotations

from services.ha.core.divergence import (
    CRC_WINDOW,
    Common,
    Extent,
    crc_size,
    divergence_point,
    entry_of,
)
from services.ha.wire.payloads import ResyncReason
from tests.support.for_each import for_each
from tests.support.ha_links import entry

A, B, C, D = entry(1, 0), entry(2, 100), entry(3, 200), entry(4, 300)


def extent(*table: object, end: int, first_offset: int = 0) -> Extent:
    entries = tuple(one for one in table if isinstance(one, type(A)))
    return Extent(entries, first_offset, end)


@for_each(
    ("master", "slave", "expected"),
    [
        # Behind in the same epoch, or ahead in it: the nearer end.
        (extent(A, B, end=180), extent(A, B, end=120), Common(B, 120)),
        (extent(A, B, end=180), extent(A, B, end=190), Common(B, 180)),
        # Behind by epochs: its own end.
        (extent(A, B, C, D, end=400), extent(A, end=60), Common(A, 60)),
        # It wrote on where the master's epoch was over.
        (extent(A, B, end=180), extent(A, end=150), Common(A, 100)),
        # Another epoch behind the common one, earlier than, at, and later than the master's.
        (extent(A, B, D, end=400), extent(A, entry(3, 80), end=250), Common(A, 80)),
        (extent(A, entry(4, 100), end=400), extent(A, B, end=250), Common(A, 100)),
        (extent(A, B, end=180), extent(A, entry(3, 130), end=250), Common(A, 100)),
        # Equal epochs with different starts are two histories; a deletion can lead to that.
        (extent(A, entry(3, 90), end=400), extent(A, C, end=250), Common(A, 90)),
        # An entry whose bytes never came.
        (extent(A, B, end=180), extent(A, B, end=100), Common(B, 100)),
        # The newest common one counts, not the oldest.
        (extent(A, B, C, end=280), extent(A, B, C, end=250), Common(C, 250)),
        # Older entries that only one side still has do not matter.
        (extent(B, C, end=280, first_offset=150), extent(A, B, C, end=250), Common(C, 250)),
        # Without records: it begins at its start, if the master has that offset.
        (extent(A, B, end=180), extent(end=0), Common(None, 0)),
        (extent(A, B, end=180, first_offset=50), extent(end=50, first_offset=50), Common(None, 50)),
        (extent(A, B, end=180), extent(entry(9, 0), end=0), Common(None, 0)),
        (
            extent(A, B, end=180, first_offset=50),
            extent(end=0),
            ResyncReason.BELOW_FIRST_OFFSET,
        ),
        (
            extent(A, B, end=180),
            extent(end=500, first_offset=500),
            ResyncReason.BELOW_FIRST_OFFSET,
        ),
        # Retention of the master has passed the point.
        (
            extent(A, B, end=180, first_offset=70),
            extent(A, end=60),
            ResyncReason.BELOW_FIRST_OFFSET,
        ),
        # Nothing in common.
        (extent(A, B, end=180), extent(entry(9, 0), end=10), ResyncReason.NO_COMMON_EPOCH),
        (extent(A, B, end=180), extent(end=10), ResyncReason.NO_COMMON_EPOCH),
        (extent(C, end=280, first_offset=210), extent(A, end=60), ResyncReason.NO_COMMON_EPOCH),
    ],
)
def test_the_point_is_the_nearer_end_of_the_newest_common_epoch(
    master: Extent, slave: Extent, expected: Common | ResyncReason
) -> None:
    assert divergence_point(master=master, slave=slave) == expected


def test_bytes_are_compared_as_far_back_as_both_have_them() -> None:
    assert crc_size(CRC_WINDOW + 1, master_first=0, slave_first=0) == CRC_WINDOW
    assert crc_size(1000, master_first=900, slave_first=0) == 100
    assert crc_size(1000, master_first=0, slave_first=990) == 10
    assert crc_size(1000, master_first=1000, slave_first=0) == 0
    assert crc_size(1000, master_first=0, slave_first=2000) == 0


def test_a_byte_belongs_to_the_newest_entry_that_begins_at_or_before_it() -> None:
    table = (entry(1, 50), B)
    assert [entry_of(table, at) for at in (49, 50, 99, 100, 10_000)] == [None, 0, 0, 1, 1]
    assert entry_of((), 5) is None
