"""Log lines of replication for traced messages (docs/logs.md).

The broker of this node passes the ranges of traced messages. ha logs when the group has confirmed
them, and which nodes have them. Only a master's ha does: a slave gets no sends. Step before: a
confirm offset that moved. Step after: the log.
"""

from __future__ import annotations

import logging

from services.ha.core.replica import Replica
from shared.runtime.traced_ranges import TracedRange, TracedRanges

log = logging.getLogger(__name__)


def log_confirmed(traced: TracedRanges, replica: Replica) -> None:
    """Log all ranges below the master's confirm offset; costs nothing while there are none."""
    term = replica.leadership.term
    if not traced or term is None:
        return
    confirm = term.confirm.value

    def say(found: TracedRange) -> None:
        nodes = [
            link.peer.node
            for link in term.links.values()
            if link.acked_end is not None and link.acked_end >= found.end_offset
        ]
        if replica.context.durable >= found.end_offset:
            nodes.append(replica.context.name)
        log.info(
            "messages are confirmed by the group",
            extra={
                "event": "trace-confirmed",
                "trace": found.trace,
                "start_offset": found.start_offset,
                "end_offset": found.end_offset,
                "confirm_offset": confirm,
                "nodes": sorted(nodes),
            },
        )

    traced.reached(confirm, say)
