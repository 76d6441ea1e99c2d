"""The blocking calls for groups, delayed messages and dead letters; see their asyncio versions."""

from __future__ import annotations

from tidemark.client.dead_letters import DeadLetters
from tidemark.client.delayed import Delayed
from tidemark.client.groups import Groups
from tidemark.client.sync_calls import Runs, blocking, iterating


class SyncGroups:
    """``Groups`` with blocking calls."""

    def __init__(self, run: Runs, groups: Groups) -> None:
        self._run, self._target = run, groups

    create = blocking(Groups.create)
    get = blocking(Groups.get)
    delete = blocking(Groups.delete)
    offsets = blocking(Groups.offsets)
    reset = blocking(Groups.reset)
    list = blocking(Groups.list)


class SyncDelayed:
    """``Delayed`` with blocking calls."""

    def __init__(self, run: Runs, delayed: Delayed) -> None:
        self._run, self._target = run, delayed

    list = blocking(Delayed.list)
    iterate = iterating(Delayed.iterate)
    cancel = blocking(Delayed.cancel)


class SyncDeadLetters:
    """``DeadLetters`` with blocking calls."""

    def __init__(self, run: Runs, dead_letters: DeadLetters) -> None:
        self._run, self._target = run, dead_letters

    list = blocking(DeadLetters.list)
    iterate = iterating(DeadLetters.iterate)
    redrive = blocking(DeadLetters.redrive)
