"""A consumer group that reads through failovers, with the client that programs use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import tidemark
from drills.ledger import Place
from drills.log_reading import key_of
from drills.stage import Needs, Stage, drill
from drills.workload import TOPIC
from tidemark.errors import TidemarkError

GROUP: Final = "drill-readers"
MEMBERS: Final = 2
SESSION_MS: Final = 6000
CAUGHT_UP_S: Final = 40.0
RETRY_S: Final = 30.0
PAUSE_S: Final = 0.2
OWNERS_MAX: Final = 12
"""Changes of a queue's owner that two failovers explain."""


@dataclass(slots=True)
class Handled:
    """What the members of a group handled, in the order in which they did."""

    order: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By queue: (member, queue offset)."""
    keys: dict[Place, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    """Places that held two messages, as sentences."""
    left: int = 0
    """Times that a member had to join again by hand."""

    def take(self, member: int, place: Place, key: str) -> None:
        """A member handled a message."""
        self.order[place.queue].append((member, place.queue_offset))
        before = self.keys.setdefault(place, key)
        if before != key:
            self.changed.append(f"{place} was {before}, then {key}")

    def out_of_turn(self) -> list[str]:
        """Where an ordered group did not handle a queue in its order, or two did at a time.

        What was not committed may be handled again, by the next owner too, and then everything
        behind it again: a queue is a number of runs, each rising by one from a place at or below
        the end of all before it, and never two members in turns within what one of them had.
        """
        wrong = []
        for queue, events in self.order.items():
            end, last = 0, None
            owners: list[int] = []
            for member, offset in events:
                if last is not None and last[0] == member and offset == last[1] + 1:
                    pass
                elif offset > end:
                    wrong.append(f"queue {queue}: {offset} was handled when {end} was next")
                if not owners or owners[-1] != member:
                    owners.append(member)
                end, last = max(end, offset + 1), (member, offset)
            if len(owners) > OWNERS_MAX:
                wrong.append(f"queue {queue} went to and fro {len(owners)} times")
        return wrong

    def duplicates(self) -> int:
        """How many were handled again."""
        return sum(len(events) for events in self.order.values()) - len(self.keys)


@drill(
    "43",
    "group-through-failovers",
    "an ordered consumer group reads through two failovers",
    needs=Needs(nodes=3),
    restored_within_s=6.0,
)
async def group_through_failovers(stage: Stage) -> None:
    """No gap, order kept, one owner per queue; duplicates are allowed and counted."""
    handled = Handled()
    urls = list(stage.group.apis.values())
    async with tidemark.connect(urls, retry_for_s=RETRY_S) as mq:
        await mq.groups.create(GROUP, order=True, start="first")
    members = [asyncio.create_task(_read(urls, number, handled)) for number in range(MEMBERS)]
    try:
        await stage.load.acked(100)
        gaps = []
        for _ in range(2):
            master = await stage.master()
            at = stage.mark()
            stage.group.kill(master)
            await stage.successor(master, 20)
            await stage.acked_again(20)
            gaps.append(stage.gap_since(at))
            await stage.load.acked(200)
            stage.group.start(master)
            await stage.in_sync()
        stage.load.pause()
        await stage.load.quiet()
        await _caught_up(stage, handled, members)
    finally:
        stage.load.resume()
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    unknown = [key for key in handled.keys.values() if key not in stage.ledger.sent]
    stage.check(not unknown, f"messages that nobody sent: {unknown[:5]}")
    stage.check(not handled.changed, "; ".join(handled.changed[:3]))
    wrong = handled.out_of_turn()
    stage.check(not wrong, "; ".join(wrong[:3]))
    stage.note(
        f"{len(handled.keys)} messages handled by {MEMBERS} members, "
        f"{handled.duplicates()} of them again; members joined again {handled.left} times"
    )


async def _read(urls: list[str], number: int, handled: Handled) -> None:
    """One member, for as long as the drill lasts."""
    while True:
        with contextlib.suppress(TidemarkError):
            async with (
                tidemark.connect(urls, retry_for_s=RETRY_S) as mq,
                mq.subscribe(TOPIC, group=GROUP, session_ms=SESSION_MS) as messages,
            ):
                async for message in messages:
                    place = Place(message.queue, message.queue_offset)
                    handled.take(number, place, key_of(message.body))
        handled.left += 1
        await asyncio.sleep(PAUSE_S)


async def _caught_up(stage: Stage, handled: Handled, members: list[asyncio.Task[None]]) -> None:
    """Wait until everything acked was handled."""
    deadline = time.monotonic() + CAUGHT_UP_S
    while True:
        missing = [
            told.place for told in stage.ledger.told.values() if told.place not in handled.keys
        ]
        if not missing:
            return
        for task in members:
            if task.done():
                task.result()
        stage.check(
            time.monotonic() < deadline,
            f"{len(missing)} acked messages were not handled, the first at {missing[:1]}",
        )
        await asyncio.sleep(PAUSE_S)
