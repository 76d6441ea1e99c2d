"""Parameters for tests that hold for a pure function and its compiled twin alike."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tidemark.formats import twins


def twins_of(module: str, pure: Callable[..., Any]) -> list[ParameterSet]:
    """The pure function and its namesake of ``speedups.module``, for ``parametrize``.

    Where the compiled twins are not built, theirs is skipped with the reason; with
    TIDEMARK_REQUIRE_ALL in the environment it fails instead.
    """
    found: Callable[..., Any] | None
    try:
        compiled = importlib.import_module(f"tidemark.formats.speedups.{module}")
        found = getattr(compiled, pure.__name__)
    except ImportError:
        if os.environ.get("TIDEMARK_REQUIRE_ALL"):
            raise
        found = None
    skip = pytest.mark.skipif(found is None, reason=twins.WHY_PURE or f"{module} is not built")
    return [pytest.param(pure, id="pure"), pytest.param(found, id="compiled", marks=skip)]
