"""Assignment of tests to workers: files that name a group (``xdist_group``) go to one worker.

They start what a machine of two cores cannot have twice: a Spark, a Prometheus with five clusters,
pods. pytest-xdist 3.8 has this (``--dist loadgroup``) by changing the names of tests, which does
not work with pytest 9.2. Here the group is read from the file.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_GROUP = re.compile(
    r'^(?:pytestmark = |    )\[?pytest\.mark\.xdist_group\("([\w-]+)"\)', re.MULTILINE
)


@functools.cache
def group_of(path: Path) -> str | None:
    """The group that a file of tests names for all of them; None if it names none."""
    found = _GROUP.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if found is None else found.group(1)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules each test by itself, except that the tests of one group stay together."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._root = Path(config.rootpath)

    def _split_scope(self, nodeid: str) -> Any:
        return group_of(self._root / nodeid.partition("::")[0]) or nodeid

    def _reschedule(self, node: Any) -> None:
        # The base class counts the tests of all units that a worker ever had, after every test.
        units = self.assigned_work[node]
        for scope in [scope for scope, done in units.items() if all(done.values())]:
            del units[scope]
        super()._reschedule(node)
