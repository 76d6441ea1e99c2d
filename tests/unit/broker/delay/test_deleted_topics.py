"""A group is deleted and created again while its retries wait: from groups to the log and back."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from services.broker.groups.configs import GroupConfigs, GroupsLog
from services.broker.groups.offsets import Offsets, OffsetsLog
from services.broker.state.state_replay import replay
from services.broker.state.topics import Topics
from tests.support.delayed_store import DelayedStore


class KilledHere(Exception):
    """The process is killed here: nothing after this runs."""


class _Topics(Topics):
    is_killed = False

    async def delete_system(self, name: str) -> None:
        if self.is_killed:
            raise KilledHere
        await super().delete_system(name)


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_new_group_gets_none_of_the_retries_that_wait_for_a_deleted_one(
    tmp_path: Path, has_snapshot: bool, is_killed: bool
) -> None:
    """1. Messages of a group wait for a retry; 2. the group is deleted, and perhaps a kill comes
    before its retry topic is; 3. a consumer that still runs joins; 4. the retries are due."""
    store = DelayedStore(tmp_path)

    def flushed() -> int:
        return int(store.appender.flushed)

    topics = _Topics(store.state, store, store.queue_offsets, flushed=flushed)
    offsets = Offsets(store.state, cast(OffsetsLog, store), flushed=flushed)
    log = cast(GroupsLog, store)
    configs = GroupConfigs(store.state, log, topics, offsets, flushed=flushed)
    await configs.ensure("g")
    retry_topic = await configs.retry_topic("g")
    store.wait_level(b"old", 1, topic=retry_topic)
    store.wait_until(b"old, for a time", store.now_ms + 1000, topic=retry_topic)
    topics.is_killed = is_killed
    try:
        await configs.delete("g")
    except KilledHere:
        assert is_killed
    topics.is_killed = False
    if has_snapshot:
        store.append_offsets_now(store.state.snapshot_records(flushed(), 4096))
        store.dispatch()
        replayed = replay(store.queues, store.reader, store.dispatched())
        assert replayed.snapshots == 1
        store.state.become(replayed)
    await configs.ensure("g")
    assert await configs.retry_topic("g") == retry_topic
    store.wait_level(b"new", 1, topic=retry_topic)
    store.state.become(replay(store.queues, store.reader, store.dispatched()))
    store.now_ms += 5000
    await store.turn()
    assert store.delivered(retry_topic) == [b"new"]
    store.close()
