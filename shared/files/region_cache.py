"""A bounded number of files mapped at a time; the least recently used is unmapped first.

Several mapped file queues may share one cache, and with it the limit. A returned view stays valid
after its file was dropped from the cache; the memory is unmapped with the last view. Thread-safe.
Step before: ``os_disk`` maps. Step after: readers borrow slices.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing
from pathlib import Path

from shared.files.disk import Disk, MappedRegion
from tidemark.errors import WrongFileSize

Key = tuple[str, int]


class RegionCache:
    """Mapped files by (directory, start offset)."""

    def __init__(self, disk: Disk, mapped_max: int) -> None:
        self._disk = disk
        self._mapped_max = max(1, mapped_max)
        self._regions: OrderedDict[Key, tuple[MappedRegion, memoryview]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> memoryview | None:
        """Return the mapped file's bytes; None if it is not mapped now."""
        with self._lock:
            found = self._regions.get(key)
            if found is None:
                return None
            self._regions.move_to_end(key)
            return found[1]

    def map(self, key: Key, path: Path, size: int, *, writable: bool) -> memoryview:
        """Map the file at path, whose size must be as given. Raises FileNotFoundError,
        WrongFileSize; ReadOnlyDisk if it cannot be opened for writing."""
        with closing(self._disk.open(path, writable=writable)) as file:
            if file.size != size:
                raise wrong_size(path, file.size, size)
            region = file.map(writable=writable)
        # A slice, not the region's own view, which becomes invalid when the region is closed, while
        # readers may still use it. The slice keeps the memory for as long as it is referenced.
        view = region.view[:]
        with self._lock:
            dropped = [self._regions.pop(key, None)]
            self._regions[key] = (region, view)
            while len(self._regions) > self._mapped_max:
                dropped.append(self._regions.popitem(last=False)[1])
        for entry in dropped:
            if entry is not None:
                entry[0].close()
        return view

    def drop(self, key: Key) -> None:
        """Unmap a file that is being removed; does nothing if it is not mapped."""
        with self._lock:
            found = self._regions.pop(key, None)
        if found is not None:
            found[0].close()

    def drop_all(self, directory: str) -> None:
        """Unmap every file of one directory."""
        for key in [key for key in list(self._regions) if key[0] == directory]:
            self.drop(key)


def wrong_size(path: Path, found: int, expected: int) -> WrongFileSize:
    """Return the error for a file whose size differs from its neighbours'."""
    return WrongFileSize(
        f"{path} has {found} bytes, every file in this directory has {expected}. "
        "Nothing was changed.",
        "Configure the store's own sizes; or, if this one file was cut short or copied in part, "
        "copy it again from its source or move it out of the store.",
        path=path,
        found=found,
        expected=expected,
    )
