"""Read slots of a node's checkpoint page from its file, without its services."""

from __future__ import annotations

from pathlib import Path

from tidemark.formats.checkpoint import SLOT_SIZE, Slot


def slot(store_dir: Path, which: Slot) -> int:
    """Return the last published value of a slot; 0 if there is no page yet."""
    path = store_dir / "checkpoint"
    try:
        with path.open("rb") as file:
            file.seek(which * SLOT_SIZE)
            return int.from_bytes(file.read(SLOT_SIZE), "little")
    except FileNotFoundError:
        return 0
