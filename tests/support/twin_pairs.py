"""Every function of ``tidemark.formats.native``: its pure original beside its compiled twin."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tidemark.formats import native


def function_pairs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """(original, compiled) by name, as the two branches of ``native`` import them.

    Raises ImportError if a compiled module is not built.
    """
    compiled, original = branches()
    assert compiled.keys() == original.keys()
    return {
        name: (
            getattr(importlib.import_module(original[name]), name),
            getattr(importlib.import_module(compiled[name]), name),
        )
        for name in sorted(compiled)
    }


def branches() -> tuple[dict[str, str], dict[str, str]]:
    """What ``native`` imports if it takes the compiled ones, and if not: module by name."""
    tree = ast.parse(inspect.getsource(native))
    (choice,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "COMPILED"
    )
    return _imported(choice.body), _imported(choice.orelse)


def _imported(statements: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement in statements:
        assert isinstance(statement, ast.ImportFrom), ast.unparse(statement)
        assert statement.module is not None
        found |= {alias.asname or alias.name: statement.module for alias in statement.names}
    return found
