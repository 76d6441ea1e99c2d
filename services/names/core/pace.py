"""How many bytes of registrations one sender may send: a flood must not take the loop. Pure.

Each sender has an allowance that refills with time; a registration costs its size, at least
COST_MIN. A broker group with 50,000 topics can register with all of them three times in a row; a
renewal costs next to nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from tidemark.errors import Overloaded

COST_MIN: Final = 4096
SENDERS_MAX: Final = 65_536
"""Senders that are remembered; of those that have sent least recently the allowance is full."""


class Allowance(NamedTuple):
    """Bytes that a sender may send at once, and bytes that are added each second."""

    burst: int
    rate: int


NODE: Final = Allowance(16 << 20, 1 << 20)
"""Of a node, for bodies whose signature is valid."""
ADDRESS: Final = Allowance(64 << 20, 8 << 20)
"""Of an address, for bodies before they are read: several nodes may have one, and all of them
register with all topics after a start of the name service."""


class Pace:
    """The allowances of all senders of one kind."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Sender → bytes used, and the time of that [s]; refilled since then."""

    def admit(self, sender: str, size: int, now_s: float) -> None:
        """Charge a registration of size bytes. Raises Overloaded if the allowance is used up."""
        burst, rate = self._allowance
        used, at_s = self._used.get(sender, (0.0, now_s))
        used = max(0.0, used - (now_s - at_s) * rate)
        cost = max(size, COST_MIN)
        if used + cost > burst:
            wait_s = (used + cost - burst) / rate
            raise Overloaded(
                f"{sender} has sent {used / (1 << 20):.1f} MiB of registrations faster than "
                f"{rate >> 20} MiB/s; {burst >> 20} MiB may come at once. Nothing was changed.",
                f"Try again in {wait_s:.1f} s; a broker does so by itself.",
                limit=burst,
                used=int(used),
            )
        self._used[sender] = used + cost, now_s
        self._used.move_to_end(sender)
        if len(self._used) > SENDERS_MAX:
            self._used.popitem(last=False)
