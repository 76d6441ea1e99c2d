"""What is said of connections that do not come to be, paced per peer and minute.

Step before: ``links`` is told why a connection ended. Step after: the log, and the replica, which
shows the reason in its status.
"""

from __future__ import annotations

from typing import Final

from services.ha.wire.handshake import Reason
from shared.runtime.rate_limited_logger import RateLimitedLogger

OTHER_VERSIONS: Final = Reason.PROTOCOL_VERSION.code
"""How the reason of such a link begins, and the event that says it: docs/runbook.md has it."""


START_S: Final = 5.0
"""Nodes of a group start together: until then one that is not reached is on its way."""
UNREACHED: Final = "not reached: "
"""How the reason begins where no connection was made."""


class LinkLog:
    """Says why links end, each kind of reason at its own pace."""

    def __init__(self, paced: RateLimitedLogger) -> None:
        self._paced = paced
        self._quiet_until = paced.now + START_S

    def refused(self, peer: str, address: str, reason: str) -> None:
        """A connection to the replication port was closed for what its peer is, or sent."""
        if not self._versions_differ(peer, address, reason):
            self._paced.say(
                peer,
                "link-refused",
                "a connection to the replication port was closed",
                peer=peer,
                reason=reason,
                address=address,
            )

    def unreached(self, node: str, address: str, reason: str) -> None:
        """A connection to a node could not be made, or did not prove itself."""
        if reason.startswith(UNREACHED) and self._paced.now < self._quiet_until:
            return
        if not self._versions_differ(node, address, reason):
            self._paced.say(
                f"to {node}",
                "connect-failed",
                "a node of the group cannot be reached",
                peer=node,
                reason=reason,
                address=address,
            )

    def _versions_differ(self, peer: str, address: str, reason: str) -> bool:
        """Both sides say it, and nothing changes until one of them is of another release."""
        if not reason.startswith(OTHER_VERSIONS):
            return False
        self._paced.say(
            f"versions of {peer}",
            "protocol-version",
            "a node of the group speaks no version of the replication protocol that this one does",
            peer=peer,
            reason=reason,
            address=address,
        )
        return True
