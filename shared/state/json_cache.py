"""The JSON files in config/: caches of our state for RocketMQ and people, and its state for us.

What counts is in the log (``shared.state.state``). We write the files for a RocketMQ broker that
opens the store later, and read them to take over what RocketMQ wrote. A file with our ``tidemark``
key is ours and tells nothing new; one without it was written by RocketMQ.

Files are replaced as RocketMQ does (docs/formats.md, section 15.1): the old one becomes ``.bak``,
then the new one appears whole under the name. At every instant one of the two is complete, and
reading takes the ``.bak`` where the file is missing, empty or damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from shared.files.disk import Disk, read_whole, write_atomically
from shared.state.records import TopicConfig
from tidemark.errors import DamagedFile, StrayFile
from tidemark.formats import metadata_json
from tidemark.formats.metadata_json import (
    ConsumerOffsetsTable,
    Covered,
    DataVersion,
    DelayOffsetsTable,
    GroupsTable,
    MetadataUnreadable,
    TopicEntry,
    TopicsTable,
)

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
CONSUMER_OFFSETS: Final = "consumerOffset.json"
DELAY_OFFSETS: Final = "delayOffset.json"
FILE_SIZE_MAX: Final = 256 << 20
"""A larger file is damaged: it would be read into memory whole."""

Table = TypeVar("Table")


class JsonCache:
    """The files of one store's config directory."""

    def __init__(self, disk: Disk, config_dir: Path) -> None:
        self._disk = disk
        self._config_dir = config_dir

    def read_topics(self) -> TopicsTable | None:
        """topics.json; None if there is none. Raises DamagedFile if file and ``.bak`` are bad."""
        return self._read(TOPICS, metadata_json.parse_topics)

    def read_foreign_topics(self, *, state_known: bool) -> list[TopicConfig] | None:
        """The topics as RocketMQ left them; None if the file is ours, or there is none.

        state_known: the log has told topics already. Then only the file itself can be RocketMQ's,
        never the ``.bak``: it may be what RocketMQ left before our first write, and taking it over
        again would undo every change since. Raises DamagedFile if nothing but a damaged file knows.
        """
        table = self._usable(self._config_dir / TOPICS, metadata_json.parse_topics)
        if table is None and not state_known:
            table = self.read_topics()
        if table is None or table.covered is not None:
            return None
        return [config_of(entry) for entry in table.topics.values()]

    def read_groups(self) -> GroupsTable | None:
        """subscriptionGroup.json, like ``read_topics``."""
        return self._read(GROUPS, metadata_json.parse_groups)

    def read_consumer_offsets(self) -> ConsumerOffsetsTable | None:
        """consumerOffset.json, like ``read_topics``."""
        return self._read(CONSUMER_OFFSETS, metadata_json.parse_consumer_offsets)

    def read_delay_offsets(self) -> DelayOffsetsTable | None:
        """delayOffset.json, like ``read_topics``."""
        return self._read(DELAY_OFFSETS, metadata_json.parse_delay_offsets)

    def write_topics(
        self, topics: Iterable[TopicConfig], *, covered: Covered, now_ms: int
    ) -> DataVersion:
        """Replace topics.json; deleted topics are left out. Durable on return.

        covered: up to where in the log the topics are known. Returns the file's new version.
        Raises DiskFull, ReadOnlyDisk, OSError; the old content is then still there, perhaps under
        ``.bak`` alone.
        """
        previous = self._usable(self._config_dir / TOPICS, metadata_json.parse_topics)
        if previous is None:
            previous = self._usable(self._backup(TOPICS), metadata_json.parse_topics)
        version = (previous.version if previous else DataVersion()).next(now_ms)
        entries = {topic.name: entry_of(topic) for topic in topics if not topic.deleted}
        table = TopicsTable(version, dict(sorted(entries.items())), covered)
        self._replace(TOPICS, metadata_json.topics_text(table), metadata_json.parse_topics)
        return version

    def _backup(self, name: str) -> Path:
        return self._config_dir / f"{name}.bak"

    def _replace(self, name: str, text: str, parse: Callable[[str], object]) -> None:
        path = self._config_dir / name
        self._disk.make_directory(self._config_dir)
        # A damaged file must not push a good .bak out: until the new one stands, that one is all.
        if self._usable(path, parse) is not None:
            self._disk.rename(path, self._backup(name))
            self._disk.sync_directory(self._config_dir)
        write_atomically(self._disk, path, text.encode("utf-8"))

    def _read(self, name: str, parse: Callable[[str], Table]) -> Table | None:
        path, backup = self._config_dir / name, self._backup(name)
        problems = []
        for candidate in (path, backup):
            try:
                table = self._parsed(candidate, parse)
            except MetadataUnreadable as error:
                problems.append(f"{candidate}: {error}")
                continue
            if table is not None:
                return table
        if problems:
            raise DamagedFile(
                f"{'; '.join(problems)}. Messages are not affected; topics that have queues are "
                "served all the same.",
                "Restore the file from a copy, or remove it and its .bak: what the log knows is "
                "written again.",
                path=path,
            )
        return None

    def _usable(self, path: Path, parse: Callable[[str], Table]) -> Table | None:
        try:
            return self._parsed(path, parse)
        except MetadataUnreadable:
            return None

    def _parsed(self, path: Path, parse: Callable[[str], Table]) -> Table | None:
        """None for a missing or empty file: RocketMQ treats both as "no such file"."""
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
        return parse(text)


def config_of(entry: TopicEntry) -> TopicConfig:
    """A topic of RocketMQ's as one of ours."""
    return TopicConfig(
        entry.name,
        queues=entry.write_queues,
        read_queues=entry.read_queues,
        perm=entry.perm & 0x7FFFFFFF,
        order=entry.order,
        filter_type=entry.filter_type,
        sys_flag=entry.sys_flag,
        attributes=entry.attributes,
    )


def entry_of(topic: TopicConfig) -> TopicEntry:
    """A topic of ours as RocketMQ lists it."""
    return TopicEntry(
        topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.queues,
        perm=topic.perm,
        filter_type=topic.filter_type,
        sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=topic.attributes,
    )
