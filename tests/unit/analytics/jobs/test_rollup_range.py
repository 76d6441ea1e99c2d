"""From which time on a run of rollup begins, without Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analytics import runs
from analytics.jobs.rollup import _changed_from
from analytics.moments import HOUR
from analytics.tables import TableRoot
from tests.support.lag_world import END, as_table

FIRST = END - 9 * HOUR
"""The first tick of `lag`; earlier ones have expired."""


@pytest.mark.parametrize(
    ("revised", "begin"),
    [(None, 0), (-1, -1), (-8, -8), (-10, -9), (1, 0)],
    ids=["nothing", "an hour ago", "long ago", "expired", "later"],
)
def test_a_run_begins_with_what_was_evaluated_again_and_not_before_the_rows_that_are_kept(
    tmp_path: Path, revised: int | None, begin: int
) -> None:
    # The roll-ups of hours whose ticks have expired were replaced by nothing.
    root = TableRoot.create(tmp_path)
    row: dict[str, Any] = {"tick": FIRST, "status_since": FIRST, "series_id": 1, "pair_id": 1}
    row |= {"status": "OK", "age_method": "exact"}
    root.commit("lag", batch="made", files=root.write("lag", as_table("lag", [row])))
    if revised is not None:
        with runs.run(root, "evaluate") as noted:
            noted.revised(END + revised * HOUR, {"lag": 1})
    assert _changed_from(root, END) == END + timedelta(hours=begin)
