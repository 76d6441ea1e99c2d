"""The sizes of a store's files: configured, recorded in tidemark.json, or taken from the files.

Sizes determine the location of every byte of the store, and the files themselves do not contain
them (docs/formats.md, section 1). So they are recorded once in ``tidemark.json`` and compared at
every start; for a store that RocketMQ created they are measured. Opens nothing for writing.
Used by ``store_dir`` before any file with messages is opened.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from shared.files.disk import Disk, read_whole
from shared.files.index_geometry import geometry_of
from shared.runtime.config import unless_read
from tidemark.errors import DamagedFile, StoreFormatUnknown, StoreSizesDiffer
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import parse_index_name, parse_offset_name
from tidemark.formats.index_file import Geometry
from tidemark.offsets import UNIT_SIZE

STORE_FORMAT: Final = 1
"""Version of the directory as a whole; a store with a later version is refused."""
Adopting = Literal["clean", "unclean"]
"""How RocketMQ left a store that is being adopted: its recovery differs (section 8)."""
COMMIT_LOG_FILE_SIZE_MIN: Final = 4096
GROUP_MARKER: Final = Path("ha/identity")
"""Path below the store's root that only a node of a group has."""
CONFIRM_SLOTS: Final = {
    "flushed": Slot.FLUSHED,
    "written": Slot.WRITTEN,
    "confirmed": Slot.CONFIRM,
}
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse "1s 5s 10m 2h" into delays in ms, level 1 first. Raises ValueError naming the part."""
    delays = []
    for part in text.split():
        unit = DELAY_UNITS_MS.get(part[-1])
        if unit is None or not part[:-1].isdigit():
            raise ValueError(f"delay level {part!r} is not a number followed by s, m, h or d")
        delays.append(int(part[:-1]) * unit)
    return tuple(delays)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes and format options of a store's files, and mapping limits. Sizes in bytes."""

    commit_log_file_size: int = 1 << 30
    """Small: many files and fillers. Large: coarse retention, slow creation of files."""
    consume_queue_file_size: int = 6_000_000
    """Rounded up to whole units of 20 bytes."""
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    record_crc: bool = True
    """Write the whole-record CRC property. Off: byte-identical to RocketMQ's default."""
    visible_after: Literal["flushed", "written", "confirmed"] = "flushed"
    """"written" shows consumers records that a power cut can lose, as RocketMQ does. "confirmed" is
    required for a node of a group, and invalid for others."""
    mapped_files_max: int = 64
    """Commit log files mapped at a time. Small: frequent remapping under random reads."""
    queue_files_mapped_max: int = 512
    """Queue files mapped at a time; each needs a descriptor."""
    index_enabled: bool = True
    delay_levels: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        units = -(-self.consume_queue_file_size // UNIT_SIZE)
        object.__setattr__(self, "consume_queue_file_size", units * UNIT_SIZE)

    def broken_rules(self) -> Iterator[str]:
        """Yield rules that a service enforces; tools may open a store that breaks them."""
        yield from unless_read("store.delay_levels", lambda: parse_delay_levels(self.delay_levels))
        if self.commit_log_file_size < COMMIT_LOG_FILE_SIZE_MIN:
            yield (
                f"store.commit_log_file_size is {self.commit_log_file_size}, less than "
                f"{COMMIT_LOG_FILE_SIZE_MIN} bytes"
            )

    @property
    def confirm_slot(self) -> Slot:
        """The slot of the position up to which records are visible to consumers."""
        return CONFIRM_SLOTS[self.visible_after]

    @property
    def index_geometry(self) -> Geometry:
        """Slots and entries of one index file."""
        return Geometry(slots=self.index_slots, entries=self.index_entries)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delays in ms, level 1 first."""
        return parse_delay_levels(self.delay_levels)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes recorded in ``tidemark.json``."""
        return {
            "commit_log_file_size": self.commit_log_file_size,
            "consume_queue_file_size": self.consume_queue_file_size,
            "index_slots": self.index_slots,
            "index_entries": self.index_entries,
        }


@dataclass(frozen=True)
class LocalStoreConfig(StoreConfig):
    """The profile ``local``, the same for every service: small files, created within a second."""

    commit_log_file_size: int = 64 << 20
    index_slots: int = 50_000
    index_entries: int = 200_000


def describe(
    config: StoreConfig, *, adopting: Adopting | None = None, delay_levels: Sequence[str] = ()
) -> bytes:
    """Return the content of tidemark.json. adopting: set for a store of RocketMQ until its recovery
    is finished. delay_levels: settings that the broker has run with, the latest last.
    """
    content: dict[str, object] = {"format": STORE_FORMAT, **config.sizes}
    if delay_levels:
        content["delay_levels"] = list(delay_levels)
    if adopting is not None:
        content["adopting"] = adopting
    return (json.dumps(content, indent=2) + "\n").encode()


def described_adopting(disk: Disk, path: Path) -> Adopting | None:
    """Return the unfinished adoption recorded in tidemark.json; None if there is none.

    It is recorded because several services open a store, and only the first of them finds
    RocketMQ's store without tidemark.json.
    """
    with contextlib.suppress(ValueError):
        values = json.loads(read_whole(disk, path) or b"")
        match values.get("adopting") if isinstance(values, dict) else None:
            case "clean":
                return "clean"
            case "unclean":
                return "unclean"
    return None


def described_delay_levels(disk: Disk, path: Path) -> tuple[str, ...]:
    """Return the delay level settings recorded in tidemark.json, the latest last.

    Empty for RocketMQ's stores, and for ours until a broker of this version has run. Offline tools
    need them: the due time of a delayed message is in its queue unit, not in its record.
    """
    found: list[str] = []
    with contextlib.suppress(ValueError):
        values = json.loads(read_whole(disk, path) or b"")
        levels = values.get("delay_levels") if isinstance(values, dict) else None
        for text in levels if isinstance(levels, list) else []:
            if isinstance(text, str):
                parse_delay_levels(text)
                found.append(text)
    return tuple(found)


def described_sizes(disk: Disk, path: Path, names: Iterable[str]) -> dict[str, int] | None:
    """Return the sizes recorded in the tidemark.json at path; None if there is no such file. Raises
    StoreFormatUnknown, DamagedFile."""
    raw = read_whole(disk, path)
    if raw is None:
        return None
    version: object = None
    sizes: dict[str, object] = {}
    with contextlib.suppress(ValueError):
        values = json.loads(raw)
        if isinstance(values, dict):
            version = values.get("format")
            sizes = {name: values.get(name) for name in names}
    if type(version) is int and version != STORE_FORMAT:
        raise StoreFormatUnknown(
            f"{path} has store format {version}; this version supports only {STORE_FORMAT}. "
            "Nothing was changed.",
            "Start the version that wrote the store, or a later one.",
            path=path,
            found=version,
            known=STORE_FORMAT,
        )
    found = {name: size for name, size in sizes.items() if type(size) is int}
    if type(version) is not int or len(found) < len(sizes):
        raise DamagedFile(
            f"{path} does not describe a store: {raw[:80]!r}. No message depends on it; "
            "nothing was changed.",
            "Remove the file; the sizes are then taken from the files of the store.",
            path=path,
        )
    return found


def compare_sizes(
    found: dict[str, int],
    config: StoreConfig,
    path: Path,
    files: Mapping[str, Path] | None = None,
) -> None:
    """Raise StoreSizesDiffer, naming both, if a found size differs from the configured one. files:
    by name, the file that a size was taken from; it may have been cut."""
    configured = config.sizes | {"index_file_size": config.index_geometry.size}
    differing = [name for name, size in found.items() if configured[name] != size]
    if differing:
        names = ", ".join(
            f"{name} is {found[name]} in the store and {configured[name]} as configured"
            for name in differing
        )
        taken = [str(files[name]) for name in differing if files and name in files]
        advice = "Configure the store's own sizes, or choose another directory."
        if taken:
            names += f"; the store's is the size of {' and of '.join(taken)}"
            advice += " A file that is shorter than the others of its directory was cut."
        raise StoreSizesDiffer(
            f"{path}: {names}. Nothing was changed.",
            advice,
            path=path,
            found={name: found[name] for name in differing},
            configured={name: configured[name] for name in differing},
        )


def existing_sizes(disk: Disk, root: Path, files: dict[str, Path] | None = None) -> dict[str, int]:
    """Return the sizes of a store without tidemark.json, from the first file of each kind.

    Keys: commit_log_file_size, consume_queue_file_size, index_slots and index_entries, or only
    index_file_size if no index file reveals the two; a kind without files has no key. Empty files
    are ignored: RocketMQ leaves one behind when it is killed while creating it. files: receives, by
    key, the file whose length is the size.
    """
    found: dict[str, int] = {}
    files = {} if files is None else files

    def take(key: str, directory: Path) -> None:
        for entry in disk.list_directory(directory):
            if key in found or entry.is_directory or parse_offset_name(entry.name) is None:
                continue
            facts = disk.stat(directory / entry.name)
            if facts is not None and facts.size > 0:
                found[key], files[key] = facts.size, directory / entry.name

    take("commit_log_file_size", root / "commitlog")
    found |= _index_sizes(disk, root / "index", files)
    for topic in disk.list_directory(root / "consumequeue"):
        for queue in disk.list_directory(root / "consumequeue" / topic.name):
            if "consume_queue_file_size" in found:
                return found
            if queue.is_directory:
                take("consume_queue_file_size", root / "consumequeue" / topic.name / queue.name)
    return found


def _index_sizes(disk: Disk, directory: Path, files: dict[str, Path]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in disk.list_directory(directory):
        if entry.is_directory or parse_index_name(entry.name) is None:
            continue
        facts = disk.stat(directory / entry.name)
        if facts is None or facts.size == 0:
            continue
        geometry = geometry_of(disk, directory / entry.name)
        if geometry is not None:
            return {"index_slots": geometry.slots, "index_entries": geometry.entries}
        sizes.setdefault("index_file_size", facts.size)
        files.setdefault("index_file_size", directory / entry.name)
    return sizes


def config_of(disk: Disk, root: Path, config: StoreConfig) -> StoreConfig:
    """Return config adapted to the store at root: sizes, delay levels, and whether it belongs to a
    group; for tools that accept any store.

    Slots and entries of an index stay as configured if neither tidemark.json nor an entry in an
    index file reveals them. Raises StoreFormatUnknown, DamagedFile.
    """
    found = described_sizes(disk, root / "tidemark.json", config.sizes)
    sizes = config.sizes | (existing_sizes(disk, root) if found is None else found)
    grouped = disk.stat(root / GROUP_MARKER) is not None
    levels = described_delay_levels(disk, root / "tidemark.json")
    return replace(
        config,
        visible_after="confirmed" if grouped else config.visible_after,
        delay_levels=levels[-1] if levels else config.delay_levels,
        commit_log_file_size=sizes["commit_log_file_size"],
        consume_queue_file_size=sizes["consume_queue_file_size"],
        index_slots=sizes["index_slots"],
        index_entries=sizes["index_entries"],
    )
