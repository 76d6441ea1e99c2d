"""Settings for all tests.

Hypothesis judges its own speed, and ours, by the clock. On a busy machine, and in a fresh clone
where it first builds its table of characters, that fails tests that are right: the time limits
here are pytest's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Generator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support.groups import GroupScheduling
from tidemark.formats import native

FULL_PERCENT: Final = 84
"""Below the 85 % at which a broker deletes log files that are not old."""

settings.register_profile(
    "tidemark", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", parent=settings.get_profile("tidemark"), max_examples=20)
settings.load_profile("tidemark")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Keep the tests of a group together: they share what a machine cannot have twice."""
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would go through thousands of tests again and
    again; what was collected lives until the end and is no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> list[str]:
    """Report which twins the tests use, except those that try both, and a disk that is too full."""
    return [
        f"twins: {'compiled' if native.COMPILED else 'pure (' + native.WHY_PURE + ')'}",
        *_full_disk(),
    ]


def _full_disk() -> list[str]:
    """A line about the disk of the tests' stores, if it is so full that brokers take measures."""
    facts = os.statvfs(tempfile.gettempdir())
    used = facts.f_blocks - facts.f_bfree
    percent = 100 * used / max(used + facts.f_bavail, 1)
    if percent <= FULL_PERCENT:
        return []
    return [
        f"disk: {tempfile.gettempdir()} is {percent:.0f} % full. Brokers there delete log files by "
        "force and refuse sends: tests may fail for that alone"
    ]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End the run at the first failure on such a disk: what follows would fail for that alone."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        for line in _full_disk():
            pytest.exit(line, returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make every ``asyncio.sleep`` return at once; the list has the seconds that were asked for."""
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return asked


def pytest_sessionstart() -> None:
    """With TIDEMARK_REQUIRE_ALL=1, native modules that are not built are a failure."""
    required = os.environ.get("TIDEMARK_REQUIRE_ALL") == "1"
    if required and not native.COMPILED and os.environ.get("TIDEMARK_PURE", "") in ("", "0"):
        raise pytest.UsageError(native.WHY_PURE)
