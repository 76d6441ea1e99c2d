"""A node on a store of Apache RocketMQ: its topics, groups and offsets, before and after.

The contents of RocketMQ's ``config/`` are served and in the log from the first start on; afterwards
the files still have RocketMQ's shape, entry by entry, with our key beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from shared.state.json_tables import config_of, group_of, offsets_of
from tests.support import golden
from tests.support.log_state import state_in_log
from tests.support.node import Node
from tidemark.formats import metadata_json
from tidemark.formats.json_dialect import loads
from tidemark.formats.metadata_json import (
    ConsumerOffsetsTable,
    DelayOffsetsTable,
    GroupsTable,
    TopicsTable,
)

STORES = [name for name in golden.golden_names() if "metadata" in golden.manifest(name)]
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


class Config(NamedTuple):
    """The four files of one config directory."""

    topics: TopicsTable
    groups: GroupsTable
    offsets: ConsumerOffsetsTable
    delays: DelayOffsetsTable


def config_in(store: Path) -> Config:
    texts = [(store / "config" / name).read_text(encoding="utf-8") for name in FILES]
    return Config(
        metadata_json.parse_topics(texts[0]),
        metadata_json.parse_groups(texts[1]),
        metadata_json.parse_consumer_offsets(texts[2]),
        metadata_json.parse_delay_offsets(texts[3]),
    )


class Taken(NamedTuple):
    """A golden store that a node has opened and left, twice."""

    name: str
    store: Path
    before: Config
    raw_before: dict[str, Any]
    log: str
    """The log of the broker."""
    groups_served: dict[str, Any]
    counters: list[int]
    """Counter in consumerOffset.json's version, after each stop."""


def raw(store: Path, name: str) -> dict[str, Any]:
    return cast(dict[str, Any], loads((store / "config" / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module", params=STORES)
def taken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Taken]:
    name = request.param
    settings = golden.manifest(name)["config"]
    directory = tmp_path_factory.mktemp(name)
    store = golden.unpack(name, directory)
    before, raw_before = config_in(store), {each: raw(store, each) for each in FILES}
    sizes = {
        "commit_log_file_size": settings["mappedFileSizeCommitLog"],
        "consume_queue_file_size": settings["mappedFileSizeConsumeQueue"],
        "index_slots": settings["maxHashSlotNum"],
        "index_entries": settings["maxIndexNum"],
        "delay_levels": settings["messageDelayLevel"],
        "record_crc": False,
    }
    counters = []
    served: dict[str, Any] = {}
    broker = golden.BROKER_AS_IT_WAS
    with Node(directory, store=sizes, broker=broker, store_dir=store) as node:
        for _ in range(2):
            node.start()
            node.wait_ready()
            served = node.request_json("GET", "/v1/groups")[1]
            assert node.stop() == {"broker": 0, "reput": 0}
            counters.append(config_in(store).offsets.version.counter)
        yield Taken(name, store, before, raw_before, node.log_text("broker"), served, counters)


def test_its_topics_groups_and_offsets_are_in_the_log(taken: Taken) -> None:
    state = state_in_log(taken.store)
    for name, entry in taken.before.topics.topics.items():
        assert state.topics[name]._replace(min_offsets={}) == config_of(entry)
    assert state.groups == {
        name: group_of(entry, taken.before.groups.forbidden.get(name, {}))
        for name, entry in taken.before.groups.groups.items()
    }
    assert state.offsets == offsets_of(taken.before.offsets.offsets)
    assert state.start_count == 2


def test_delay_progress_goes_on_from_rocketmqs(taken: Taken) -> None:
    levels = state_in_log(taken.store).delay.levels
    for level, offset in taken.before.delays.offsets.items():
        assert levels[level] >= offset


def test_groups_are_served_as_rocketmq_had_them(taken: Taken) -> None:
    served = {group["group"]: group for group in taken.groups_served["groups"]}
    assert served.keys() == taken.before.groups.groups.keys()
    for name, entry in taken.before.groups.groups.items():
        assert served[name]["retry_max"] == entry.retry_max
        assert served[name]["order"] == entry.consume_message_orderly


def test_the_files_have_the_same_contents_and_are_ours_now(taken: Taken) -> None:
    after = config_in(taken.store)
    assert after.topics.topics.items() >= taken.before.topics.topics.items()
    assert after.groups.groups == taken.before.groups.groups
    assert after.groups.forbidden == taken.before.groups.forbidden
    assert after.offsets.offsets == {
        key: queues for key, queues in taken.before.offsets.offsets.items() if queues
    }
    assert after.delays.offsets.keys() == taken.before.delays.offsets.keys()
    for table in after:
        assert table.covered is not None


@pytest.mark.parametrize("name", FILES)
def test_the_files_have_rocketmqs_shape(taken: Taken, name: str) -> None:
    theirs, ours = taken.raw_before[name], raw(taken.store, name)
    assert ours.keys() == {*theirs, "tidemark"}
    assert ours["dataVersion"].keys() == theirs["dataVersion"].keys()
    for table in theirs.keys() - {"dataVersion", "tidemark"}:
        for key, entry in theirs[table].items():
            assert type(ours[table][key]) is type(entry)
            if isinstance(entry, dict):
                assert ours[table][key].keys() == entry.keys()
    text = (taken.store / "config" / name).read_text(encoding="utf-8")
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":')


def test_they_are_taken_over_once(taken: Taken) -> None:
    assert taken.log.count('"state-taken-over"') == 1
    # The second start had nothing new for the file; it is written once all the same, because a file
    # that a killed node left may be old.
    assert taken.counters == sorted(taken.counters)
