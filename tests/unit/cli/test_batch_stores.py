"""`tidemark store` on stores with batch queues: sound ones, and units with one wrong field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.small_store import SmallStore
from tidemark.cli.main import cli
from tidemark.formats.queue_unit import BATCH_UNIT

BATCHES = 23
"""More than fit into one queue file of a SmallStore."""


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.stdout


def verified(store: Path) -> tuple[int, dict[str, Any]]:
    status, text = run("store", "verify", "--store", store, "-o", "json")
    return status, json.loads(text)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    """A store of batches of 1, 2, 3, … messages, with a single message of another topic between."""
    store = SmallStore(tmp_path / "store")
    for size in range(1, BATCHES + 1):
        store.put_batch([b"body"] * size)
        store.put()
    store.dispatch(durable=True)
    yield store
    store.close()


def test_a_store_with_batches_is_sound(small: SmallStore) -> None:
    status, report = verified(small.store.root)
    assert (status, report["damages"]) == (0, [])
    assert (report["records"], report["units"], report["queues"]) == (2 * BATCHES, 2 * BATCHES, 2)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (0, "the unit is "),
        (1, "the unit is "),
        (2, "the unit is "),
        (3, "another store time, queue offset or size"),
        (4, "another store time, queue offset or size"),
        (5, "another store time, queue offset or size"),
    ],
)
def test_a_wrong_field_of_a_batchs_unit_is_named_by_its_byte(
    small: SmallStore, field: int, problem: str
) -> None:
    number = BATCHES - 1
    in_file = number % 10
    path = small.store.queue_directory("batches", 0).path / f"{number // 10 * 460:020d}"
    content = bytearray(path.read_bytes())
    values = list(BATCH_UNIT.unpack_from(content, in_file * 46))
    values[field] += 1
    BATCH_UNIT.pack_into(content, in_file * 46, *values)
    path.write_bytes(content)
    status, report = verified(small.store.root)
    assert status == 1
    damage = report["damages"][0]
    assert damage["where"] == f"batchconsumequeue/batches/0/{path.name}"
    assert damage["byte"] == in_file * 46
    assert problem in damage["problem"]


def test_dump_shows_how_many_messages_a_record_and_a_queue_have(small: SmallStore) -> None:
    _, text = run("store", "dump", "--store", small.store.root)
    records = [json.loads(line) for line in text.splitlines()]
    sizes = [record["batch_size"] for record in records if record["topic"] == "batches"]
    assert sizes == list(range(1, BATCHES + 1))
    assert {record["batch_size"] for record in records if record["topic"] == "orders"} == {0}
    _, text = run("store", "dump", "--queues", "--store", small.store.root)
    queues = {queue["topic"]: queue for queue in map(json.loads, text.splitlines())}
    assert queues["batches"]["max_offset"] == sum(sizes)
    firsts = [unit["queue_offset"] for unit in queues["batches"]["units"]]
    assert firsts == [sum(sizes[:number]) for number in range(BATCHES)]


def test_repair_counts_the_messages_of_the_batches_that_a_cut_would_lose(small: SmallStore) -> None:
    at = small.put_batch([b"body"] * 5).physical_offset
    small.dispatch(durable=True)
    small.overwrite(at - 50, b"damage")  # in the record before the last batch
    _, text = run("store", "repair", "--dry-run", "--store", small.store.root)
    assert "topic batches queue 0: 5 messages" in text
