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

from tidemark.testing.clock import FakeClock
from tidemark.testing.node import LocalNode, NodeFailed
from tidemark.testing.store import LocalStore

__all__ = ["FakeClock", "LocalNode", "LocalStore", "NodeFailed"]
