"""A log context for a test, with the attributes that the component under test uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from services.broker.log.log_context import LogContext


def log_context_of(**attributes: object) -> LogContext:
    """Return a log context that has these attributes and no others."""
    return cast(LogContext, SimpleNamespace(**attributes))
