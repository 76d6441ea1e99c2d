"""Asks reput to compare a consume queue unit with the log if the unit points to no valid record.

Only reput writes queues. The broker publishes one unit at a time in the positions page, and reput
answers whether it replaced units (``reput.unit_mending``). Until the answer arrives, reads of the
unit get a retriable error. If reput finds that the unit agrees with the log, the log is damaged.

``pull`` finds the unit before this step; after it ``gate`` builds the reader's error.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shared.files.positions import Positions
from shared.runtime.health import Health
from tidemark.errors import CorruptRecord, DamagedFile, StoreError
from tidemark.formats.checkpoint import Slot, queue_number

SOUND_MAX: Final = 1024
"""Number of remembered units that reput found to be correct."""

ANSWER_POLL_S: Final = 0.02
ANSWER_MAX_S: Final = 30.0
"""Longest wait for reput's answer, which may require reading the log. After it the read fails with
its original error."""

UNIT_WAITS: Final = "catching-up"
"""Readiness reason while the broker waits for reput."""

T = TypeVar("T")

Place = tuple[str, int, int]
"""(topic, queue, queue offset)"""


def name_unit(error: StoreError, topic: str, queue: int, number: int) -> StoreError:
    """Add the queue unit to the facts of an error that occurred where the unit points to."""
    error.facts.update(topic=topic, queue=queue, queue_offset=number)
    return error


class UnitChecks:
    """The request to reput in progress and the results so far. For the event loop's thread."""

    def __init__(
        self,
        positions: Positions,
        health: Health,
        *,
        ask: Callable[[], object],
        mended: Callable[[], None],
    ) -> None:
        """health: reports a comparison that takes long. ask: wakes reput. mended: called before the
        next read if units were replaced or reput was restarted; readers must then drop their cached
        data of the queues."""
        self._positions = positions
        self._health = health
        self._ask = ask
        self._mended = mended
        self._asked: Place | None = None
        self._asked_at = 0.0
        self._count = 0
        self._reput = positions.resumed_dispatch()
        self._sound: OrderedDict[Place, None] = OrderedDict()
        self._changes = 0

    def is_open(self, topic: str, queue: int, number: int) -> bool:
        """Return whether reput may still repair the unit; sends the request if necessary.

        While a restarted reput is catching up, it repairs the queues without a request.
        """
        if self._reput_begins:
            return True
        self.began_anew()
        place = (topic, queue, number)
        if self.settle():
            return True  # this unit may be among the replaced ones
        if place in self._sound:
            return False
        if self._asked is None:
            self._asked, self._asked_at = place, self._health.clock.monotonic()
            publish = self._positions.publish
            publish(Slot.UNIT_CHECK_QUEUE, queue_number(topic, queue))
            publish(Slot.UNIT_CHECK_OFFSET, number)
            # The count must also exceed the last answer, because the broker's slots may have been
            # restored from an older page.
            get = self._positions.get
            self._count = max(get(Slot.UNIT_CHECK_COUNT), get(Slot.UNIT_CHECKED) >> 1) + 1
            publish(Slot.UNIT_CHECK_COUNT, self._count)
            self._ask()
        return True

    @property
    def _reput_begins(self) -> bool:
        return self._positions.resumed_dispatch() is None

    def began_anew(self) -> bool:
        """Return whether reput restarted since the last call. If so, drop the readers' cached data,
        because the queues may have been truncated and rebuilt."""
        reput = self._positions.resumed_dispatch()
        if reput is None or reput == self._reput:
            return False
        self._reput = reput
        self._sound.clear()
        self._note_change()
        return True

    def changes(self) -> int:
        """Return how often units were replaced or reput restarted. A held pull may have read a
        queue that was shorter meanwhile."""
        self.settle()
        self.began_anew()
        return self._changes

    def may_heal(self, error: StoreError) -> bool:
        """Return whether the error names a unit that reput may still repair."""
        facts = error.facts
        number = facts.get("queue_offset")
        if number is None or not {"topic", "queue"} <= facts.keys():
            return False
        return self.is_open(facts["topic"], facts["queue"], number)

    async def healed(self, read: Callable[[], Awaitable[T]], goes_on: Callable[[], bool]) -> T:
        """Call read and return its result; call it again after each unit that reput replaced.

        Waits for reput while goes_on returns True, at most ANSWER_MAX_S per unit. Raises
        CorruptRecord or DamagedFile if reput did not replace the unit.
        """
        while True:
            try:
                return await read()
            except (CorruptRecord, DamagedFile) as error:
                if not await self._is_replaced(error, goes_on):
                    raise

    async def _is_replaced(self, error: StoreError, goes_on: Callable[[], bool]) -> bool:
        if not self.may_heal(error):
            return False
        now = asyncio.get_running_loop().time
        deadline = now() + ANSWER_MAX_S
        reput = self._reput
        while (self._asked is not None or self._reput_begins) and goes_on() and now() < deadline:
            await asyncio.sleep(ANSWER_POLL_S)  # reput writes the page; no event is sent
            self.settle()
        if self._reput_begins:
            return False
        self.began_anew()
        facts = error.facts
        place = (facts["topic"], facts["queue"], facts["queue_offset"])
        return self._reput != reput or (self._asked is None and place not in self._sound)

    def settle(self) -> bool:
        """Process reput's answer; return whether units were replaced since the last call."""
        if self._asked is None:
            return False
        answer = self._positions.get(Slot.UNIT_CHECKED)
        if answer >> 1 != self._count:
            self._note_wait(*self._asked)
            return False
        asked, self._asked = self._asked, None
        self._health.clear_reason(UNIT_WAITS)
        if answer & 1:
            self._note_change()
            return True
        self._sound[asked] = None
        while len(self._sound) > SOUND_MAX:
            self._sound.popitem(last=False)
        return False

    def _note_change(self) -> None:
        self._changes += 1
        self._mended()

    def _note_wait(self, topic: str, queue: int, number: int) -> None:
        """Set a readiness reason if reput has not answered in time; reads of the unit fail."""
        waited_s = self._health.clock.monotonic() - self._asked_at
        if waited_s >= ANSWER_MAX_S:
            self._health.add_reason(
                UNIT_WAITS,
                f"reput has not compared unit {number} of queue {queue} of topic {topic!r} with "
                f"the log for {int(waited_s)} s; reads of it are refused. See /ready of reput: it "
                "does not run, or its disk takes no writes.",
            )
