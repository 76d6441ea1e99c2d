"""Random histories of a whole group: members fetch, handle, commit, lose responses, leave and die,
and the broker restarts without the last commits.

Whatever happens, no message that the group selects is skipped, no commit covers a message that was
not handled, and an ordered group never handles a message before the earlier ones are done. A
failing history is run again by its number.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path

from tests.support.for_each import for_each
from tests.unit.broker.groups.rig import SESSION_MS, Rig
from tidemark.errors import NotAssigned, StaleGeneration, UnknownMember
from tidemark.formats import record
from tidemark.offsets import Queue

QUEUES = 3
STEPS = 150
TAGS = ("new", "paid", "old")


class Consumer:
    """A member that behaves like a careful program."""

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.history = history
        self.rig = history.rig
        self.generation: int | None = None
        self.owned: set[Queue] = set()
        self.got: dict[Queue, list[int]] = {}
        """Queue offsets of messages in hand, in their order."""
        self.fetched_to: dict[Queue, int] = {}
        self.done_to: dict[Queue, int] = {}
        """What may be committed: behind the last message handled."""
        self.lost_an_answer = False
        self.lease_ms = 0
        """Time until which no other member can have the queues of this one."""

    async def heartbeat(self) -> None:
        holding = self.owned | {queue for queue, messages in self.got.items() if messages}
        try:
            joined = await self.rig.join(
                self.name,
                tags=self.history.tags,
                generation=self.generation,
                holding=holding if self.generation else self.claims(),
            )
        except UnknownMember:
            self.generation = None
            return
        self.lease_ms = self.rig.clock.now_ms + SESSION_MS
        if self.generation is None:
            self.drop_all_but(joined.kept)
        self.generation = joined.generation
        for queue in self.owned - set(joined.assignment):
            self.fetched_to.pop(queue, None)
        for queue in set(joined.assignment) - self.owned:  # new, or back again: from the commit on
            self.got.pop(queue, None)
            self.fetched_to.pop(queue, None)
            self.done_to.pop(queue, None)
        self.owned = set(joined.assignment)

    def claims(self) -> set[Queue]:
        """The queues that a join names: the broker may have restarted."""
        return self.owned if self.rig.clock.now_ms < self.lease_ms else set()

    def drop_all_but(self, kept: Collection[Queue]) -> None:
        """The broker had lost its members, and may have given the other queues to others."""
        for facts in (self.got, self.fetched_to, self.done_to):
            for queue in facts.keys() - set(kept):
                del facts[queue]
        self.owned &= set(kept)
        self.lost_an_answer = True

    async def fetch(self, *, answer_is_lost: bool) -> None:
        positions = list(self.fetched_to.items()) if self.lost_an_answer else []
        try:
            fetched = await self.rig.fetch(
                self.name,
                generation=self.generation,
                count_max=self.history.random.choice((1, 3, 100)),
                positions=positions,
            )
        except StaleGeneration:
            await self.heartbeat()
            return
        except UnknownMember:
            self.generation = None
            return
        self.lost_an_answer = answer_is_lost
        if answer_is_lost:
            for piece in fetched.pieces:  # where to go on is known of what came before only
                self.fetched_to.setdefault(piece.queue, piece.from_offset)
            return
        for piece in fetched.pieces:
            assert piece.queue in self.owned
            assert not self.got.get(piece.queue) or not self.history.order
            self.fetched_to[piece.queue] = piece.next_offset
            numbers = [
                int(record.decode(data).queue_offset) for _, _, data in piece.result.records()
            ]
            if numbers:
                self.got.setdefault(piece.queue, []).extend(numbers)

    def handle(self) -> None:
        ready = [queue for queue, messages in sorted(self.got.items()) if messages]
        if ready:
            queue = self.history.random.choice(ready)
            number = self.got[queue].pop(0)
            self.history.handled(queue, number)
            self.done_to[queue] = number + 1

    async def commit(self) -> None:
        moves = {queue: offset for queue, offset in self.done_to.items() if queue in self.owned}
        if moves and self.generation:
            try:
                await self.rig.commit(moves, member=self.name, generation=self.generation)
            except StaleGeneration:
                await self.heartbeat()

    async def let_go(self) -> None:
        """Finish and commit what was taken away, or discard it."""
        for queue in [queue for queue in self.got if queue not in self.owned]:
            messages = self.got.pop(queue)
            if self.history.random.random() < 0.5 and self.generation:
                for number in messages:
                    self.history.handled(queue, number)
                    self.done_to[queue] = number + 1
                try:
                    await self.rig.commit(
                        {queue: self.done_to[queue]} if queue in self.done_to else {},
                        member=self.name,
                        generation=self.generation,
                    )
                except StaleGeneration:
                    await self.heartbeat()
                except NotAssigned:
                    pass  # it was held for a whole session: others have it
            self.done_to.pop(queue, None)


class History:
    """One group, its messages, and what became of them."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.order = seed % 2 == 1
        self.tags = "*" if seed % 3 == 0 else "new || paid"
        self.wanted: dict[Queue, list[int]] = {}
        self.done: dict[Queue, set[int]] = {}
        self.members: list[Consumer] = []
        self.names = 0
        self.written: dict[Queue, int] = {}
        """Offsets that survive a kill of the broker."""
        rig.group(order=self.order)

    def put(self) -> None:
        queue = self.random.randrange(QUEUES)
        for _ in range(self.random.randrange(1, 6)):
            tag = self.random.choice(TAGS)
            number = int(self.rig.next_offsets.next_of(("orders", queue)))
            self.rig.append(1, queue, tags=tag)
            if self.tags == "*" or tag != "old":
                self.wanted.setdefault(("orders", queue), []).append(number)
        if self.random.random() < 0.8:
            self.rig.dispatch()

    def handled(self, queue: Queue, number: int) -> None:
        done = self.done.setdefault(queue, set())
        if self.order:
            assert all(each in done for each in self.wanted[queue] if each < number)
        done.add(number)

    def check(self) -> None:
        for queue, numbers in self.wanted.items():
            committed = self.rig.offsets.get("billing", *queue) or 0
            left_out = [each for each in numbers if each < committed]
            assert self.done.get(queue, set()).issuperset(left_out)

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.2:
            self.put()
        elif choice < 0.26 and len(self.members) < 4:
            self.names += 1
            self.members.append(Consumer(f"m{self.names}", self))
            await self.members[-1].heartbeat()
        elif choice < 0.29 and self.members:
            # Silent from now on; its queues wait for its session to end.
            self.members.pop(self.random.randrange(len(self.members)))
        elif choice < 0.32 and self.members:
            leaves = self.members.pop(self.random.randrange(len(self.members)))
            if leaves.generation:
                try:
                    self.rig.coordinator.leave("billing", leaves.name)
                except UnknownMember:
                    leaves.generation = None
        elif choice < 0.36:
            await self.pass_time(self.random.choice((10, SESSION_MS // 3)))
        elif choice < 0.38:
            self.start_again()
        elif choice < 0.45:
            self.written = dict(self.rig.offsets.of_group("billing"))
        elif self.members:
            await self.member_step(self.random.choice(self.members))
        self.check()

    def start_again(self) -> None:
        """Kill and restart the broker: members and the last commits are gone."""
        committed = self.rig.offsets.of_group("billing")
        lost = {queue: min(at, committed[queue]) for queue, at in self.written.items()}
        self.rig.offsets.accept("billing", lost)
        self.rig.start()

    async def member_step(self, member: Consumer) -> None:
        if member.generation is None:
            await member.heartbeat()
            return
        choice = self.random.random()
        if choice < 0.35:
            await member.fetch(answer_is_lost=self.random.random() < 0.1)
        elif choice < 0.65:
            member.handle()
        elif choice < 0.8:
            await member.commit()
        elif choice < 0.9:
            await member.heartbeat()
        else:
            await member.let_go()

    async def pass_time(self, passed_ms: int) -> None:
        """Living members beat in time."""
        for member in self.members:
            await member.heartbeat()
        self.rig.clock.now_ms += passed_ms
        self.rig.look()

    async def finish(self) -> None:
        """Make everything visible, and let one member do the rest."""
        self.rig.dispatch()
        last = Consumer("last", self)
        for _ in range(6):
            self.rig.clock.now_ms += SESSION_MS // 2
            await last.heartbeat()
        while True:
            before = sum(map(len, last.got.values())), self.rig.offsets.changes
            await last.fetch(answer_is_lost=False)
            while any(last.got.values()):
                last.handle()
            await last.commit()
            if (sum(map(len, last.got.values())), self.rig.offsets.changes) == before:
                break
        for queue, numbers in self.wanted.items():
            assert self.done[queue].issuperset(numbers)
            end = self.rig.next_offsets.next_of(queue)
            assert self.rig.offsets.get("billing", *queue) == end, "lag returns to 0"


@for_each("seed", range(20))
async def test_no_message_is_left_out_whatever_the_members_do(tmp_path: Path, seed: int) -> None:
    rig = Rig(tmp_path / "store")
    try:
        history = History(rig, seed)
        for _ in range(STEPS):
            await history.step()
        await history.finish()
    finally:
        rig.close()
