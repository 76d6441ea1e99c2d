"""Telling all nodes that an epoch is taken (docs/replication.md, becoming master). Pure.

PROMISE goes to every node until it has answered: it fences the old master early and brings slaves
here at once. Nothing depends on it: they would learn it from the lease. What an answer says of its
sender's log counts for nothing; it may be of a tail that will be cut.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.wire.payloads import Promise, PromisePurpose

PROMISE_AGAIN_MS: Final = 1000
"""A node that has not answered is asked again."""


class Announcement:
    """Of one term."""

    def __init__(self, own: Own, peers: Peers, epoch: int) -> None:
        self._own, self._peers, self._epoch = own, peers, epoch
        self._told_ms: dict[str, int | None] = {node: None for node in own.others}
        """Of nodes that have not answered: when they were told last."""

    def tell(self) -> None:
        """Tell those that have not answered, as far as there are connections."""
        own = self._own
        for node, told_ms in self._told_ms.items():
            peer = self._peers.by_node[node]
            if peer.link is None:
                continue
            if told_ms is None or own.now_ms - told_ms >= PROMISE_AGAIN_MS:
                self._told_ms[node] = own.now_ms
                promise = Promise(PromisePurpose.NEW_TERM, own.holder)
                self._peers.send(peer.link, self._epoch, promise)

    def answered(self, node: str) -> None:
        """It respects the epoch."""
        self._told_ms.pop(node, None)
