"""Look-ups over a real small store: which messages of a batch a word or an id names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.broker.read.query import Page
from shared.runtime.time_slicer import STEPS_MAX
from tests.support.small_broker import SmallBroker
from tidemark.errors import BadRequest, UnknownMessage
from tidemark.formats.batch import WireMessage

ENTRIES = [
    WireMessage(b"0", b"UNIQ_KEY\x01U0\x02KEYS\x01k0 shared\x02"),
    WireMessage(b"1", b"UNIQ_KEY\x01U1\x02KEYS\x01k1 shared\x02"),
    WireMessage(b"2", b"UNIQ_KEY\x01U2\x02"),
]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SmallBroker]:
    made = SmallBroker(tmp_path)
    await made.topics.create("orders", 1)
    yield made
    made.close()


def bodies(page: Page) -> list[bytes]:
    return [bytes(each.body) for each in page.messages]


async def test_a_key_finds_the_messages_of_a_batch_that_have_it(broker: SmallBroker) -> None:
    batch = broker.send_batch("orders", ENTRIES, unique_id="U0", keys=b"k0 shared k1")
    find = broker.queries.find
    one = await find("orders", "k1", hits_max=9)
    assert [(bytes(each.body), each.queue_offset, each.unique_id) for each in one.messages] == [
        (b"1", 1, "U1")
    ]
    both = await find("orders", "shared", hits_max=1)
    assert (bodies(both), both.size) == ([b"0", b"1"], batch.size)
    assert bodies(await find("orders", "k2", hits_max=9)) == []


async def test_the_unique_id_of_a_batch_finds_all_its_messages(broker: SmallBroker) -> None:
    plain = [WireMessage(b"0"), WireMessage(b"1")]
    broker.send_batch("orders", plain, unique_id="BATCH")
    found = await broker.queries.find("orders", "BATCH", hits_max=9, unique_id_only=True)
    assert bodies(found) == [b"0", b"1"]


async def test_other_work_goes_on_while_a_large_batch_is_taken_apart(broker: SmallBroker) -> None:
    broker.send_batch("orders", [WireMessage(b"")] * 5000, unique_id="BATCH")
    finding = asyncio.create_task(broker.queries.find("orders", "BATCH", hits_max=9))
    turns = 0
    while not finding.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(finding.result().messages) == 5000
    assert turns >= 5000 // STEPS_MAX


async def test_a_unique_id_of_its_own_finds_the_first_message_alone(broker: SmallBroker) -> None:
    broker.send_batch("orders", ENTRIES, unique_id="U0")
    found = await broker.queries.find("orders", "U0", hits_max=9, unique_id_only=True)
    assert bodies(found) == [b"0"]


async def test_a_page_has_batches_and_single_records_in_their_order(broker: SmallBroker) -> None:
    await broker.topics.create("single", 1)
    first = broker.send("single", b"a", pairs={"KEYS": "shared"})
    found = await broker.queries.find("single", "shared", hits_max=9)
    assert (bodies(found), found.size, found.next) == ([b"a"], first.size, None)


async def test_a_batch_is_found_by_the_id_of_its_record(broker: SmallBroker) -> None:
    batch = broker.send_batch("orders", ENTRIES)
    assert broker.queries.by_offset(batch.physical_offset) == batch
    messages = broker.messages
    assert bytes(messages.by_message_id(batch.message_id).body) == b"0"
    assert bytes(messages.by_message_id(batch.message_id.lower(), 2).body) == b"2"
    with pytest.raises(UnknownMessage, match="it holds 0 to 2"):
        messages.by_message_id(batch.message_id, 3)
    with pytest.raises(BadRequest, match="stored as one batch"):
        messages.only_message(batch.message_id)


async def test_a_page_of_a_queue_may_end_inside_a_batch(broker: SmallBroker) -> None:
    broker.send_batch("orders", ENTRIES)
    broker.send_batch("orders", ENTRIES[:1])
    found: list[tuple[int, bytes]] = []
    at, pages = 0, 0
    while at < 4:
        page = broker.messages.page("orders", 0, at, 2)
        found += [(each.queue_offset, bytes(each.body)) for each in page.messages]
        at, pages = page.next_offset, pages + 1
    assert (found, pages) == ([(0, b"0"), (1, b"1"), (2, b"2"), (3, b"0")], 2)
    assert len(broker.messages.page("orders", 0, 0, 0).messages) == 1
