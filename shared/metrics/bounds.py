"""Limits on the series by topic, by group and by pair of both. Pure.

Beyond a limit the least active label sets are shown together as ``_other``. A label set is *shown*,
*folded* into ``_other``, or *idle*. An idle one is not shown: nothing happened for a day, and its
weight is 0. ``round`` changes these states before values are taken, a few hundred at a time;
``instruments`` and ``tables`` handle the numbers. Belongs to the event loop.
Step before: an instrument or a table names a label set. Step after: a scrape takes values.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from shared.metrics.family import OTHER, Family

if TYPE_CHECKING:
    from shared.metrics.labelled import Child

Key = tuple[str, ...]

TOPICS_MAX: Final = 5_000
PAIRS_MAX: Final = 10_000
GROUPS_MAX: Final = 2_000
IDLE_S: Final = 24 * 3600.0
SWAPS_MAX: Final = 100
"""Label sets swapped in one round; limits the differences between two scrapes."""
_BETTER: Final = 1.5
"""Factor by which a folded label set must be more active than a shown one to replace it."""
_HALF_LIFE_S: Final = 600.0
"""Activity decays to one half in this time."""
_WEIGHT: Final = 1e18
"""Factor of the weight in the rank: a label set with weight is never replaced by one that is only
active."""
_AT_ONCE: Final = 64
"""Label sets processed between two iterations of the loop: a fifth of a millisecond."""


class State(enum.Enum):
    """Display state of a label set."""

    SHOWN = enum.auto()
    FOLDED = enum.auto()
    IDLE = enum.auto()


class Entry:
    """One label set."""

    __slots__ = (
        "activity", "children", "key", "moved_at_s", "row", "row_round", "seen", "state", "tables",
        "weight",
    )  # fmt: skip

    def __init__(self, key: Key, state: State, now_s: float) -> None:
        self.key, self.state = key, state
        self.children: list[Child] = []
        self.tables = 0
        """Bit mask of the tables that have a row for the label set."""
        self.row: float = 0.0
        """The last activity that a table reported."""
        self.row_round = 0
        """The last round in which a table had a row for the label set."""
        self.weight: float = 0.0
        self.seen: float = 0.0
        self.activity: float = 0.0
        self.moved_at_s = now_s

    @property
    def rank(self) -> float:
        """Label sets with a higher rank are shown first."""
        return self.weight * _WEIGHT + self.activity


class Bound:
    """Label sets of one kind and their display states."""

    def __init__(
        self,
        most: int,
        dropped: Callable[[Family, int], None],
        forgot: Callable[[], None],
        idle_s: float,
    ) -> None:
        """most: largest number shown at a time. dropped: called for every series that is folded.
        forgot: called when a label set is removed, before anything can be counted for it again."""
        self.most = most
        self.is_plain = True
        """Nothing was ever folded or idle, so values may be taken without checking each state."""
        self._dropped, self._forgot = dropped, forgot
        self._idle_s = idle_s
        self._entries: dict[Key, Entry] = {}
        self._tables: list[tuple[Family, ...]] = []
        self._shown_count = 0
        self._leaving_count = 0
        """Number folded in the last round: they are shown once more, and still occupy places."""
        self._round = 0
        self._now_s = 0.0
        self.exists: Callable[[Key], bool] | None = None
        """Whether the topic or group of a key still exists; None: unknown."""

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, key: Key) -> Entry:
        """Return a key's entry; a new one is shown if there is room."""
        found = self._entries.get(key)
        if found is None:
            has_room = self._has_room() and OTHER not in key
            found = Entry(key, State.SHOWN if has_room else State.FOLDED, self._now_s)
            found.row_round = self._round
            self._entries[key] = found
            if has_room:
                self._shown_count += 1
            else:
                self.is_plain = False
        return found

    def add_child(self, entry: Entry, family: Family, child: Child) -> None:
        """Add an instrument of the family that counts for the label set."""
        entry.children.append(child)
        if entry.state is State.FOLDED:
            self._dropped(family, 1)

    def add_table(self, families: tuple[Family, ...]) -> int:
        """Register a table with rows of this kind; returns its number for ``add_row``."""
        self._tables.append(families)
        return len(self._tables) - 1

    def add_row(self, key: Key, table: int, weight: float, activity: float) -> Entry:
        """Register a table's row for the key; see ``tables.Table``."""
        entry = self.entry(key)
        bit = 1 << table
        if not entry.tables & bit:
            entry.tables |= bit
            entry.row = activity
            if entry.state is State.FOLDED:
                for family in self._tables[table]:
                    self._dropped(family, 1)
        if entry.row_round != self._round:
            entry.row_round, entry.weight = self._round, weight
        elif weight > entry.weight:
            entry.weight = weight
        if activity != entry.row:
            entry.activity += abs(activity - entry.row)
            entry.row, entry.moved_at_s = activity, self._now_s
        if entry.state is State.IDLE and (weight or entry.moved_at_s == self._now_s):
            self._wake(entry)
        return entry

    # -- rounds ---------------------------------------------------------------------------------

    def round(self, now_s: float) -> Iterator[None]:
        """Update the states of all label sets; yields where other tasks may run.

        now_s: monotonic clock. Exhaust the iterator before the next round.
        """
        fade = 0.5 ** ((now_s - self._now_s) / _HALF_LIFE_S) if self._round else 1.0
        self._round += 1
        self._now_s = now_s
        self._leaving_count = 0
        rising: list[tuple[float, Key]] = []
        falling: list[tuple[float, Key]] = []
        entries = list(self._entries.values())
        for start in range(0, len(entries), _AT_ONCE):
            for entry in entries[start : start + _AT_ONCE]:
                self._look_at(entry, fade)
                if self.is_plain or entry.key not in self._entries:
                    continue
                if entry.state is State.SHOWN:
                    _keep_best(falling, (-entry.rank, entry.key))
                elif entry.state is State.FOLDED and OTHER not in entry.key:
                    _keep_best(rising, (entry.rank, entry.key))
            yield
        if rising:
            self._swap(sorted(rising, reverse=True), sorted(falling, reverse=True))

    def _look_at(self, entry: Entry, fade: float) -> None:
        exists = self.exists
        unused = not entry.children and entry.row_round < self._round - 1
        if unused or (exists is not None and OTHER not in entry.key and not exists(entry.key)):
            self._forget(entry)
            return
        seen = 0.0
        for child in entry.children:
            seen += child.moved()
        entry.activity *= fade
        if seen != entry.seen:
            entry.activity += abs(seen - entry.seen)
            entry.seen, entry.moved_at_s = seen, self._now_s
            if entry.state is State.IDLE:
                self._wake(entry)
        elif self._round == 1:
            entry.moved_at_s = self._now_s  # created before the first time was known
        elif (
            entry.state is State.SHOWN
            and not entry.weight
            and self._now_s - entry.moved_at_s >= self._idle_s
        ):
            entry.state = State.IDLE
            self.is_plain = False
            self._shown_count -= 1
        if entry.row_round < self._round - 1:
            entry.weight = 0.0  # no table has a row for it any more

    def _swap(self, rising: list[tuple[float, Key]], falling: list[tuple[float, Key]]) -> None:
        """Show the most active folded ones: in free places now, in others from the next round."""
        waiting: list[float] = []
        for rank, key in rising:
            if self._has_room():
                self._entries[key].state = State.SHOWN
                self._shown_count += 1
            else:
                waiting.append(rank)
        for rank, (negative, key) in zip(waiting, falling, strict=False):
            if rank <= -negative * _BETTER:
                break
            self._fold(self._entries[key])

    def _fold(self, entry: Entry) -> None:
        self._shown_count -= 1
        self._leaving_count += 1
        self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        entry.state = State.FOLDED
        for child in entry.children:
            self._dropped(child.family, 1)
        for table, families in enumerate(self._tables):
            if entry.tables >> table & 1:
                for family in families:
                    self._dropped(family, 1)

    def _wake(self, entry: Entry) -> None:
        """Handle activity of an idle entry."""
        if not self._has_room():
            self._drop(entry)
            for child in entry.children:
                child.shut_out()
            return
        entry.state = State.SHOWN
        self._shown_count += 1
        for child in entry.children:
            child.wake()

    def _forget(self, entry: Entry) -> None:
        for child in entry.children:
            child.forget()
        if entry.state is State.SHOWN:
            self._shown_count -= 1
        del self._entries[entry.key]
        self._forgot()

    def _has_room(self) -> bool:
        return self._shown_count + self._leaving_count < self.most


class Limits(NamedTuple):
    """Largest numbers of label sets shown at a time."""

    topics: int = TOPICS_MAX
    pairs: int = PAIRS_MAX
    groups: int = GROUPS_MAX
    idle_s: float = IDLE_S


class Bounds:
    """The limits of one process, selected by the labels of a family."""

    def __init__(
        self, limits: Limits, dropped: Callable[[Family, int], None], forgot: Callable[[], None]
    ) -> None:
        """See ``Bound``."""
        self.topics = Bound(limits.topics, dropped, forgot, limits.idle_s)
        self.pairs = Bound(limits.pairs, dropped, forgot, limits.idle_s)
        """Keys are (group, topic)."""
        self.groups = Bound(limits.groups, dropped, forgot, limits.idle_s)

    def of(self, family: Family) -> tuple[Bound, tuple[int, ...]] | None:
        """Return the limit for a family and the positions of its key labels; None: unlimited.

        Families by queue are limited where queues are sampled, because sampling is the expensive
        part.
        """
        labels = family.labels
        if "queue" in labels:
            return None
        found = tuple(labels.index(name) for name in ("group", "topic") if name in labels)
        match len(found):
            case 0:
                return None
            case 1:
                return (self.topics if labels[found[0]] == "topic" else self.groups), found
            case _:
                return self.pairs, found

    def connect(
        self,
        topic_exists: Callable[[str], bool] | None,
        group_exists: Callable[[str], bool] | None,
    ) -> None:
        """Set the functions that know the existing topics and groups. With None nothing is removed.

        The empty group, which stands for pulls without a group, always exists.
        """
        self.topics.exists = self.groups.exists = self.pairs.exists = None
        if topic_exists is None or group_exists is None:
            return
        topic_is, group_is = topic_exists, group_exists
        self.topics.exists = lambda key: topic_is(key[0])
        self.groups.exists = lambda key: group_is(key[0])
        self.pairs.exists = lambda key: (not key[0] or group_is(key[0])) and topic_is(key[1])

    def round(self, now_s: float) -> Iterator[None]:
        """Run one round of each limit; see ``Bound.round``."""
        for bound in (self.topics, self.pairs, self.groups):
            yield from bound.round(now_s)


def _keep_best(heap: list[tuple[float, Key]], one: tuple[float, Key]) -> None:
    """Keep the SWAPS_MAX largest items in the heap."""
    if len(heap) < SWAPS_MAX:
        heapq.heappush(heap, one)
    elif one > heap[0]:
        heapq.heapreplace(heap, one)
