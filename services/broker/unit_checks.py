"""Asks reput to compare a queue unit that a read could not follow with the log.

Only reput writes queues. The broker publishes which unit it is, one at a time, and reput answers
whether units were replaced (``reput.unit_mending``). Until then who reads there is told to try
again. A unit that reput found to be what the log says stays so: then the log is damaged there.

Before: ``pull`` met the unit. After: ``gate`` says what the reader is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from shared.files.positions import Positions
from tidemark.formats.checkpoint import Slot, queue_number

SOUND_MAX: Final = 1024
"""Units remembered that reput left as they are."""

Place = tuple[str, int, int]
"""(topic, queue, queue offset)"""


class UnitChecks:
    """What was asked, and what came of it. For the loop's thread."""

    def __init__(
        self, positions: Positions, *, ask: Callable[[], object], mended: Callable[[], None]
    ) -> None:
        """ask: rings for reput. mended: is called once units were replaced, before the next read
        of them: what readers know of the queues may be wrong."""
        self._positions = positions
        self._ask = ask
        self._mended = mended
        self._asked: Place | None = None
        self._count = 0
        self._reput = positions.resumed_dispatch()
        self._sound: OrderedDict[Place, None] = OrderedDict()

    def is_open(self, topic: str, queue: int, number: int) -> bool:
        """Whether reput may still mend that unit: it is asked if it was not."""
        self._settle()
        place = (topic, queue, number)
        if place in self._sound:
            return False
        if self._asked is None:
            self._asked = place
            publish = self._positions.publish
            publish(Slot.UNIT_CHECK_QUEUE, queue_number(topic, queue))
            publish(Slot.UNIT_CHECK_OFFSET, number)
            self._count = self._positions.get(Slot.UNIT_CHECK_COUNT) + 1
            publish(Slot.UNIT_CHECK_COUNT, self._count)
            self._ask()
        return True

    def _settle(self) -> None:
        reput = self._positions.resumed_dispatch()
        if reput is not None and reput != self._reput:
            self._reput = reput
            self._sound.clear()  # the queues may have been made anew
        answer = self._positions.get(Slot.UNIT_CHECKED)
        if self._asked is None or answer >> 1 != self._count:
            return
        if answer & 1:
            self._mended()
        else:
            self._sound[self._asked] = None
            while len(self._sound) > SOUND_MAX:
                self._sound.popitem(last=False)
        self._asked = None
