"""Log lines about failed connections, at a limited rate per peer.

Step before: ``links`` passes the reason for which a connection ended. Step after: the log, and the
replica, which shows the reason in its status.
"""

from __future__ import annotations

from typing import Final

from services.ha.wire.handshake import Reason
from shared.runtime.rate_limited_logger import RateLimitedLogger

OTHER_VERSIONS: Final = Reason.PROTOCOL_VERSION.code
"""Prefix of the reason of such a link, and name of its event; docs/runbook.md describes it."""


START_S: Final = 5.0
"""Time for nodes that start together: until then an unreachable node is not logged."""
UNREACHED: Final = "not reached: "
"""Prefix of the reason if no connection was made."""


class LinkLog:
    """Logs why links end, each kind of reason at its own rate."""

    def __init__(self, limited_log: RateLimitedLogger) -> None:
        self._limited_log = limited_log
        self._quiet_until = limited_log.now + START_S

    def refused(self, peer: str, address: str, reason: str) -> None:
        """Log a connection to the replication port that was closed because of its peer or its
        bytes."""
        if not self._versions_differ(peer, address, reason):
            self._limited_log.say(
                peer,
                "link-refused",
                "a connection to the replication port was closed",
                peer=peer,
                reason=reason,
                address=address,
            )

    def unreached(self, node: str, address: str, reason: str) -> None:
        """Log a connection that could not be made or authenticated."""
        if reason.startswith(UNREACHED) and self._limited_log.now < self._quiet_until:
            return
        if not self._versions_differ(node, address, reason):
            self._limited_log.say(
                f"to {node}",
                "connect-failed",
                "a node of the group cannot be reached",
                peer=node,
                reason=reason,
                address=address,
            )

    def _versions_differ(self, peer: str, address: str, reason: str) -> bool:
        """Log that versions differ; both sides do, and nothing changes before an upgrade."""
        if not reason.startswith(OTHER_VERSIONS):
            return False
        self._limited_log.say(
            f"versions of {peer}",
            "protocol-version",
            "a node of the group speaks no version of the replication protocol that this one does",
            peer=peer,
            reason=reason,
            address=address,
        )
        return True
