"""Asks reput to compare a queue unit that a read could not follow with the log.

Only reput writes queues. The broker publishes which unit it is, one at a time, and reput answers
whether units were replaced (``reput.unit_mending``). Until then reads of that unit get a
retriable error. If reput finds that the unit is what the log says, the log is damaged there.

Before: ``pull`` met the unit. After: ``gate`` makes the reader's error.
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
"""Units remembered that reput left as they are."""

ANSWER_POLL_S: Final = 0.02
ANSWER_MAX_S: Final = 30.0
"""Reput may have to read some log; without an answer the damage is named as it was met."""

UNIT_WAITS: Final = "catching-up"
"""Reason of a broker that waits for reput."""

T = TypeVar("T")

Place = tuple[str, int, int]
"""(topic, queue, queue offset)"""


def name_unit(error: StoreError, topic: str, queue: int, number: int) -> StoreError:
    """The same error, which was met where that unit points: the unit or the log is damaged."""
    error.facts.update(topic=topic, queue=queue, queue_offset=number)
    return error


class UnitChecks:
    """What was asked, and what came of it. For the loop's thread."""

    def __init__(
        self,
        positions: Positions,
        health: Health,
        *,
        ask: Callable[[], object],
        mended: Callable[[], None],
    ) -> None:
        """health: says when a comparison takes long. ask: rings for reput. mended: is called once
        units were replaced, or reput has begun anew, before the next read: what readers know of
        the queues may be wrong."""
        self._positions = positions
        self._health = health
        self._ask = ask
        self._mended = mended
        self._asked: Place | None = None
        self._asked_at = 0.0
        self._count = 0
        self._reput = positions.resumed_dispatch()
        self._sound: OrderedDict[Place, None] = OrderedDict()

    def is_open(self, topic: str, queue: int, number: int) -> bool:
        """Whether reput may still mend that unit: it is asked if it was not.

        A start of reput that has not come up to date makes the queues whole by itself.
        """
        if self._reput_begins:
            return True
        self.began_anew()
        place = (topic, queue, number)
        if self.settle():
            return True  # perhaps it is whole by now
        if place in self._sound:
            return False
        if self._asked is None:
            self._asked, self._asked_at = place, self._health.clock.monotonic()
            publish = self._positions.publish
            publish(Slot.UNIT_CHECK_QUEUE, queue_number(topic, queue))
            publish(Slot.UNIT_CHECK_OFFSET, number)
            # Above the last answer too: an older page of the broker's slots may have been put back.
            get = self._positions.get
            self._count = max(get(Slot.UNIT_CHECK_COUNT), get(Slot.UNIT_CHECKED) >> 1) + 1
            publish(Slot.UNIT_CHECK_COUNT, self._count)
            self._ask()
        return True

    @property
    def _reput_begins(self) -> bool:
        return self._positions.resumed_dispatch() is None

    def began_anew(self) -> bool:
        """Whether reput has begun anew since the last call: the queues may have been cut, and made
        anew, and what readers know of them is forgotten."""
        reput = self._positions.resumed_dispatch()
        if reput is None or reput == self._reput:
            return False
        self._reput = reput
        self._sound.clear()
        self._mended()
        return True

    def may_heal(self, error: StoreError) -> bool:
        """Whether reput may still mend the unit at which the error was met, if it names one."""
        facts = error.facts
        number = facts.get("queue_offset")
        if number is None or not {"topic", "queue"} <= facts.keys():
            return False
        return self.is_open(facts["topic"], facts["queue"], number)

    async def healed(self, read: Callable[[], Awaitable[T]], goes_on: Callable[[], bool]) -> T:
        """What read returns, which is called again after each damaged unit that reput replaced.

        Waits for reput while goes_on, at most ANSWER_MAX_S for each unit. Raises CorruptRecord,
        DamagedFile: reput has not replaced the unit.
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
            await asyncio.sleep(ANSWER_POLL_S)  # another process's page: no event tells of it
            self.settle()
        if self._reput_begins:
            return False
        self.began_anew()
        facts = error.facts
        place = (facts["topic"], facts["queue"], facts["queue_offset"])
        return self._reput != reput or (self._asked is None and place not in self._sound)

    def settle(self) -> bool:
        """Take reput's answer in; whether units were replaced since the last call."""
        if self._asked is None:
            return False
        answer = self._positions.get(Slot.UNIT_CHECKED)
        if answer >> 1 != self._count:
            self._note_wait(*self._asked)
            return False
        asked, self._asked = self._asked, None
        self._health.clear_reason(UNIT_WAITS)
        if answer & 1:
            self._mended()
            return True
        self._sound[asked] = None
        while len(self._sound) > SOUND_MAX:
            self._sound.popitem(last=False)
        return False

    def _note_wait(self, topic: str, queue: int, number: int) -> None:
        """Without an answer reads of the unit fail until there is one: /ready says so."""
        waited_s = self._health.clock.monotonic() - self._asked_at
        if waited_s >= ANSWER_MAX_S:
            self._health.add_reason(
                UNIT_WAITS,
                f"reput has not compared unit {number} of queue {queue} of topic {topic!r} with "
                f"the log for {int(waited_s)} s; reads of it are refused. See /ready of reput: it "
                "does not run, or its disk takes no writes.",
            )
