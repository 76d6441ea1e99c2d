from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tidemark
from drills.ledger import Place
from drills.log_reading import first_difference, key_of, queue_table, read_log
from tidemark.testing import LocalStore

TOPIC = "drill"
COUNT = 20


@pytest.fixture
async def store_dir(tmp_path: Path) -> Path:
    with LocalStore(tmp_path / "one") as store:
        async with tidemark.connect(store.url) as mq:
            await mq.create_topic(TOPIC, queues=2)
            for number in range(COUNT):
                await mq.send(TOPIC, f"0.{number} ...".encode(), queue=number % 2)
            await mq.send("another", b"0.99 ...")
    return store.store_dir


def test_a_message_of_the_workload_is_known_by_its_body_up_to_the_first_space() -> None:
    assert key_of(b"3.141 ......") == "3.141"
    assert len(key_of(b"x" * 500)) <= 40


async def test_the_log_gives_every_message_of_the_topic_in_physical_order(store_dir: Path) -> None:
    log = read_log(store_dir, TOPIC)
    assert [stored.key for stored in log.messages] == [f"0.{number}" for number in range(COUNT)]
    assert log.messages[3].place == Place(1, 1)
    offsets = [stored.physical_offset for stored in log.messages]
    assert offsets == sorted(offsets)
    assert log.end > offsets[-1]
    assert log.epochs == [], "a standalone node has no epochs"


async def test_a_log_can_be_read_up_to_an_offset(store_dir: Path) -> None:
    whole = read_log(store_dir, TOPIC)
    until = whole.messages[7].physical_offset
    assert read_log(store_dir, TOPIC, until).messages == whole.messages[:7]


async def test_logs_are_compared_byte_by_byte_up_to_an_offset(
    store_dir: Path, tmp_path: Path
) -> None:
    other, end = tmp_path / "other", read_log(store_dir, TOPIC).end
    shutil.copytree(store_dir, other, symlinks=True)
    assert first_difference(store_dir, other, end) is None
    at = end - 100
    with (other / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    assert first_difference(store_dir, other, end) == at
    assert first_difference(store_dir, other, at) is None


async def test_a_log_file_that_is_missing_is_a_difference(store_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(store_dir, other, symlinks=True)
    (other / "commitlog" / f"{0:020d}").unlink()
    assert first_difference(store_dir, other, 1000) == 0


async def test_equal_stores_have_equal_queues(store_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(store_dir, other, symlinks=True)
    assert queue_table(store_dir) == queue_table(other)
    assert any(f'"topic":"{TOPIC}"' in line for line in queue_table(store_dir))
