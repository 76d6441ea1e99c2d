"""Damage of the files of a store: the cases of ``test_damage``.

A case is a kind of damage, a file by its role in the store, and the moment: while the node is down
after a clean stop, down after a kill, or up. Details (which bit, which half) are drawn from the
case's seed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple


class Kind(Enum):
    """Kind of damage."""

    MISSING = "missing"
    MOVED = "moved"
    CUT = "cut"
    GROWN = "grown"
    SWAPPED = "swapped"
    OLD_COPY = "old copy"
    BIT_FLIPPED = "bit flipped"


class Moment(Enum):
    """Moment of the damage."""

    CLEAN = "after a clean stop"
    KILLED = "after a kill"
    UP = "while up"


class Case(NamedTuple):
    """One case."""

    kind: Kind
    file: str
    moment: Moment
    seed: int

    def __str__(self) -> str:
        return f"{self.file}, {self.kind.value}, {self.moment.value}, seed {self.seed}"


def _nth(pattern: str, place: int) -> Callable[[Path], Path | None]:
    def find(store: Path) -> Path | None:
        found = sorted(path for path in store.glob(pattern) if path.is_file())
        return found[place] if -len(found) <= place < len(found) else None

    return find


def _active(store: Path) -> Path | None:
    """The log file that the log ends in: the last that begins with a record."""
    used = [
        path for path in sorted((store / "commitlog").glob("[0-9]*")) if _head(path).strip(b"\0")
    ]
    return used[-1] if used else None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _ahead(store: Path) -> Path | None:
    unused = [
        path
        for path in sorted((store / "commitlog").glob("[0-9]*"))
        if not _head(path).strip(b"\0")
    ]
    return unused[0] if unused else None


FILES: Final[Mapping[str, Callable[[Path], Path | None]]] = {
    "first log file": _nth("commitlog/*", 0),
    "middle log file": _nth("commitlog/*", 1),
    "active log file": _active,
    "log file made ahead": _ahead,
    "first file of a queue": _nth("consumequeue/orders/0/*", 0),
    "last file of a queue": _nth("consumequeue/orders/0/*", -1),
    "file of the state's queue": _nth("consumequeue/rmq_sys_tidemark_state/0/*", 0),
    "first index file": _nth("index/*", 0),
    "last index file": _nth("index/*", -1),
    "checkpoint": _nth("checkpoint", 0),
    "log-start": _nth("log-start", 0),
    "tidemark.json": _nth("tidemark.json", 0),
    "topics.json": _nth("config/topics.json", 0),
    "subscriptionGroup.json": _nth("config/subscriptionGroup.json", 0),
    "consumerOffset.json": _nth("config/consumerOffset.json", 0),
    "delayOffset.json": _nth("config/delayOffset.json", 0),
    "pending times": _nth("timer/pending.db", 0),
    "queue of delayed messages": _nth("consumequeue/rmq_sys_wheel_timer/0/*", 0),
    "timercheck": _nth("config/timercheck", 0),
    "timer log": _nth("timerlog/*", 0),
    "mark of a running node": _nth("commitlog/tidemark-is-running", 0),
    "abort": _nth("abort", 0),
    "lock": _nth("lock", 0),
}
"""Role → where it is in a store; None if that store has none."""

PARTNERS: Final[Mapping[str, str]] = {
    "first log file": "middle log file",
    "middle log file": "first log file",
    "active log file": "first log file",
    "log file made ahead": "active log file",
    "first file of a queue": "last file of a queue",
    "last file of a queue": "first file of a queue",
    "file of the state's queue": "first file of a queue",
    "first index file": "last index file",
    "last index file": "first index file",
    "topics.json": "subscriptionGroup.json",
    "subscriptionGroup.json": "topics.json",
    "consumerOffset.json": "delayOffset.json",
    "delayOffset.json": "consumerOffset.json",
    "checkpoint": "log-start",
    "log-start": "checkpoint",
    "tidemark.json": "log-start",
    "pending times": "log-start",
    "queue of delayed messages": "file of the state's queue",
    "timercheck": "pending times",
    "timer log": "timercheck",
    "mark of a running node": "abort",
    "abort": "lock",
    "lock": "abort",
}
"""What a file is swapped with."""


def all_cases(seed: int) -> list[Case]:
    """The whole table; each case with a seed of its own."""
    rng = random.Random(seed)
    return [
        Case(kind, file, moment, rng.randrange(1 << 32))
        for file in FILES
        for kind in Kind
        for moment in Moment
    ]


class Done(NamedTuple):
    """Damage that was done to a store."""

    what: str
    undo: Callable[[], None]
    """Restore the file from a copy; the node is down."""


def damage(case: Case, store: Path, aside: Path, older: Path) -> Done | None:
    """Do the damage; None if the store has no such file, or the damage would change nothing.

    aside: a directory for moved files and copies. older: the same store some time ago.
    """
    path = FILES[case.file](store)
    if path is None:
        return None
    rng = random.Random(case.seed)
    name = str(path.relative_to(store))
    aside.mkdir(parents=True, exist_ok=True)
    kept = aside / "kept"
    shutil.copyfile(path, kept)

    def put_back() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(kept, path, aside)

    match case.kind:
        case Kind.MISSING:
            path.unlink()
            return Done(f"removed {name}", put_back)
        case Kind.MOVED:
            moved = aside / "moved"
            path.rename(moved)
            return Done(f"moved {name} away", lambda: _replace(moved, path, aside))
        case Kind.CUT:
            size = path.stat().st_size
            if size < 2:
                return None
            to = rng.randrange(size)
            os.truncate(path, to)
            return Done(f"cut {name} from {size} to {to} bytes", put_back)
        case Kind.GROWN:
            more = rng.randbytes(rng.choice((1, 20, 4096)))
            with path.open("ab") as file:
                file.write(more)
            return Done(f"appended {len(more)} bytes to {name}", put_back)
        case Kind.SWAPPED:
            return _swapped(case, store, path, aside)
        case Kind.OLD_COPY:
            copy = older / name
            if not copy.is_file() or copy.read_bytes() == kept.read_bytes():
                return None
            if rng.random() < 0.5:
                _replace(copy, path, aside)
                return Done(f"replaced {name} by an older copy", put_back)
            with path.open("r+b") as over:
                over.write(copy.read_bytes())
            return Done(f"copied an older {name} over it", put_back)
        case Kind.BIT_FLIPPED:
            content = path.read_bytes()
            used = len(content.rstrip(b"\0"))
            if not used:
                used = len(content)
            if not used:
                return None
            bit = rng.randrange(used * 8)
            with path.open("r+b") as flipped:
                flipped.seek(bit // 8)
                flipped.write(bytes([content[bit // 8] ^ 1 << bit % 8]))
            return Done(f"flipped bit {bit % 8} of byte {bit // 8} of {name}", put_back)


def _swapped(case: Case, store: Path, path: Path, aside: Path) -> Done | None:
    other = FILES[PARTNERS[case.file]](store)
    if other is None or other == path:
        return None

    def swap() -> None:
        between = aside / "between"
        path.rename(between)
        other.rename(path)
        between.rename(other)

    swap()
    return Done(f"swapped {path.relative_to(store)} and {other.relative_to(store)}", swap)


def _replace(source: Path, path: Path, aside: Path) -> None:
    """Give path a copy of source, in one step and with no other name in the store on the way."""
    new = aside / "new"
    shutil.copyfile(source, new)
    new.rename(path)
