"""Announces a new epoch to all nodes (docs/replication.md, becoming master). Pure.

PROMISE goes to every node until it has answered. It fences the old master early and makes slaves
connect at once. It is only for speed: the nodes would also find the epoch in the lease. The log
ends in an answer are not used; they may belong to a tail that will be cut.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.wire.payloads import Promise, PromisePurpose

PROMISE_AGAIN_MS: Final = 1000
"""Interval after which PROMISE is sent again to a node that has not answered."""


class Announcement:
    """Sends PROMISE to the other nodes in one term."""

    def __init__(self, context: ReplicaContext, peers: Peers, epoch: int) -> None:
        self._context, self._peers, self._epoch = context, peers, epoch
        self._sent_ms: dict[str, int | None] = {node: None for node in context.others}
        """Nodes that have not answered, with the time of the last PROMISE."""
        self._hurried: set[str] = set()
        """Nodes that were connected to without a pause, which is done once."""

    def send(self) -> None:
        """Send PROMISE to the connected nodes that have not answered."""
        context = self._context
        for node, sent_ms in self._sent_ms.items():
            peer = self._peers.by_node.get(node)
            if peer is None:
                continue  # it was removed from the group
            if peer.link is None:
                # A connection that is being closed delays the next one; then the next call hurries.
                if node not in self._hurried and peer.closing is None:
                    self._hurried.add(node)
                    self._peers.hurry(node)
                continue
            if sent_ms is None or context.now_ms - sent_ms >= PROMISE_AGAIN_MS:
                self._sent_ms[node] = context.now_ms
                promise = Promise(PromisePurpose.NEW_TERM, context.holder)
                self._peers.send(peer.link, self._epoch, promise)

    def answered(self, node: str) -> None:
        """Note that a node has promised the epoch."""
        self._sent_ms.pop(node, None)
