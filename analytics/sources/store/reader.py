"""Read a store without Spark: plan parts, read each as Arrow batches.

    reader = StoreReader(StoreOptions(root=Path("/data/store"), columns=("topic", "store_ts")))
    for part in reader.plan():
        for batch in reader.read(part):
            ...

Parts are values that can be pickled; ``read`` needs nothing that ``plan`` held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from analytics.sources.store import consumer_offsets, log_parts, unit_parts
from analytics.sources.store.consumer_offsets import OffsetsPart
from analytics.sources.store.files import StoreFiles
from analytics.sources.store.log_parts import LogPart
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.unit_parts import UnitPart

Part = LogPart | UnitPart | OffsetsPart


class StoreReader:
    """One read of one table of one store. Holds nothing open."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        return self.options.schema

    def plan(self) -> Sequence[Part]:
        """Parts for tasks, in order. Raises StoreMissing."""
        files = StoreFiles(self.options.root)
        match self.options.table:
            case "records":
                return log_parts.plan(files, self.options)
            case "queue_units":
                return unit_parts.plan(files, self.options)
            case _:
                return consumer_offsets.plan(files, self.options)

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """One part's rows. Raises SourceGap where something is missing and the columns asked for
        have no ``gap`` for it."""
        match part:
            case LogPart():
                return log_parts.read(part, self.options)
            case UnitPart():
                return unit_parts.read(part, self.options)
            case OffsetsPart():
                return consumer_offsets.read(part, self.options)

    def table(self) -> pa.Table:
        """Read everything in this process; for tools and tests."""
        batches = (batch for part in self.plan() for batch in self.read(part))
        return pa.Table.from_batches(batches, schema=self.schema)
