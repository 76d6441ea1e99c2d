"""Units as Grafana names them. The catalogue's unit of a family decides; a test compares. Pure."""

from __future__ import annotations

from typing import Final

SECONDS: Final = "s"
BYTES: Final = "bytes"
"""In powers of 1024, as the limits in configuration are."""
BYTES_RATE: Final = "binBps"
SHARE: Final = "percentunit"
"""A ratio: 1 is shown as 100 %."""
COUNT: Final = "short"
"""Messages, queues, nodes, …: what is counted stands in the title."""
MESSAGES_RATE: Final = "mps"
REQUESTS_RATE: Final = "reqps"
RECORDS_RATE: Final = "recps"
EVENTS_RATE: Final = "eps"
PLAIN: Final = "none"
"""A number without a unit: an epoch, a state, a ratio that reads as a factor."""
DATE: Final = "dateTimeAsIso"
"""Milliseconds since 1970: a family in seconds is multiplied by 1000 for it."""
