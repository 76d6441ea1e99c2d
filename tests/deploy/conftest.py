"""What these tests need: kubectl always, the tools of ``make lint-deploy`` where they are used.

Missing ones are named and the tests skipped; where TIDEMARK_REQUIRE_ALL is 1 that is a failure.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = Path(__file__).resolve().parents[2]
TOOLS_STAMP: Final = ".venv-deploy/.installed"


def _required() -> bool:
    return os.environ.get("TIDEMARK_REQUIRE_ALL") == "1"


@pytest.fixture(autouse=True, scope="session")
def kubectl() -> str:
    """The program that renders."""
    found = shutil.which("kubectl")
    if found is None:
        missing = "kubectl is not installed: version 1.27 or newer renders the manifests"
        if _required():
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def tools() -> Path:
    """Python of the environment that holds the tools."""
    if not (PROJECT / TOOLS_STAMP).exists():
        missing = "the tools are not installed: make deploy-tools"
        if _required():
            pytest.fail(missing)
        pytest.skip(missing)
    return PROJECT / ".venv-deploy" / "bin" / "python"
