"""promtool plays every case of the rules: the expected alerts fire, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.prometheus.cases import CASES
from deploy.prometheus.generated import write_cases
from tests.support.prometheus import check


@pytest.mark.parametrize("area", CASES)
def test_promtool_plays_the_cases(area: str, tmp_path: Path) -> None:
    (path,) = (path for path in write_cases(tmp_path) if path.stem == area)
    check("promtool", "test", "rules", str(path))
