"""What a simulated disk is made of: bytes in two copies, names in two copies.

The cache copy is what every process sees; the durable copy is what a power cut cannot take. The
rules of loss are here, the operations that lead to them in ``sim_disk``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

PAGE: Final = 4096
SECTOR: Final = 512


class Loss(NamedTuple):
    """How much of the unsynced a power cut keeps: chances from 0 (all lost) to 1 (all kept)."""

    pages: float
    names: float
    torn: float
    whole_files: bool
    """Decide once per file instead of once per page: this file whole, that one not at all."""


LOSE_ALL: Final = Loss(pages=0.0, names=0.0, torn=0.0, whole_files=False)
KEEP_ALL: Final = Loss(pages=1.0, names=1.0, torn=0.0, whole_files=False)


def draw_loss(random: Random) -> Loss:
    """Pick a bias: the extremes find other bugs than the middle does."""
    return Loss(
        pages=random.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0)),
        names=random.choice((0.0, 0.0, 0.5, 1.0)),
        torn=random.choice((0.0, 0.0, 0.3)),
        whole_files=random.random() < 0.4,
    )


class Inode:
    """One file: its cache, its durable bytes (zero-extended to equal length), its lengths."""

    __slots__ = (
        "allocated", "cache", "durable", "failed", "flips", "lengths", "mappings", "modified_ms",
        "number", "sync_ended", "syncs_begun",
    )  # fmt: skip

    def __init__(self, number: int, size: int, modified_ms: int) -> None:
        self.number = number
        self.cache = bytearray(size)
        self.durable = bytearray(size)
        # Every length since the last sync, the synced one first; a power cut picks one of them.
        self.lengths = [0, size] if size else [0]
        self.allocated = bytearray(page_count(size))
        self.failed: dict[int, bytes] = {}
        self.flips: list[tuple[int, int, int]] = []
        """Of each flipped bit the number of the last sync that had begun, its byte and its mask."""
        self.modified_ms = modified_ms
        self.syncs_begun = self.sync_ended = 0

    def extend(self, size: int) -> None:
        more = size - len(self.cache)
        if more <= 0:
            return
        try:
            self.cache.extend(bytes(more))
        except BufferError as error:
            raise OSError(
                errno.EOPNOTSUPP, "the simulated disk cannot extend a file that is mapped"
            ) from error
        self.durable.extend(bytes(more))
        self.allocated.extend(bytes(page_count(size) - len(self.allocated)))
        self.lengths.append(size)

    def dirtypage_count(self) -> list[int]:
        """Pages whose cache and durable bytes differ and that a sync would write."""
        if self.cache == self.durable:
            return []
        cache, durable = self.cache, self.durable
        found = [
            start // PAGE
            for start in range(0, len(cache), PAGE)
            if cache[start : start + PAGE] != durable[start : start + PAGE]
        ]
        return [page for page in found if not self._is_called_clean(page)] if self.failed else found

    def _is_called_clean(self, page: int) -> bool:
        # A store through a mapping dirties the page again; we see it because the bytes changed.
        return self.failed.get(page) == bytes(self.cache[page * PAGE : (page + 1) * PAGE])

    def write_back(self, page: int) -> None:
        span = slice(page * PAGE, (page + 1) * PAGE)
        self.durable[span] = self.cache[span]
        self.failed.pop(page, None)

    def sync(self) -> None:
        if self.failed:
            for page in self.dirtypage_count():
                self.write_back(page)
        else:
            self.durable[:] = self.cache
        self.lengths = [len(self.cache)]

    def begin_sync(self) -> Callable[[], None]:
        """Begin a sync; return a function that ends it: the bytes of this moment are durable
        then."""
        self.syncs_begun += 1
        number, image = self.syncs_begun, bytearray(self.cache)
        dirty = self.dirtypage_count() if self.failed else None

        def end() -> None:
            if number > self.sync_ended:  # else a later one has ended, with newer bytes
                self.sync_ended = number
                for begun, at, mask in self.flips:
                    if begun >= number and at < len(image):
                        image[at] ^= mask
                if dirty is None:
                    self.durable[: len(image)] = image
                for page in dirty or ():
                    span = slice(page * PAGE, (page + 1) * PAGE)
                    self.durable[span] = image[span]
                    self.failed.pop(page, None)
                behind = [length for length in self.lengths if length > len(image)]
                self.lengths = [len(image), *behind]

        return end

    def flip(self, at: int, bit: int) -> None:
        """Flip a bit in the cache and on the disk; a sync under way does not repair it."""
        self.cache[at] ^= 1 << bit
        self.durable[at] ^= 1 << bit
        self.flips.append((self.syncs_begun, at, 1 << bit))

    def fail_sync(self) -> None:
        for page in self.dirtypage_count():
            self.failed[page] = bytes(self.cache[page * PAGE : (page + 1) * PAGE])

    def copy(self) -> Inode:
        other = Inode(self.number, 0, self.modified_ms)
        other.cache, other.durable = bytearray(self.cache), bytearray(self.durable)
        other.lengths, other.allocated = list(self.lengths), bytearray(self.allocated)
        other.failed = dict(self.failed)
        return other

    def after_power_cut(self, random: Random, loss: Loss) -> Inode:
        """What the disk holds of this file: synced bytes, and some of the others."""
        image = bytearray(self.durable)
        whole = random.random() < loss.pages if loss.whole_files else None
        for page in self.dirtypage_count():
            kept = whole if whole is not None else random.random() < loss.pages
            if random.random() < loss.torn:
                self._tear(image, page, random)
            elif kept:
                image[page * PAGE : (page + 1) * PAGE] = self.cache[page * PAGE : (page + 1) * PAGE]
        if loss.pages in (0.0, 1.0):
            size = self.lengths[0 if loss.pages == 0.0 else -1]
        else:
            size = random.choice(self.lengths)
        survivor = Inode(self.number, 0, self.modified_ms)
        survivor.cache = image[:size]
        survivor.durable = bytearray(survivor.cache)
        survivor.lengths = [size]
        survivor.allocated = self.allocated[: page_count(size)]
        return survivor

    def _tear(self, image: bytearray, page: int, random: Random) -> None:
        for start in range(page * PAGE, min((page + 1) * PAGE, len(image)), SECTOR):
            if random.random() < 0.5:
                image[start : start + SECTOR] = self.cache[start : start + SECTOR]


class Directory:
    """One directory: the names everyone sees, and the names that are on the disk."""

    __slots__ = ("durable", "names", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


class NameChange(NamedTuple):
    """One unsynced change of names; survives a power cut whole or not at all."""

    gone: tuple[Directory, str] | None
    made: tuple[Directory, str, Inode | Directory] | None

    def touches(self, directory: Directory) -> bool:
        return (self.gone is not None and self.gone[0] is directory) or (
            self.made is not None and self.made[0] is directory
        )

    def apply(self) -> None:
        if self.gone is not None:
            self.gone[0].durable.pop(self.gone[1], None)
        if self.made is not None:
            self.made[0].durable[self.made[1]] = self.made[2]


def page_count(size: int) -> int:
    """Pages that size bytes take."""
    return (size + PAGE - 1) // PAGE
