"""A consumer group of the client library that reads across failovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import tidemark
from drills.ledger import Place
from drills.log_reading import key_of
from drills.stage import THREE, Stage, drill
from drills.workload import TOPIC
from tidemark.errors import TidemarkError

GROUP: Final = "drill-readers"
MEMBERS: Final = 2
SESSION_MS: Final = 6000
CAUGHT_UP_S: Final = 40.0
RETRY_S: Final = 30.0
PAUSE_S: Final = 0.2
OWNERS_MAX: Final = 12
"""Number of ownership changes of a queue that two failovers can cause."""


@dataclass(slots=True)
class Handled:
    """The messages that the members of a group handled, in order."""

    order: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Queue → (member, queue offset) in the order of handling."""
    keys: dict[Place, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    """Positions at which two different messages were read, as sentences."""
    left: int = 0
    """Number of times that a subscription ended and was opened again."""

    def take(self, member: int, place: Place, key: str) -> None:
        self.order[place.queue].append((member, place.queue_offset))
        before = self.keys.setdefault(place, key)
        if before != key:
            self.changed.append(f"{place} was {before}, then {key}")

    def ordering_violations(self) -> list[str]:
        """Return violations of ordered consumption: gaps, and queues with too many ownership
        changes.

        Messages whose offset was not committed may be handled again, also by the next owner, and so
        may everything after them. So a queue consists of runs of consecutive offsets, each of
        which starts at or below the end of all runs before it. Two members must not alternate.
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
        return sum(len(events) for events in self.order.values()) - len(self.keys)


@drill("43", "an ordered consumer group reads through two failovers", THREE, 6.0)
async def group_through_failovers(stage: Stage) -> None:
    """Check: no gap, ordered, one owner per queue; duplicates are allowed and counted."""
    handled = Handled()
    urls = list(stage.group.apis.values())
    async with tidemark.connect(urls, retry_for_s=RETRY_S) as mq:
        await mq.groups.create(GROUP, order=True, start="first")
    members = [asyncio.create_task(_read(urls, number, handled)) for number in range(MEMBERS)]
    try:
        await stage.load.acked(100)
        for _ in range(2):
            master = await stage.master()
            at = stage.mark()
            stage.group.kill(master)
            await stage.successor(master, 20)
            await stage.acked_again(20)
            stage.gap_since(at)
            await stage.load.acked(200)
            stage.group.start(master)
            await stage.in_sync()
        await stage.pause_load()
        await _caught_up(stage, handled, members)
    finally:
        stage.load.resume()
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    unknown = [key for key in handled.keys.values() if key not in stage.ledger.sent]
    stage.check(not unknown, f"messages that were never sent: {unknown[:5]}")
    stage.check(not handled.changed, "; ".join(handled.changed[:3]))
    wrong = handled.ordering_violations()
    stage.check(not wrong, "; ".join(wrong[:3]))
    stage.note(
        f"{len(handled.keys)} messages handled by {MEMBERS} members, "
        f"{handled.duplicates()} of them again; members joined again {handled.left} times"
    )


async def _read(urls: list[str], number: int, handled: Handled) -> None:
    """Consume as one member for the duration of the drill."""
    while True:
        with contextlib.suppress(TidemarkError):
            async with (
                tidemark.connect(urls, retry_for_s=RETRY_S) as mq,
                mq.subscribe(TOPIC, group=GROUP, session_ms=SESSION_MS) as messages,
            ):
                async for message in messages:
                    place = Place(int(message.queue), message.queue_offset)
                    handled.take(number, place, key_of(message.body))
        handled.left += 1
        await asyncio.sleep(PAUSE_S)


async def _caught_up(stage: Stage, handled: Handled, members: list[asyncio.Task[None]]) -> None:
    missing: list[Place] = []

    async def caught_up() -> bool:
        for task in members:
            if task.done():
                task.result()
        missing[:] = (
            ack.place for ack in stage.ledger.acked.values() if ack.place not in handled.keys
        )
        return not missing

    await stage.eventually(
        caught_up,
        lambda: f"{len(missing)} acked messages were not handled, the first at {missing[:1]}",
        CAUGHT_UP_S,
    )
