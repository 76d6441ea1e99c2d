"""Sessions that campaign for one lease without a pause: no epoch may have two holders."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered
from services.ha.lease.interface import LeaseStore, carry_out
from services.ha.lease.session import LeaseSession
from services.ha.lease.value import Holder
from shared.cluster.time_rules import TimeRules
from tidemark.offsets import Epoch

PAUSE_S: Final = 0.002


class Campaigns:
    """The holder of every epoch that was won, among sessions that each take the lease again."""

    def __init__(self, rules: TimeRules, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self.holders: dict[int, str] = {}
        self.stop = asyncio.Event()
        """Ends every campaign once its last write has an outcome."""
        self._won = asyncio.Event()

    async def more(self, count: int) -> None:
        """Wait until that many more epochs have been won."""
        wanted = len(self.holders) + count
        while len(self.holders) < wanted:
            self._won.clear()
            await self._won.wait()

    async def run(self, store: LeaseStore, own: Holder) -> LeaseSession:
        """Campaign until ``stop``; close the store. Fails if an epoch has another holder."""
        session = LeaseSession(own, self._rules, (0, 0), random.Random(self._seed).random)
        loop = asyncio.get_running_loop()
        answer: LeaseAnswered | None = None
        while True:
            now_ms = int(loop.time() * 1000)
            effects = session.tick(now_ms)
            if answer is not None:
                effects, settled = session.answered(answer, now_ms)
                answer = None
                if settled is not None and settled.applied:
                    epoch = settled.wanted.epoch
                    assert self.holders.setdefault(epoch, own.process) == own.process
                    self._won.set()
            if not effects and self.stop.is_set() and session.free:
                await store.close()
                return session
            if not effects and session.can_write and session.stored is not None:
                lease = session.stored.lease
                next_epoch = Epoch(max(lease.epoch, session.given_up) + 1)
                effects = session.propose(lease._replace(holder=own, epoch=next_epoch), now_ms)
            elif not effects and session.due(now_ms):
                effects = session.read(now_ms)
            for effect in effects:
                assert isinstance(effect, LeaseGet | LeasePut | LeaseCreate)
                answer = await carry_out(store, effect, self._rules.request_timeout_ms)
            await asyncio.sleep(PAUSE_S)
