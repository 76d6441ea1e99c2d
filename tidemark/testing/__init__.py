"""Tools for tests of programs that use Tidemark. They run the real store, not an imitation.

    # conftest.py
    pytest_plugins = ["tidemark.testing.fixtures"]

    # test_reminders.py
    async def test_a_reminder_comes_after_an_hour(tidemark_store):
        async with tidemark.connect(tidemark_store.url) as mq:
            await mq.send("reminders", b"call back", delay_ms=3_600_000)
            tidemark_store.clock.advance(3600)
            ...

``tidemark_store`` is a ``LocalStore``: both services run in the test's process, with a clock that
the test controls. ``tidemark_node`` is a ``LocalNode``: two real processes that a test may kill.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidemark.testing.child import NodeFailed
    from tidemark.testing.clock import FakeClock
    from tidemark.testing.node import LocalNode
    from tidemark.testing.store import LocalStore

__all__ = ["FakeClock", "LocalNode", "LocalStore", "NodeFailed"]

_MODULES: Final = {
    "FakeClock": "clock",
    "LocalNode": "node",
    "LocalStore": "store",
    "NodeFailed": "child",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use. The services of a drill are started through this package, and
    importing both services of ``LocalStore`` would double their start time."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
