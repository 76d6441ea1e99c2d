"""Parameters for tests that hold for a pure original and its compiled twin alike."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tidemark.formats import native


def twins_of(module: str, pure: Callable[..., Any]) -> list[ParameterSet]:
    """The pure function and its namesake of ``speedups.module``, for ``parametrize``.

    Where the native modules are not built, theirs is skipped with the reason; with
    TIDEMARK_REQUIRE_ALL in the environment it fails instead.
    """
    compiled = _compiled(module)
    return _parameters(module, pure, compiled and getattr(compiled, pure.__name__))


def twin_modules_of(module: str, pure: ModuleType) -> list[ParameterSet]:
    """As ``twins_of``, for tests of several functions: the modules that hold them."""
    return _parameters(module, pure, _compiled(module))


def outcome(function: Callable[..., object], *arguments: object, **named: object) -> object:
    """What a call returns, or the type of what it raises: equal for twins."""
    try:
        return function(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - any type is compared, none is hidden
        return type(error)


def _compiled(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"tidemark.formats.speedups.{module}")
    except ImportError:
        if os.environ.get("TIDEMARK_REQUIRE_ALL"):
            raise
        return None


def _parameters(module: str, pure: object, compiled: object) -> list[ParameterSet]:
    skip = pytest.mark.skipif(compiled is None, reason=native.WHY_PURE or f"{module} is not built")
    return [pytest.param(pure, id="pure"), pytest.param(compiled, id="compiled", marks=skip)]
