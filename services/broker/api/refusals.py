"""Turns any exception of a call into the error that its client gets, and counts it."""

from __future__ import annotations

from services.broker.api.gate import Gate
from services.broker.request_classes import RequestClass
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, DamagedFile, TidemarkError

RETRY_STATUSES = (503, 507)
"""Statuses of retriable errors whose answer has the header Retry-After."""


class Refusals:
    """Refused and failed requests of the API port."""

    def __init__(self, gate: Gate, clock: Clock, metrics: TrafficMetrics) -> None:
        self._gate = gate
        self._limited_log = RateLimitedLogger(clock.monotonic)
        self._rejected = metrics.rejected

    def of(self, error: Exception, request_class: RequestClass, path: str) -> TidemarkError:
        """Return the error to answer. Damage is noted at the gate, a defect is logged."""
        if isinstance(error, CorruptRecord | DamagedFile):
            error = self._gate.judge(error)
        if not isinstance(error, TidemarkError):
            self._limited_log.defect(error, "a call failed because of an internal error", path=path)
            error = TidemarkError(
                "an internal error: whether anything was stored is unknown.",
                "See the broker's log, and report it.",
            )
        self._rejected.labels(request_class.value, error.code).inc()
        return error


def retry_after(error: TidemarkError) -> bool:
    """Return whether the answer has the header Retry-After."""
    return error.retriable and error.status in RETRY_STATUSES
