"""Settings for all tests.

Hypothesis judges its own speed, and ours, by the clock. On a busy machine, and in a fresh clone
where it first builds its table of characters, that fails tests that are right: the time limits
here are pytest's.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tidemark", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("tidemark")
