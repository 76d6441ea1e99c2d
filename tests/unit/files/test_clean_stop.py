"""A clean stop of a node: queues of deleted topics are removed, at no cost if there are none."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.files.clean_stop import mark_clean_if_last
from shared.files.deleted_queues import drop_deleted_queues
from shared.files.disk import DirectoryEntry
from shared.files.os_disk import OsDisk
from shared.state.json_cache import JsonCache
from shared.state.values import TopicConfig
from tests.support.small_store import SmallStore
from tidemark.errors import ReadFailed, StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.formats.metadata_json import Covered

NOW_MS = 1_700_000_000_000


def stopped(root: Path, *, deleted: bool) -> SmallStore:
    """A store with the queues orders/0, orders/1 and bills/0, whose processes have stopped."""
    small = SmallStore(root)
    for topic, queue in (("orders", 0), ("orders", 1), ("bills", 0)):
        small.put(topic, queue)
    small.dispatch(durable=True)
    small.publish_totals(3)
    small.positions.publish(Slot.REPUT_GENERATION, small.positions.get(Slot.GENERATION))
    bills = TopicConfig("bills", 1, 1)._replace(deleted=deleted, min_offsets={0: 1})
    JsonCache(small.store.disk, small.store.config_dir).write_topics(
        [TopicConfig("orders", 2, 2), bills], covered=Covered(0, small.end), now_ms=NOW_MS
    )
    small.store.abort_path.touch()
    return small


@pytest.mark.parametrize("deleted", [False, True])
def test_only_queues_of_deleted_topics_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    small = stopped(tmp_path / "store", deleted=deleted)
    listed: list[str] = []
    real = OsDisk.list_directory

    def list_directory(self: OsDisk, path: Path) -> Sequence[DirectoryEntry]:
        if "consumequeue" in path.parts:
            listed.append(path.name)
        return real(self, path)

    monkeypatch.setattr(OsDisk, "list_directory", list_directory)
    mark_clean_if_last(small.store, small.positions)
    assert not small.store.abort_path.exists()
    assert small.queue_file("bills", 0, 0).exists() is not deleted
    assert small.queue_file("orders", 0, 0).exists()
    assert "orders" not in listed
    assert bool(listed) is deleted
    small.close()


def test_batch_queues_of_deleted_topics_go_unless_they_have_a_later_message(
    tmp_path: Path,
) -> None:
    small = stopped(tmp_path / "store", deleted=True)
    for topic in ("gone", "newer"):
        small.put_batch([b"body"] * 4, topic)
    small.put_batch([b"body"], "newer")
    small.dispatch(durable=True)
    small.publish_totals(3 + 1 + 2)
    topics = [
        TopicConfig(name, 1, 1)._replace(deleted=True, min_offsets={0: 4})
        for name in ("gone", "newer")
    ]
    JsonCache(small.store.disk, small.store.config_dir).write_topics(
        topics, covered=Covered(0, small.end), now_ms=NOW_MS
    )
    assert drop_deleted_queues(small.store, small.positions) == 1
    assert [path.name for path in small.store.batch_queues_dir.iterdir()] == ["newer"]
    assert small.positions.get(Slot.RESUME_UNITS) == 3 + 2, "units, not messages"
    small.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), ReadFailed("no")])
def test_an_error_of_the_disk_leaves_the_marker_and_does_not_end_the_stop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OSError | StoreError,
) -> None:
    small = stopped(tmp_path / "store", deleted=True)

    def fails(self: OsDisk, path: Path) -> None:
        assert "consumequeue" in path.parts
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "unlink", fails)
        mark_clean_if_last(small.store, small.positions)
    assert small.store.abort_path.exists()
    assert [each.__dict__["event"] for each in caplog.records] == ["not-clean"]
    mark_clean_if_last(small.store, small.positions)  # its locks were released
    assert not small.store.abort_path.exists()
    small.close()
