"""Which requests a node of a group serves in its role, and which errors the others get.

There is one class for each role; the gate asks the object of the present one. Step before: ``node``
changes roles. Step after: ``gate``, before every call.
"""

from __future__ import annotations

from collections.abc import Callable

from services.broker.log.term import GrantedTerm
from services.broker.replication.cluster_view import MasterAddress
from tidemark.errors import NotMaster, NotServing


class SlavePolicy:
    """A slave, or a node without a role yet: it serves only reads that any node may serve."""

    def __init__(self, master: Callable[[], MasterAddress | None]) -> None:
        """master: returns the master as this node knows it; None: there is none, or it is
        unknown."""
        self._master = master

    def check_reads(self, *, anywhere: bool) -> None:
        """Raise NotMaster, unless the read may be served anywhere."""
        if not anywhere:
            raise self._refusal(
                "Nothing was read: another node may have newer messages.",
                "Ask the master; or take what this node has, with the header "
                "Tidemark-Read-From: any.",
            )

    def check_sends(self) -> None:
        """Raises NotMaster."""
        raise self._refusal("Nothing was stored.", "Ask the master.")

    def _refusal(self, safe: str, advice: str) -> NotMaster:
        master = self._master()
        who = (
            "the master is not known now"
            if master is None
            else f"the master is {master.name} at {master.api}"
        )
        return NotMaster(
            f"this node is not the master of its group; {who}. {safe}",
            advice if master is not None else "Try again: GET /v1/cluster has its name.",
            master=None if master is None else master.name,
            api=None if master is None else master.api,
        )


class PromotingPolicy:
    """Between a grant and its confirmation by the group: this node will serve soon."""

    def check_reads(self, *, anywhere: bool) -> None:
        """Raises NotServing."""
        raise _promoting("Nothing was read.")

    def check_sends(self) -> None:
        """Raises NotServing."""
        raise _promoting("Nothing was stored.")


class MasterPolicy:
    """The master, as long as its lease lasts."""

    def __init__(self, term: GrantedTerm) -> None:
        self._term = term

    def check_reads(self, *, anywhere: bool) -> None:
        """Raise Fenced, unless the read may be served anywhere: what is confirmed here stays
        confirmed."""
        if not anywhere:
            self._term.check_reads()

    def check_sends(self) -> None:
        """Raises Fenced, SwitchingOver."""
        self._term.check_sends()


def _promoting(safe: str) -> NotServing:
    return NotServing(
        f"this node is about to become the master of its group. {safe}",
        "Try again in a moment.",
        state="promoting",
    )
