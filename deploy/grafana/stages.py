"""The delay of the group that is furthest behind, split exactly into four stages. Pure.

The broker reads five store times in one pass: of its newest record, of the first record that is not
confirmed, of the first that is not dispatched, of the oldest message that waits for delivery, and
of the oldest that is not committed. The differences of neighbours are the stages. None is negative,
and their sum is the distance of the oldest uncommitted message from the newest record. For several
groups and topics the oldest message of each kind is taken, so the sum stays exact: it is the delay
of the one that is furthest behind.
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import BLUE, ORANGE, PURPLE, YELLOW
from deploy.grafana.queries import NODE, PAIR, Query, serving

REPLICATION: Final = "replication"
DISPATCH: Final = "dispatch"
DELIVERY: Final = "delivery"
PROCESSING: Final = "processing"
COLOURS: Final = ((REPLICATION, PURPLE), (DISPATCH, BLUE), (DELIVERY, YELLOW), (PROCESSING, ORANGE))

_BY: Final = "cluster, broker, replica"
_NEWEST: Final = f"tidemark_log_newest_message_timestamp_seconds{{{NODE}}}"
_CONFIRM: Final = f"tidemark_log_confirm_message_timestamp_seconds{{{NODE}}}"
_DISPATCHED: Final = f"tidemark_log_dispatched_message_timestamp_seconds{{{NODE}}}"
_AWAITING: Final = f"min by ({_BY}) (tidemark_group_awaiting_delivery_timestamp_seconds{{{PAIR}}})"
_UNCOMMITTED: Final = (
    f"min by ({_BY}) (tidemark_group_oldest_uncommitted_timestamp_seconds{{{PAIR}}})"
)


def stages() -> tuple[Query, ...]:
    """Return one series per stage, in the order of the data path; the maximum of broker sets."""
    return (
        Query(f"max({serving(f'{_NEWEST} - {_CONFIRM}')})", REPLICATION),
        Query(f"max({serving(f'{_CONFIRM} - {_DISPATCHED}')})", DISPATCH),
        Query(f"max({_DISPATCHED} - on ({_BY}) {_AWAITING})", DELIVERY),
        Query(f"max({_AWAITING} - on ({_BY}) {_UNCOMMITTED})", PROCESSING),
    )
