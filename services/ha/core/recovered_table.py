"""Checks whether the epoch table fits the recovered log (docs/replication.md, states). Pure.

An entry is written before the first byte of its epoch, so after a crash the last ones may begin
above the end of the log. Their bytes were never on disk nor acknowledged, and they are dropped. Any
other contradiction means that the table or the log is not what this replica wrote.

Step before: recovery found the end of the log. Step after: ``replica_store`` halts, or goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tidemark.formats.epochs import EpochStart


def without_bytes_dropped(table: Sequence[EpochStart], end: int) -> tuple[EpochStart, ...]:
    """Return the table without trailing entries that begin above end."""
    kept = list(table)
    while kept and kept[-1].start > end:
        kept.pop()
    return tuple(kept)


def contradiction(
    table: Sequence[EpochStart],
    *,
    first_offset: int,
    end: int,
    is_border: Callable[[int], bool],
) -> str | None:
    """Return the contradiction in a sentence; None if there is none.

    table: without entries above end. is_border: whether a record or a filler begins at an offset of
    the log. A table without entries contradicts nothing: a store from before the group has none.
    """
    for earlier, later in pairwise(table):
        if later.epoch <= earlier.epoch or later.start <= earlier.start:
            return (
                f"epoch {later.epoch} begins at {later.start}, after epoch {earlier.epoch} at "
                f"{earlier.start}"
            )
    for entry in table:
        if first_offset <= entry.start < end and not is_border(entry.start):
            return f"epoch {entry.epoch} begins at {entry.start}, where no record begins"
    return None
