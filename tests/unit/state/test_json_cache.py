"""The JSON caches: read by RocketMQ's rules, and never both lost, whenever the power goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.disk import read_whole, write_atomically
from shared.files.os_disk import OsDisk
from shared.state.json_cache import GROUPS_FILE, LEVELS_FILE, OFFSETS_FILE, TOPICS_FILE, JsonCache
from shared.state.json_tables import config_of, entry_of
from shared.state.records import TopicConfig
from tests.support.sim_disk import SimCrash, SimDisk
from tidemark.errors import DamagedFile
from tidemark.formats import metadata_json
from tidemark.formats.metadata_json import Covered, DataVersion, TopicEntry

CONFIG = Path("/store/config")


def topic(name: str, queues: int = 4) -> TopicConfig:
    return TopicConfig(name, queues, queues)


def put(disk: SimDisk, name: str, data: bytes) -> None:
    disk.make_directory(CONFIG)
    write_atomically(disk, CONFIG / name, data)


def names(cache: JsonCache) -> list[str]:
    table = cache.read(TOPICS_FILE)
    return [] if table is None else sorted(table.topics)


def test_a_written_file_is_read_back_and_the_version_counts() -> None:
    cache = JsonCache(SimDisk(), CONFIG)
    assert cache.read(TOPICS_FILE) is None
    first = cache.write_topics([topic("a")], covered=Covered(0, 50), now_ms=1000)
    second = cache.write_topics([topic("b"), topic("a", 8)], covered=Covered(1, 90), now_ms=2000)
    assert (first, second) == (DataVersion(1, 1000, 0), DataVersion(2, 2000, 0))
    table = cache.read(TOPICS_FILE)
    assert table is not None
    assert table.covered == Covered(1, 90)
    assert [config_of(entry) for entry in table.topics.values()] == [topic("a", 8), topic("b")]


def test_the_old_file_becomes_the_backup() -> None:
    disk = SimDisk()
    cache = JsonCache(disk, CONFIG)
    for name in ("a", "b", "c"):
        cache.write_topics([topic(name)], covered=Covered(0, 0), now_ms=1)
    backup = read_whole(disk, CONFIG / "topics.json.bak")
    assert backup is not None
    assert list(metadata_json.parse_topics(backup.decode()).topics) == ["b"]
    assert [entry.name for entry in disk.list_directory(CONFIG)] == [
        "topics.json",
        "topics.json.bak",
    ]


def test_deleted_topics_are_not_listed() -> None:
    cache = JsonCache(SimDisk(), CONFIG)
    gone = topic("gone")._replace(deleted=True, min_offsets={0: 7})
    cache.write_topics([topic("a"), gone], covered=Covered(0, 0), now_ms=1)
    assert names(cache) == ["a"]
    table = cache.read(TOPICS_FILE)
    assert table is not None
    assert table.deleted == {"gone": {0: 7}}


GOOD = b'{"topicConfigTable":{"good":{}}}'


@pytest.mark.parametrize("bad", [None, b"", b"{", b"\xff\xfe", b"[]"])
def test_the_backup_is_read_where_the_file_is_missing_empty_or_damaged(bad: bytes | None) -> None:
    disk = SimDisk()
    put(disk, "topics.json.bak", GOOD)
    if bad is not None:
        put(disk, "topics.json", bad)
    cache = JsonCache(disk, CONFIG)
    assert names(cache) == ["good"]
    table = cache.read(TOPICS_FILE)
    assert table is not None
    assert table.covered is None  # RocketMQ wrote it


def test_a_damaged_file_does_not_push_out_a_good_backup() -> None:
    disk = SimDisk()
    put(disk, "topics.json.bak", b'{"dataVersion":{"counter":6},"topicConfigTable":{"good":{}}}')
    put(disk, "topics.json", b"{")
    cache = JsonCache(disk, CONFIG)
    version = cache.write_topics([topic("a")], covered=Covered(0, 0), now_ms=5)
    assert version == DataVersion(7, 5, 0)
    assert names(cache) == ["a"]
    disk.unlink(CONFIG / "topics.json")
    assert names(cache) == ["good"]


@pytest.mark.parametrize(
    ("file", "backup"), [(b"{", b"]"), (b"{", None), (None, b"]"), (b"", b"]")]
)
def test_an_unreadable_file_is_named(file: bytes | None, backup: bytes | None) -> None:
    disk = SimDisk()
    for name, data in (("topics.json", file), ("topics.json.bak", backup)):
        if data is not None:
            put(disk, name, data)
    with pytest.raises(DamagedFile) as caught:
        JsonCache(disk, CONFIG).read(TOPICS_FILE)
    message = str(caught.value)
    assert message.startswith("[damaged-file] /store/config/topics.json")
    assert "not JSON" in message
    assert "remove it and its .bak" in message


def test_a_directory_in_the_place_of_the_file_is_damage_like_any_other(tmp_path: Path) -> None:
    # It kept a broker from opening for sends, although the log has everything that is in the file.
    (tmp_path / "topics.json").mkdir()
    cache = JsonCache(OsDisk(), tmp_path)
    assert cache.read_foreign_topics(state_known=True) is None
    with pytest.raises(DamagedFile, match=r"topics\.json: a directory"):
        cache.read(TOPICS_FILE)


def test_a_file_too_large_to_read_is_refused_before_it_is_read() -> None:
    disk = SimDisk()
    disk.make_directory(CONFIG)
    disk.create(CONFIG / "topics.json", (256 << 20) + 1, reserve=False).close()
    with pytest.raises(DamagedFile, match="268435457 bytes, more than 268435456"):
        JsonCache(disk, CONFIG).read(TOPICS_FILE)


def test_the_other_files_of_rocketmq_are_read() -> None:
    disk = SimDisk()
    put(disk, "subscriptionGroup.json", b'{"subscriptionGroupTable":{"G":{"retryMaxTimes":3}}}')
    put(disk, "consumerOffset.json", b'{"offsetTable":{"T@G":{0:12,1:7}}}')
    put(disk, "delayOffset.json.bak", b'{"offsetTable":{1:9}}')
    cache = JsonCache(disk, CONFIG)
    groups, offsets, delays = (
        cache.read(GROUPS_FILE),
        cache.read(OFFSETS_FILE),
        cache.read(LEVELS_FILE),
    )
    assert groups is not None
    assert groups.groups["G"].retry_max == 3
    assert offsets is not None
    assert offsets.offsets == {("T", "G"): {0: 12, 1: 7}}
    assert delays is not None
    assert delays.offsets == {1: 9}
    assert cache.read(TOPICS_FILE) is None


def test_a_topic_of_rocketmq_s_comes_back_as_it_was() -> None:
    entry = TopicEntry("T", 5, 4, 4, "MULTI_TAG", 1, True, {"message.type": "DELAY"})
    assert entry_of(config_of(entry)) == entry


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    cache = JsonCache(OsDisk(), tmp_path / "config")
    for name in ("a", "b"):
        cache.write_topics([topic(name)], covered=Covered(0, 0), now_ms=1)
    assert names(cache) == ["b"]
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_no_power_cut_loses_both_files(seed: int, crash_at: int) -> None:
    """After the cut one finds a state that was written: the last one done, or the one in
    progress."""
    disk = SimDisk(seed)
    cache = JsonCache(disk, CONFIG)
    done = 0
    started = 0
    disk.crash_at = disk.operations + crash_at
    try:
        for n in range(1, 5):
            started = n
            cache.write_topics([topic(f"t{n}")], covered=Covered(0, n), now_ms=n)
            done = n
    except SimCrash:
        pass
    after = disk.power_cut()
    survived = JsonCache(after, CONFIG).read(TOPICS_FILE)
    if survived is None:
        assert done == 0
    else:
        assert list(survived.topics) in ([f"t{done}"], [f"t{started}"])
        assert survived.covered is not None
        again = JsonCache(after, CONFIG)
        again.write_topics([topic("next")], covered=Covered(0, 9), now_ms=9)
        assert names(again) == ["next"]
