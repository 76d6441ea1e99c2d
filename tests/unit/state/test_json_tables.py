"""Our state in RocketMQ's files: nothing of ours is lost there, and nothing of RocketMQ's here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.os_disk import OsDisk
from shared.state.json_cache import GROUPS_FILE, LEVELS_FILE, OFFSETS_FILE, JsonCache
from shared.state.json_tables import group_entry_of, group_of, offsets_of, offsets_table
from shared.state.records import GroupConfig
from tests.support.sim_disk import SimDisk
from tidemark.formats.metadata_json import (
    END_SIZE,
    ConsumerOffsetsTable,
    Covered,
    DataVersion,
    DelayOffsetsTable,
    GroupEntry,
    GroupsTable,
    TopicEntry,
    TopicsTable,
    consumer_offsets_text,
    delay_offsets_text,
    ends_as_ours,
    groups_text,
    parse_groups,
    topics_text,
)

CONFIG = Path("/store/config")
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
GROUPS = st.builds(
    GroupConfig,
    name=TEXT,
    order=st.booleans(),
    broadcast=st.booleans(),
    start=st.sampled_from(["first", "last"]) | st.integers(0, 2**53),
    retry_max=I32,
    retry_queues=I32,
    lag_objective_ms=st.none() | st.integers(0, 2**53),
    consume_enabled=st.booleans(),
    consume_from_min_enabled=st.booleans(),
    broadcast_enabled=st.booleans(),
    broker_id=I32,
    which_broker_when_slow=I32,
    notify_members_changed=st.booleans(),
    sys_flag=I32,
    consume_timeout_min=I32,
    attributes=st.dictionaries(TEXT, TEXT, max_size=2),
    retry_policy=st.sampled_from(['{"type":"CUSTOMIZED"}', '{\n\t"type":"EXPONENTIAL"\n}']),
    forbidden=st.dictionaries(TEXT, I32, max_size=2),
    deleted=st.just(False),
)


@given(GROUPS)
def test_a_group_of_ours_comes_back_from_rocketmqs_file(group: GroupConfig) -> None:
    table = GroupsTable(
        DataVersion(), {group.name: group_entry_of(group)}, {group.name: dict(group.forbidden)}
    )
    read = parse_groups(groups_text(table))
    assert group_of(read.groups[group.name], read.forbidden[group.name]) == group


def test_rocketmqs_fields_of_a_group_are_written_back_unchanged() -> None:
    entry = GroupEntry(
        "g",
        consume_enable=False,
        consume_message_orderly=True,
        retry_max=3,
        attributes={"priority.factor": "2", "tidemark.start": "nonsense"},
        retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}},
    )
    group = group_of(entry, {"t": 1})
    assert group.start == "first"
    assert group_entry_of(group) == entry._replace(attributes={"priority.factor": "2"})


@pytest.mark.parametrize("value", ["", "-1", "1e3", "9" * 17, "٣"])
def test_an_attribute_that_is_no_number_means_none(value: str) -> None:
    entry = GroupEntry("g", attributes={"tidemark.lag_objective_ms": value})
    assert group_of(entry, {}).lag_objective_ms is None


def test_offsets_that_rocketmq_calls_unknown_are_left_out() -> None:
    table = {("t", "g"): {0: 12, 1: -1, 2**31: 5}, ("u", "g"): {3: 0}, ("t", "h"): {0: -1}}
    offsets = offsets_of(table)
    assert offsets == {"g": {("t", 0): 12, ("u", 3): 0}}
    assert offsets_table(offsets.items()) == {("t", "g"): {0: 12}, ("u", "g"): {3: 0}}


def test_all_four_files_are_written_and_are_ours() -> None:
    cache = JsonCache(SimDisk(), CONFIG)
    assert not cache.is_foreign
    covered = Covered(0, 9)
    cache.write_groups([GroupConfig("b"), GroupConfig("a")], covered=covered, now_ms=1)
    cache.write_levels({3: 1, 1: 2}, covered=covered, now_ms=1)
    for offset in (1, 2, 3):
        moved = [("g", {("t", 0): offset})]
        version = cache.write_offsets(moved, covered=covered, now_ms=offset)
        assert version == DataVersion(offset, offset)
    assert not cache.is_foreign
    groups, offsets, levels = (
        cache.read(GROUPS_FILE),
        cache.read(OFFSETS_FILE),
        cache.read(LEVELS_FILE),
    )
    assert groups is not None
    assert offsets is not None
    assert levels is not None
    assert list(groups.groups) == ["a", "b"]
    assert offsets.offsets == {("t", "g"): {0: 3}}
    assert list(levels.offsets) == [1, 3]
    assert cache.read_foreign_offsets(state_known=False) is None


def test_a_file_replaced_by_another_program_is_read_again_for_its_version() -> None:
    disk = SimDisk()
    cache, rocketmq = JsonCache(disk, CONFIG), JsonCache(disk, CONFIG)
    cache.write_levels({1: 1}, covered=Covered(0, 0), now_ms=1)
    for _ in range(12):
        rocketmq.write_levels({1: 100_000}, covered=Covered(0, 0), now_ms=1)
    assert cache.write_levels({1: 2}, covered=Covered(0, 0), now_ms=2).counter == 14


@pytest.mark.parametrize("keyed", [True, False])
def test_the_owner_of_a_file_is_at_its_end_whatever_its_names_are(*, keyed: bool) -> None:
    name = "tidemark"
    covered = Covered(3, 2**63 - 1) if keyed else None
    version = DataVersion()
    topics = topics_text(TopicsTable(version, {name: TopicEntry(name)}, covered))
    assert not ends_as_ours(topics.encode()[-END_SIZE:]), "its table sorts behind our key"
    texts = (
        groups_text(GroupsTable(version, {name: GroupEntry(name)}, {name: {name: 1}}, covered)),
        consumer_offsets_text(ConsumerOffsetsTable(version, {(name, name): {0: 1}}, covered)),
        delay_offsets_text(DelayOffsetsTable(version, {1: 1}, covered)),
    )
    for text in texts:
        assert ends_as_ours(text.encode()[-END_SIZE:]) == keyed
        assert not ends_as_ours(text.encode()[-END_SIZE:-1])
        assert not ends_as_ours(text.encode()[-END_SIZE:] + b"}")


def test_a_directory_in_the_place_of_a_file_has_no_owner(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").mkdir()
    assert not JsonCache(OsDisk(), tmp_path).is_foreign
