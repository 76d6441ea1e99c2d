"""Groups of the detectors' benchmark, whole: drawn, evaluated and judged."""

from __future__ import annotations

import math

import pytest

from bench import analytics_detectors as bench


def test_groups_are_judged_by_their_truth_and_alike_when_repeated() -> None:
    names = ("steady", "stops", "hangs", "dispatch behind", "replication behind")
    kinds = list(bench.KINDS)
    found = {each.kind: each for each in bench.judge_groups([kinds.index(each) for each in names])}
    of = {kind: found[kind].seen for kind in names}
    assert of["steady"][bench.OURS].well_minutes == pytest.approx(120.0, abs=0.6)
    assert {seen.false_minutes for seen in of["steady"].values()} == {0.0}
    assert [each[bench.BURROW].kind for each in of.values()] == ["", "STOP", "STOP", "", ""]
    assert of["stops"][bench.OURS].kind == "STOPPED"
    assert of["hangs"][bench.OURS].kind in ("STALLED", "FALLING_BEHIND")
    blamed = [found[kind].blamed for kind in names]
    assert blamed == ["", "delivery", "processing", "dispatch", "replication"]
    assert of["dispatch behind"][bench.BURROW].delay_s == math.inf
    assert bench.judge_groups([kinds.index("steady")]) == [found["steady"]]
    result = bench.result_of(list(found.values()))
    assert [figure.values[0] for figure in result.figures[:4]] == [100.0, 0.0, 50.0, 0.0]
    assert result.tables[0].rows[0][:3] == (bench.OURS, "100 %", "100 %")
    assert result.tables[0].rows[1][:3] == (bench.BURROW, "50 %", "100 %")
