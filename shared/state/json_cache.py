"""The JSON files in config/: caches of our state for RocketMQ and people, and RocketMQ's state.

The log holds the authoritative state (``shared.state.state``). We write the files for a RocketMQ
broker that opens the store later, and read them to take over what RocketMQ wrote. A file with a
``tidemark`` key is ours and contains nothing new; a file without it was written by RocketMQ.

Files are replaced as RocketMQ does it (docs/formats.md, section 15.1): the old file becomes
``.bak``, then the new file appears complete under the name. At every instant one of the two is
complete. Readers take the ``.bak`` if the file is missing, empty or damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from shared.files.disk import Disk, read_whole, write_atomically
from shared.state.json_tables import (
    config_of,
    entry_of,
    group_entry_of,
    group_of,
    offsets_of,
    offsets_table,
)
from shared.state.records import GroupConfig, TopicConfig
from shared.state.typed_fields import I32_MAX
from shared.state.values import TimerMark
from tidemark.errors import DamagedFile, StrayFile
from tidemark.formats import metadata_json, timer_check
from tidemark.formats.metadata_json import (
    ConsumerOffsetsTable,
    Covered,
    DataVersion,
    DelayOffsetsTable,
    GroupsTable,
    MetadataUnreadable,
    TopicsTable,
)
from tidemark.offsets import Queue

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
CONSUMER_OFFSETS: Final = "consumerOffset.json"
DELAY_OFFSETS: Final = "delayOffset.json"
TIMER_CHECK: Final = "timercheck"
CLOCKS_DIFFER_MS: Final = 60_000
"""Tolerated lead of a RocketMQ broker's clock over ours. A damaged ``timercheck`` with a time far
ahead would mark everything that waits as delivered."""
QUEUE_OFFSET_MAX: Final = (1 << 63) - 1
FILE_SIZE_MAX: Final = 256 << 20
"""A larger file counts as damaged, because a file is read into memory whole."""


class CoveredTable(Protocol):
    """The members that all tables have."""

    @property
    def version(self) -> DataVersion:
        """RocketMQ's version stamp."""

    @property
    def covered(self) -> Covered | None:
        """End of the log that the file covers; None if the file is not ours."""


Table = TypeVar("Table", bound=CoveredTable)


class JsonFile(NamedTuple, Generic[Table]):
    """One of the files: its name, and how it is read and written."""

    name: str
    parse: Callable[[str], Table]
    text: Callable[[Table], str]


TOPICS_FILE: Final = JsonFile(TOPICS, metadata_json.parse_topics, metadata_json.topics_text)
GROUPS_FILE: Final = JsonFile(GROUPS, metadata_json.parse_groups, metadata_json.groups_text)
OFFSETS_FILE: Final = JsonFile(
    CONSUMER_OFFSETS, metadata_json.parse_consumer_offsets, metadata_json.consumer_offsets_text
)
LEVELS_FILE: Final = JsonFile(
    DELAY_OFFSETS, metadata_json.parse_delay_offsets, metadata_json.delay_offsets_text
)


class _Facts(NamedTuple):
    """File attributes that change when a file is replaced or written to."""

    inode: int
    size: int
    modified_ms: int


class ForeignTables(NamedTuple):
    """The contents of RocketMQ's files; None for a file that is ours or missing."""

    topics: list[TopicConfig] | None = None
    groups: list[GroupConfig] | None = None
    offsets: Mapping[str, Mapping[Queue, int]] | None = None
    levels: Mapping[int, int] | None = None
    """Delay level -> next queue offset to deliver."""
    timer: TimerMark | None = None
    """Messages that RocketMQ's timer has delivered."""


class JsonCache:
    """The files of one store's config directory."""

    def __init__(self, disk: Disk, config_dir: Path) -> None:
        self._disk = disk
        self._config_dir = config_dir
        self._written: dict[str, tuple[DataVersion, _Facts]] = {}
        """File -> version and attributes as last written here, so that it is not parsed again.
        """

    # -- read --------------------------------------------------------------------------------------

    def read(self, file: JsonFile[Table]) -> Table | None:
        """Read a file; None if missing. Raises DamagedFile if file and ``.bak`` are bad."""
        problems = []
        for path in (self._config_dir / file.name, self._backup(file.name)):
            try:
                table = self._parsed(path, file)
            except MetadataUnreadable as error:
                problems.append(f"{path}: {error}")
                continue
            if table is not None:
                return table
        if problems:
            raise DamagedFile(
                f"{'; '.join(problems)}. Messages are not affected; what the log and the "
                "queues know is served all the same.",
                "Restore the file from a copy, or remove it and its .bak: what the log knows is "
                "written again.",
                path=self._config_dir / file.name,
            )
        return None

    def read_foreign_topics(self, *, state_known: bool) -> list[TopicConfig] | None:
        """Return the topics as RocketMQ left them; None if the file is ours or missing.

        state_known: the log has already provided topics. Then only the file itself can be
        RocketMQ's, not the ``.bak``: that may be what RocketMQ left before our first write, and
        taking it over again would undo every change since. Raises DamagedFile if only a damaged
        file could provide the topics.
        """
        table = self._foreign(TOPICS_FILE, state_known=state_known)
        return None if table is None else [config_of(each) for each in table.topics.values()]

    def read_foreign_groups(self, *, state_known: bool) -> list[GroupConfig] | None:
        """Return the groups as RocketMQ left them, like ``read_foreign_topics``."""
        table = self._foreign(GROUPS_FILE, state_known=state_known)
        if table is None:
            return None
        return [
            group_of(each, table.forbidden.get(each.name, {})) for each in table.groups.values()
        ]

    def read_foreign_offsets(
        self, *, state_known: bool
    ) -> Mapping[str, Mapping[Queue, int]] | None:
        """Return the consumer offsets as RocketMQ left them, like ``read_foreign_topics``."""
        table = self._foreign(OFFSETS_FILE, state_known=state_known)
        return None if table is None else offsets_of(table.offsets)

    def read_foreign_levels(self, *, state_known: bool) -> Mapping[int, int] | None:
        """Return the delay levels' progress as RocketMQ left it, like ``read_foreign_topics``."""
        table = self._foreign(LEVELS_FILE, state_known=state_known)
        if table is None:
            return None
        return {
            level: at for level, at in table.offsets.items() if 0 < level <= I32_MAX and at >= 0
        }

    def read_timer(self, *, signed: bool, now_ms: int) -> TimerMark | None:
        """Return the progress of RocketMQ's timer; None if it is unknown or not new.

        signed: read the file only if we created it. A file that RocketMQ created may be old, unless
        another file is RocketMQ's as well. now_ms: wall clock time. Raises DamagedFile.
        """
        raw = read_whole(self._disk, self._config_dir / TIMER_CHECK)
        if raw is None or (signed and not timer_check.is_signed(raw)):
            return None
        if timer_check.is_untouched(raw):
            return None
        check = timer_check.decode(raw)
        if check is None:
            return None
        if check.read_to_ms > now_ms + CLOCKS_DIFFER_MS:
            raise DamagedFile(
                f"the time up to which RocketMQ's timer has delivered ({check.read_to_ms} ms in "
                f"{self._config_dir / TIMER_CHECK}) is {check.read_to_ms - now_ms} ms ahead of the "
                f"clock; at most {CLOCKS_DIFFER_MS} ms are believed. Messages that wait for any "
                "time are delivered, perhaps for the second time.",
                "Compare the clock of this machine with that of the RocketMQ broker.",
                path=self._config_dir / TIMER_CHECK,
            )
        return TimerMark(check.read_to_ms, QUEUE_OFFSET_MAX, check.queue_offset)

    @property
    def is_foreign(self) -> bool:
        """Whether RocketMQ was the last writer of at least one of the files."""
        return (
            self._foreign(TOPICS_FILE, state_known=True) is not None
            or self._foreign(GROUPS_FILE, state_known=True) is not None
            or self._foreign(OFFSETS_FILE, state_known=True) is not None
            or self._foreign(LEVELS_FILE, state_known=True) is not None
        )

    # -- write -------------------------------------------------------------------------------------

    def write_topics(
        self, topics: Iterable[TopicConfig], *, covered: Covered, now_ms: int
    ) -> DataVersion:
        """Replace topics.json; deleted topics are listed under our key. Durable on return.

        covered: end of the log up to which the topics are known. Returns the file's new version.
        Raises DiskFull, ReadOnlyDisk, OSError; the old content then still exists, perhaps only as
        ``.bak``.
        """
        listed = sorted(topics, key=lambda topic: topic.name)
        entries = {topic.name: entry_of(topic) for topic in listed if not topic.deleted}
        deleted = {topic.name: dict(topic.min_offsets) for topic in listed if topic.deleted}
        return self._write(
            TOPICS_FILE, now_ms, lambda version: TopicsTable(version, entries, covered, deleted)
        )

    def write_groups(
        self, groups: Iterable[GroupConfig], *, covered: Covered, now_ms: int
    ) -> DataVersion:
        """Replace subscriptionGroup.json, like ``write_topics``."""
        listed = sorted(groups, key=lambda group: group.name)
        entries = {group.name: group_entry_of(group) for group in listed}
        forbidden = {group.name: dict(group.forbidden) for group in listed if group.forbidden}
        return self._write(
            GROUPS_FILE, now_ms, lambda version: GroupsTable(version, entries, forbidden, covered)
        )

    def write_offsets(
        self,
        offsets: Iterable[tuple[str, Mapping[Queue, int]]],
        *,
        covered: Covered,
        now_ms: int,
    ) -> DataVersion:
        """Replace consumerOffset.json, like ``write_topics``. offsets: one item per group."""
        table = offsets_table(offsets)
        return self._write(
            OFFSETS_FILE, now_ms, lambda version: ConsumerOffsetsTable(version, table, covered)
        )

    def write_levels(
        self, levels: Mapping[int, int], *, covered: Covered, now_ms: int
    ) -> DataVersion:
        """Replace delayOffset.json, like ``write_topics``."""
        return self._write(
            LEVELS_FILE,
            now_ms,
            lambda version: DelayOffsetsTable(version, dict(sorted(levels.items())), covered),
        )

    def is_replaced(self, name: str) -> bool:
        """Whether another program has written a file since it was written here."""
        facts, known = self._facts(name), self._written.get(name)
        return facts is not None and known is not None and facts != known[1]

    def _facts(self, name: str) -> _Facts | None:
        stat = self._disk.stat(self._config_dir / name)
        return None if stat is None else _Facts(stat.inode, stat.size, stat.modified_ms)

    def exists(self, name: str) -> bool:
        """Whether a file or its ``.bak`` is not empty."""
        stats = map(self._disk.stat, (self._config_dir / name, self._backup(name)))
        return any(stat is not None and stat.size > 0 for stat in stats)

    # -- one file ----------------------------------------------------------------------------------

    def _foreign(self, file: JsonFile[Table], *, state_known: bool) -> Table | None:
        if self._ends_as_ours(self._config_dir / file.name):
            return None
        table = self._usable(self._config_dir / file.name, file)
        if table is None and not state_known:
            table = self.read(file)
        return None if table is None or table.covered is not None else table

    def _ends_as_ours(self, path: Path) -> bool:
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            end = file.pread(metadata_json.END_SIZE, max(0, file.size - metadata_json.END_SIZE))
        except StrayFile:
            return False
        finally:
            file.close()
        return metadata_json.ends_as_ours(end)

    def _write(
        self, file: JsonFile[Table], now_ms: int, table_of: Callable[[DataVersion], Table]
    ) -> DataVersion:
        name = file.name
        path = self._config_dir / name
        known = self._written.get(name)
        if known is not None and self._facts(name) == known[1]:
            # Unchanged since our write. The largest files take seconds to parse, every 5 seconds.
            previous, is_good = known[0], True
        else:
            table = self._usable(path, file)
            is_good = table is not None
            table = table or self._usable(self._backup(name), file)
            previous = table.version if table else DataVersion()
        version = previous.next(now_ms)
        data = file.text(table_of(version)).encode("utf-8")
        self._written.pop(name, None)
        self._replace(name, data, keep=is_good)
        facts = self._facts(name)
        if facts is not None:
            self._written[name] = version, facts
        return version

    def _backup(self, name: str) -> Path:
        return self._config_dir / f"{name}.bak"

    def _replace(self, name: str, data: bytes, *, keep: bool) -> None:
        path = self._config_dir / name
        self._disk.make_directory(self._config_dir)
        # A damaged file must not replace a good .bak, the only copy until the new file is complete.
        if keep:
            self._disk.rename(path, self._backup(name))
            self._disk.sync_directory(self._config_dir)
        write_atomically(self._disk, path, data)

    def _usable(self, path: Path, file: JsonFile[Table]) -> Table | None:
        try:
            return self._parsed(path, file)
        except MetadataUnreadable:
            return None

    def _parsed(self, path: Path, file: JsonFile[Table]) -> Table | None:
        """Parse a file; None if it is missing or empty, which RocketMQ treats alike."""
        stat = self._disk.stat(path)
        if stat is None or stat.size == 0:
            return None
        if stat.size > FILE_SIZE_MAX:
            raise MetadataUnreadable(f"{stat.size} bytes, more than {FILE_SIZE_MAX}")
        try:
            data = read_whole(self._disk, path)
        except StrayFile:
            raise MetadataUnreadable("a directory") from None
        if data is None:
            return None
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MetadataUnreadable(f"not UTF-8 at byte {error.start}") from None
        return file.parse(text)
