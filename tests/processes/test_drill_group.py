"""A group of a drill restarts its services, unless a restart cannot help."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from drills.group import Group
from drills.namespaces import Loopback
from drills.running import Runner
from drills.stage import Drill, GroupStage, Needs
from tidemark.testing.child import NodeFailed

REFUSED = r"ended with status 2(?s:.*)cluster\.nodes needs 2 to 9 different names"
"""The error of each service of a group of one node."""


async def wait_with(group: Group) -> None:
    async with group, asyncio.timeout(60):
        group.start()
        await asyncio.Event().wait()


# Such a service was started again and again until the time-out of the drill, which named no cause.
async def test_a_service_that_refuses_its_configuration_ends_the_group_with_its_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(NodeFailed, match=REFUSED):
        await wait_with(Group(tmp_path, Loopback(), nodes=1))


async def test_a_drill_fails_with_the_error_of_the_service(tmp_path: Path) -> None:
    async def run(_: GroupStage[Group]) -> None:
        raise AssertionError("the group does not come up")

    lines: list[str] = []
    drill = Drill("1", "first", "an example", run, needs=Needs(nodes=1))
    runner = Runner(tmp_path, Loopback(), seed=1, report=lines.append)
    (result,) = await asyncio.wait_for(runner.run([drill]), 60)
    assert not result.passed
    assert lines == [f"  1 first: FAILED: {result.failure} (0 s)"]
    assert re.search(REFUSED, result.failure)


async def test_an_error_of_a_drill_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the block"):
        async with Group(tmp_path, Loopback(), nodes=1):
            raise ValueError("of the block")
