"""Options of a read of a store as Spark passes them, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import pyarrow as pa

from analytics.errors import BadOption
from analytics.local_path import local
from analytics.schema import MESSAGES, OFFSETS, QUEUE_UNITS
from analytics.sources.option_values import by_lower_name, check_columns, names, number, only

TABLES: Final[Mapping[str, pa.Schema]] = {
    "records": MESSAGES,
    "queue_units": QUEUE_UNITS,
    "offsets": OFFSETS,
}
SPLIT_BYTES: Final = 1 << 30
SPLIT_BYTES_MIN: Final = 1 << 12
OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of one read. The constructor raises BadOption for bad values."""

    root: Path
    """The store directory, which has commitlog/."""
    table: str = "records"
    """records, queue_units or offsets."""
    from_offset: int = 0
    """Physical offset: only records whose first byte is at or after it."""
    to_offset: int = OFFSET_MAX
    """Physical offset: only records whose first byte is before it."""
    topics: frozenset[str] | None = None
    """Topics to read; None: all."""
    columns: tuple[str, ...] | None = None
    """Columns to decode; None: all. Without ``gap`` damage ends the read with an error."""
    verify: bool = False
    """Check the CRCs of body and record of every record; a third as fast."""
    broker: str | None = None
    """Value of the column ``broker``; None: the name in ha/identity, or "" without it."""
    split_bytes: int = SPLIT_BYTES
    """Bytes of log in one partition. If small, tasks dominate: each costs some 60 ms."""
    split_min: int = 2
    """Minimum number of partitions of a log, so that as many cores have work."""

    def __post_init__(self) -> None:
        """Check the values; the error names all bad ones."""
        if self.table not in TABLES:
            raise BadOption(f"table is {self.table!r}.", f"Take one of {', '.join(TABLES)}.")
        check_columns(self.columns, TABLES[self.table], f"table {self.table}")
        if not 0 <= self.from_offset <= self.to_offset <= OFFSET_MAX:
            raise BadOption(
                f"from_offset {self.from_offset} and to_offset {self.to_offset} are not a range.",
                "Give physical offsets with 0 <= from_offset <= to_offset.",
            )
        if self.split_bytes < SPLIT_BYTES_MIN or self.split_min < 1:
            raise BadOption(
                f"split_bytes is {self.split_bytes}, split_min {self.split_min}.",
                f"Give at least {SPLIT_BYTES_MIN} and 1.",
            )

    @classmethod
    def of(cls, given: Mapping[str, str]) -> StoreOptions:
        """Parse options; names are case-insensitive. Raises BadOption, also for unknown names."""
        texts = by_lower_name(given, "tidemark_store", [field.name for field in fields(cls)])
        if not texts.get("root"):
            raise BadOption(
                "tidemark_store needs the option root.",
                "Name the store directory, the one that holds commitlog/.",
            )
        numbers = {
            name: number(name, texts[name])
            for name in ("from_offset", "to_offset", "split_bytes", "split_min")
            if name in texts
        }
        topics = names(texts.get("topics"))
        return cls(
            root=local(texts["root"]),
            table=texts.get("table", "records"),
            topics=None if topics is None else frozenset(topics),
            columns=names(texts.get("columns")),
            verify=_flag("verify", texts.get("verify", "false")),
            broker=texts.get("broker"),
            **numbers,
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the requested columns, in the table's order."""
        return only(TABLES[self.table], self.columns)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name} is {text!r}.", "Give true or false.")
    return text.lower() == "true"
