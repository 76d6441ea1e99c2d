"""Grafana's names of units. They follow the catalogue's unit of a family; a test compares. Pure."""

from __future__ import annotations

from typing import Final

SECONDS: Final = "s"
BYTES: Final = "bytes"
"""Powers of 1024, like the limits in the configuration."""
BYTES_RATE: Final = "binBps"
SHARE: Final = "percentunit"
"""A ratio; 1 is shown as 100 %."""
COUNT: Final = "short"
"""Messages, queues, nodes, …; the title names what is counted."""
MESSAGES_RATE: Final = "mps"
REQUESTS_RATE: Final = "reqps"
RECORDS_RATE: Final = "recps"
EVENTS_RATE: Final = "eps"
PLAIN: Final = "none"
"""A number without a unit: an epoch, a state, a factor."""
DATE: Final = "dateTimeAsIso"
"""Milliseconds since 1970; families in seconds are multiplied by 1000 for it."""
