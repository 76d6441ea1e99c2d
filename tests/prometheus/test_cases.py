"""promtool plays every case of the rules: the expected alerts fire, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.alert_cases import CASES
from tests.support.alert_cases.files import write_cases
from tests.support.prometheus import check


@pytest.mark.parametrize("area", CASES)
def test_promtool_plays_the_cases(area: str, tmp_path: Path) -> None:
    check("promtool", "test", "rules", str(write_cases(tmp_path, area)))
