from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.delayed_store import DelayedStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DelayedStore]:
    opened = DelayedStore(tmp_path)
    yield opened
    opened.close()
