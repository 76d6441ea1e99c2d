"""The example of docs/testing.md runs unchanged."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import tidemark
from tidemark.testing import LocalStore

pytest_plugins = ["tidemark.testing.fixtures"]

PAGE = Path(__file__).resolve().parents[3] / "docs/testing.md"


async def test_the_example_of_the_page_passes(tidemark_store: LocalStore) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "async def test_" in block]
    names: dict[str, Any] = {"tidemark": tidemark}
    exec(compile(example, str(PAGE), "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    await cast(Callable[[LocalStore], Awaitable[None]], test)(tidemark_store)
