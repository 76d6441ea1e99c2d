"""What a batch wrote becomes visible in an order that a reader can rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.tables import Batch, TableRoot
from analytics.tables.parts import Written, commit_all


def test_positions_which_close_ticks_are_committed_after_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A driver killed between two tables had closed ticks whose series had no names yet.
    order: list[str] = []

    def commit(self: TableRoot, table: str, **given: object) -> bool:
        order.append(table)
        return True

    monkeypatch.setattr(TableRoot, "commit", commit)
    root = TableRoot.create(tmp_path / "tables")
    names = ("series", "positions", "logs", "pairs", "replicas", "counters", "gaps")
    written = Written({name: [] for name in names}, {"positions": {"n": 1}}, [])
    commit_all(root, Batch("b", 1), written)
    assert order == ["counters", "gaps", "logs", "pairs", "replicas", "series", "positions"]
