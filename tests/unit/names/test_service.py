from __future__ import annotations

import asyncio

import pytest

from services.names.config import NamesConfig
from services.names.service import Names
from shared.cluster.routes import EXPIRE_S
from tests.unit.names.registering import said


async def test_the_log_says_each_time_that_all_broker_groups_are_registered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    names = Names(NamesConfig(groups=("g0",)), None, asyncio.Event())
    directory, now_s = names.directory, names._clock.monotonic()
    directory.note_peers(())
    logged = []
    for step in ("start", "registered", "renewed", "expired", "back"):
        if step == "expired":
            directory.expire(now_s + EXPIRE_S + 1)
        elif step != "start":
            directory.register("g0", "n0", said("orders"), now_s)
        caplog.clear()
        names._note_complete()
        logged.append((step, [record.event for record in caplog.records]))  # type: ignore[attr-defined]
    assert [step for step, events in logged if events == ["complete"]] == ["registered", "back"]
