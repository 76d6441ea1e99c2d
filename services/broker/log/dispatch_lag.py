"""How many bytes of the log wait for dispatch, and for what they wait. Pure.

Reput dispatches what is confirmed. On a standalone node that is what is on disk. In a group it is
what every member of the in-sync set has on disk: if one of them is slow, reput waits, too. Step
before: ``append`` and ``watch`` compare the lag with ``dispatch_lag_max``.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import DispatchBehind


class DispatchLag(NamedTuple):
    """The lag of dispatch behind the flushed log [bytes]."""

    flushed: int
    confirmed: int
    dispatched: int

    @property
    def behind(self) -> int:
        """Bytes that are on disk and not dispatched."""
        return self.flushed - self.dispatched

    @property
    def unconfirmed(self) -> int:
        """Bytes of them that reput does not dispatch before the group has confirmed them."""
        return max(0, self.flushed - self.confirmed)

    @property
    def detail(self) -> str:
        """The number of bytes, and what most of them wait for if that is not reput."""
        said = f"{self.behind} bytes are not dispatched yet"
        if not self._waits_for_group:
            return said
        return (
            f"{said}, and {self.unconfirmed} of them not confirmed: the in-sync set has the log up "
            f"to physical offset {self.confirmed}"
        )

    @property
    def see(self) -> str:
        """Where the cause is shown."""
        return "`tidemark cluster status`" if self._waits_for_group else "reput's /ready"

    @property
    def _waits_for_group(self) -> bool:
        """Whether most of the bytes wait for the in-sync set, and not for reput."""
        return 2 * self.unconfirmed > self.behind

    def refusal(self, limit: int) -> DispatchBehind:
        """Return the error of sends while the lag is above the limit."""
        cause = "which member lags" if self._waits_for_group else "why dispatch is blocked"
        return DispatchBehind(
            f"{self.detail}; the limit is {limit}. Nothing was stored; reads continue.",
            f"See {self.see} for {cause}; then try again.",
            behind=self.behind,
            unconfirmed=self.unconfirmed,
            confirmed=self.confirmed,
            limit=limit,
        )
