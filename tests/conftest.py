"""Settings for all tests.

Hypothesis judges its own speed, and ours, by the clock. On a busy machine, and in a fresh clone
where it first builds its table of characters, that fails tests that are right: the time limits
here are pytest's.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support.groups import GroupScheduling
from tidemark.formats import twins

settings.register_profile(
    "tidemark", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("tidemark")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Groups of tests that share what a machine cannot have twice."""
    return GroupScheduling(config, log)


def pytest_report_header() -> str:
    """Which twin the tests run with, but for those that try both."""
    return f"twins: {'compiled' if twins.COMPILED else 'pure (' + twins.WHY_PURE + ')'}"


def pytest_sessionstart() -> None:
    """Where everything is required, compiled twins that are not built are a failure."""
    required = os.environ.get("TIDEMARK_REQUIRE_ALL") == "1"
    if required and not twins.COMPILED and os.environ.get("TIDEMARK_PURE", "") in ("", "0"):
        raise pytest.UsageError(twins.WHY_PURE)
