"""For tests of programs that use Tidemark: the real store, never an imitation.

    # conftest.py
    pytest_plugins = ["tidemark.testing.fixtures"]

    # test_reminders.py
    async def test_a_reminder_comes_after_an_hour(tidemark_store):
        async with tidemark.connect(tidemark_store.url) as mq:
            await mq.send("reminders", b"call back", delay_ms=3_600_000)
            tidemark_store.clock.advance(3600)
            ...

``tidemark_store`` is ``LocalStore``: both services inside the test's process, with a clock to move.
``tidemark_node`` is ``LocalNode``: two real processes, which a test may kill.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidemark.testing.clock import FakeClock
    from tidemark.testing.node import LocalNode, NodeFailed
    from tidemark.testing.store import LocalStore

__all__ = ["FakeClock", "LocalNode", "LocalStore", "NodeFailed"]

_MODULES: Final = {
    "FakeClock": "clock",
    "LocalNode": "node",
    "LocalStore": "store",
    "NodeFailed": "node",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: each service of a drill comes through this package, and
    starts half as fast with both services of ``LocalStore`` on board."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
