"""``threading``, ``queue``, ``concurrent.futures`` and ``time.sleep`` for simulated code.

One simulated thread runs at a time, so nothing here needs a lock of its own; each wait lets others
go on. Names and contracts are those of the standard library, as far as the services use them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeVar

from tests.simulation.replication.process import Process, border, running
from tests.simulation.replication.process import Thread as Running

T = TypeVar("T")


class Lock:
    """``threading.Lock``."""

    def __init__(self) -> None:
        self._owner: Running | None = None
        self._depth = 0
        self._waiting: deque[Running] = deque()

    def acquire(self) -> bool:
        """Wait until the lock is free, and take it."""
        me = running()
        while self._depth:
            assert me is not None, "the world takes no locks of processes"
            assert self._owner is not me, "a deadlock"
            self._waiting.append(me)
            me.park()
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                self._waiting.popleft().wake()

    def locked(self) -> bool:
        """Whether a thread holds the lock."""
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """``threading.RLock``."""

    def acquire(self) -> bool:
        """Take the lock; its owner may take it again."""
        me = running()
        if self._depth and self._owner is me:
            self._depth += 1
            return True
        return super().acquire()


class Condition:
    """``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self._waiting: list[Running] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, or until the timeout in seconds."""
        me = running()
        assert me is not None
        self._waiting.append(me)
        self._lock.release()
        me.park(None if timeout is None else int(timeout * 1e6))
        notified = me not in self._waiting
        if not notified:
            self._waiting.remove(me)
        self._lock.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until predicate is true; after a timeout it is checked once more."""
        while not predicate():
            if not self.wait(timeout) and timeout is not None:
                return predicate()
        return True

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def notify(self) -> None:
        """Wake one waiting thread."""
        if self._waiting:
            self._waiting.pop(0).wake()


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Running] = []

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiting threads."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def clear(self) -> None:
        """Clear the event."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, or until the timeout in seconds."""
        me = running()
        if self._is_set or me is None:
            return self._is_set
        self._waiting.append(me)
        me.park(None if timeout is None else int(timeout * 1e6))
        if me in self._waiting:
            self._waiting.remove(me)
        return self._is_set


class SimpleQueue(Generic[T]):
    """``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: deque[Running] = deque()

    def put(self, item: T) -> None:
        """Append an item; wakes one waiting thread."""
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().wake()

    def get(self) -> T:
        """Return the oldest item, as soon as there is one."""
        me = running()
        while not self._items:
            assert me is not None
            self._waiting.append(me)
            me.park()
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self._items


class Thread:
    """``threading.Thread``; belongs to the process that starts it."""

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = False,
    ) -> None:
        self.name = name
        self._target, self._args = target, args
        self._thread: Running | None = None

    @property
    def ident(self) -> int | None:
        """None before it was started."""
        return None if self._thread is None else id(self._thread)

    def start(self) -> None:
        """Start the thread."""
        me = running()
        assert me is not None
        self._thread = me.process.start(self.name, lambda: self._target(*self._args))
        border()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        me = running()
        if self._thread is not None and me is not None:
            me.join(self._thread)

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and not self._thread.ended


class ThreadPoolExecutor:
    """``concurrent.futures.ThreadPoolExecutor``, for ``Loop.run_in_executor`` and ``map``."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "worker") -> None:
        self.name = thread_name_prefix
        self._workers_max = max_workers
        self._jobs: deque[Callable[[], None]] = deque()
        self._workers: list[Running] = []

    def give(self, process: Process, job: Callable[[], None]) -> None:
        """Have a worker run the job; jobs run in the order of the calls."""
        self._jobs.append(job)
        self._workers = [worker for worker in self._workers if not worker.ended]
        if len(self._workers) < self._workers_max:
            self._workers.append(process.start(self.name, self._work))

    def _work(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def map(self, call: Callable[[T], object], items: Iterable[T]) -> Iterator[object]:
        """Run the calls one after the other: the seed draws the order of concurrent steps
        anyway."""
        return map(call, items)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        """Wait for all jobs. cancel_futures: drop those that have not begun."""
        me = running()
        if cancel_futures:
            self._jobs.clear()
        if wait and me is not None:
            for worker in self._workers:
                me.join(worker)


def sleep(seconds: float) -> None:
    """``time.sleep``."""
    me = running()
    assert me is not None
    me.work(max(1, int(seconds * 1e6)))


THREADING: Final = SimpleNamespace(
    Lock=Lock, RLock=RLock, Condition=Condition, Event=Event, Thread=Thread
)
QUEUE: Final = SimpleNamespace(SimpleQueue=SimpleQueue)
TIME: Final = SimpleNamespace(sleep=sleep)
