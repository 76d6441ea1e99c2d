"""The checkpoint page of a node, and the product's rules about it taken one access at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Final, TypeVar

from shared.cluster.grant import Slots
from tests.simulation.replication.process import Process
from tidemark.formats.checkpoint import SLOT_COUNT, Slot

T = TypeVar("T")
OLD_PAGES: Final = 4
"""States of the page that a power cut may bring back: the kernel wrote them to the disk."""


class Page:
    """4096 bytes that all services of a node map; each access is one load or store."""

    def __init__(self, random: Random) -> None:
        self._slots = [0] * SLOT_COUNT
        self._random = random
        self._armed: dict[Slot, Callable[[], None]] = {}
        self._written_back: list[list[int]] = [list(self._slots)]

    def get(self, slot: Slot) -> int:
        """What was published last."""
        return self._slots[slot]

    def publish(self, slot: Slot, value: int) -> None:
        """Let every service of the node see value."""
        self._slots[slot] = value
        if self._armed and slot in self._armed:
            self._armed.pop(slot)()
        if self._random.random() < 0.01:
            self.write_back()

    def arm(self, slot: Slot, call: Callable[[], None]) -> None:
        """Call once, right after the next store to slot."""
        self._armed[slot] = call

    def disarm(self) -> None:
        """Nothing is planned any more."""
        self._armed.clear()

    def write_back(self) -> None:
        """The page as it is reaches the disk."""
        self._written_back.append(list(self._slots))
        del self._written_back[:-OLD_PAGES]

    def power_cut(self) -> None:
        """Any state that reached the disk is what the next boot finds, most often the last."""
        kept = self._written_back
        self._slots = list(kept[-1] if self._random.random() < 0.7 else self._random.choice(kept))
        self._written_back = [list(self._slots)]

    def erase(self) -> None:
        """A new volume."""
        self._slots = [0] * SLOT_COUNT
        self._written_back = [list(self._slots)]


class _Access(BaseException):
    """The replayed call came to its first access that was not done yet."""

    def __init__(self, slot: Slot, value: int | None) -> None:
        super().__init__()
        self.slot, self.value = slot, value


class _Replayed:
    """Answers as many accesses as were done already, and stops the call at the next one."""

    def __init__(self, done: list[int]) -> None:
        self._done, self._next = done, 0

    def get(self, slot: Slot) -> int:
        """The value loaded before."""
        if self._next == len(self._done):
            raise _Access(slot, None)
        self._next += 1
        return self._done[self._next - 1]

    def publish(self, slot: Slot, value: int) -> None:
        """Nothing, if it was stored before."""
        if self._next == len(self._done):
            raise _Access(slot, value)
        self._next += 1


def step_by_step(
    process: Process, page: Page, call: Callable[[Slots], T]
) -> Generator[int, None, T]:
    """call(page), with a border of steps behind each access to a slot.

    call is a rule that reads nothing but slots, so it can be run again from its beginning after
    every access, with the values that it got then: the way to stop a plain function inside.
    """
    if process.undisturbed():
        yield 0
        return call(page)
    done: list[int] = []
    while True:
        try:
            return call(_Replayed(done))
        except _Access as access:
            if access.value is None:
                done.append(page.get(access.slot))
            else:
                page.publish(access.slot, access.value)
                done.append(access.value)
        yield 0
