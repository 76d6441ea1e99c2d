"""Reads what single commits did to a table, from the files of Delta's log.

A version of a table has only the files that are left. Whoever must know which rows *came* between
two versions, like the stream of ticks, reads the commits between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from analytics.tables.files import DataFile, added_file
from analytics.tables.location import Location


class Commit(NamedTuple):
    """One commit to a table."""

    writers: frozenset[str]
    """Application ids of its transactions: of a stream's batch the name of the writer."""
    added: list[DataFile]


def commits(location: Location, table: str, first: int, before: int) -> Iterator[Commit | None]:
    """Yield the commits with first <= number < before, counted from 0; None for one whose file
    is gone, which happens after a week."""
    for number in range(first, before):
        content = location.read(f"{table}/_delta_log/{number:020d}.json")
        yield None if content is None else _commit(table, content)


def _commit(table: str, content: bytes) -> Commit:
    actions = [json.loads(line) for line in content.splitlines()]
    return Commit(
        frozenset(action["txn"]["appId"] for action in actions if "txn" in action),
        [added_file(table, action["add"]) for action in actions if "add" in action],
    )
