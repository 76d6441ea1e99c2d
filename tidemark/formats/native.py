"""Exports the hot functions of the formats in the implementation chosen at import.

The native implementation (``speedups``) is used if all its modules were built. Otherwise, or with
``TIDEMARK_PURE=1`` in the environment, the pure Python implementation is used. Both have the same
contract, documented in the pure one, and the same tests. Performance-critical code imports the
functions from here.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

MODULES: Final = (
    "checked",
    "checksum",
    "decode",
    "encode",
    "index",
    "outline",
    "parts",
    "select",
    "units",
    "walk",
    "wire",
)
"""The native modules: either all are used, or none."""


def _why_pure() -> str:
    """Return why the pure implementation is used; "" if the native one is."""
    if os.environ.get("TIDEMARK_PURE", "") not in ("", "0"):
        return "TIDEMARK_PURE is set"
    for name in MODULES:
        try:
            importlib.import_module(f"tidemark.formats.speedups.{name}")
        except ImportError as error:
            # -B: without it make considers everything up to date after a compiler was installed.
            return (
                f"the native modules are not built ({error}); install a C compiler, then run "
                "`make -B setup` in a checkout, or build the wheel again and install it"
            )
    return ""


WHY_PURE: Final = _why_pure()
COMPILED: Final = not WHY_PURE

if COMPILED:
    from tidemark.formats.speedups.checked import read_record
    from tidemark.formats.speedups.checksum import crc32, publish
    from tidemark.formats.speedups.decode import decode_messages
    from tidemark.formats.speedups.encode import (
        body_size_counts,
        encode_runs,
        entry_starts,
        runs_size,
    )
    from tidemark.formats.speedups.index import chains_are_sound, held_rows, look_up, put_rows
    from tidemark.formats.speedups.outline import outline_records, property_values, unpack_rows
    from tidemark.formats.speedups.parts import read_batch, split
    from tidemark.formats.speedups.select import select
    from tidemark.formats.speedups.units import leading_units
    from tidemark.formats.speedups.walk import plan_range, walk
    from tidemark.formats.speedups.wire import pack_answer, read_plain
else:
    from tidemark.formats.batch_parts import read_batch, split
    from tidemark.formats.checked_record import read_record
    from tidemark.formats.checkpoint import publish
    from tidemark.formats.checksum import crc32
    from tidemark.formats.index_chains import chains_are_sound, held_rows, look_up, put_rows
    from tidemark.formats.message import decode_messages
    from tidemark.formats.outline import outline_records, property_values, unpack_rows
    from tidemark.formats.plan import plan_range
    from tidemark.formats.produce_wire import pack_answer, read_plain
    from tidemark.formats.queue_unit import leading_units
    from tidemark.formats.runs import body_size_counts, encode_runs, entry_starts, runs_size
    from tidemark.formats.scan import walk
    from tidemark.formats.select import select

__all__ = [
    "COMPILED",
    "MODULES",
    "WHY_PURE",
    "body_size_counts",
    "chains_are_sound",
    "crc32",
    "decode_messages",
    "encode_runs",
    "entry_starts",
    "held_rows",
    "leading_units",
    "look_up",
    "outline_records",
    "pack_answer",
    "plan_range",
    "property_values",
    "publish",
    "put_rows",
    "read_batch",
    "read_plain",
    "read_record",
    "runs_size",
    "select",
    "split",
    "unpack_rows",
    "walk",
]
