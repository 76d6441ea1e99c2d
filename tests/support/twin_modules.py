"""Both twins of a module of the formats, as parameters of the tests they share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def twins_of(original: ModuleType, compiled: str) -> list[Any]:
    """Parameters: the pure original, and the compiled module of that name.

    One that is not built is skipped, and fails where everything is required.
    """
    try:
        twin = importlib.import_module(f"tidemark.formats.speedups.{compiled}")
    except ImportError as error:
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            raise
        reason = f"{error}: not built, `make setup` with a C compiler does"
        missing = pytest.param(original, id="compiled", marks=pytest.mark.skip(reason))
        return [pytest.param(original, id="pure"), missing]
    return [pytest.param(original, id="pure"), pytest.param(twin, id="compiled")]


def outcome(function: Callable[..., object], *arguments: object, **named: object) -> object:
    """What a call returns, or the type of what it raises: equal for twins."""
    try:
        return function(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - any type is compared, none is hidden
        return type(error)
