"""Repeats of sends to batch topics: the messages of a batch are found by the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from services.broker.log.ack_levels import AckLevel
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.send.sender import Sender
from services.broker.state.topics import Topics
from tests.support.small_broker import BORN, SmallBroker
from tests.unit.broker.send.test_batches import TwoTopics
from tests.unit.broker.send.test_sender import ground_of
from tests.unit.broker.send.test_stored_ids import ids_of
from tidemark.formats import batch, inner_batch, properties
from tidemark.formats.batch import WireMessage


class Kit:
    """A broker's sends to the topic "batches"."""

    def __init__(self, broker: SmallBroker) -> None:
        self.broker = broker
        sender = Sender(
            ground_of(broker.flusher_part), broker.append_part, cast(Topics, TwoTopics())
        )
        self.sends = Deduplicator(sender, ids_of(broker))

    async def send(self, asked: ProduceRequest) -> SendResult:
        return await self.sends.send("batches", asked, BORN)

    async def added(self, asked: ProduceRequest) -> tuple[list[dict[str, Any]], int]:
        """The results of a send, and the bytes that it appended."""
        before = self.broker.appender.appended
        results = (await self.send(asked)).results()
        return results, self.broker.appender.appended - before


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    broker = SmallBroker(tmp_path)
    yield Kit(broker)
    broker.close()


def request(
    *unique_ids: str, retry: bool = False, queues: list[int] | None = None
) -> ProduceRequest:
    raws = [properties.encode({"UNIQ_KEY": each} if each else {}) for each in unique_ids]
    entries = batch.encode(WireMessage(b"body", raw) for raw in raws)
    picks = 0 if queues is None else list[int | str | None](queues)
    return ProduceRequest(entries, len(raws), picks, AckLevel.DISK, 3000, retry=retry)


def batch_request(*unique_ids: str, own_id: str, retry: bool = False) -> ProduceRequest:
    raw = inner_batch.encode_properties(own_id, len(unique_ids), tags=None, keys=None)
    return replace(request(*unique_ids, retry=retry), batch_properties=raw)


DISPATCHED = pytest.mark.parametrize("is_dispatched", [True, False])


@DISPATCHED
async def test_a_repeat_of_all_messages_stores_none_and_has_their_places(
    kit: Kit, is_dispatched: bool
) -> None:
    await kit.send(request("X"))
    sent, _ = await kit.added(request("A", "B", "C"))
    if is_dispatched:
        kit.broker.dispatch()
    assert await kit.added(request("A", "B", "C", retry=True)) == (sent, 0)


@DISPATCHED
async def test_messages_of_two_queues_are_found_by_the_first_of_each(
    kit: Kit, is_dispatched: bool
) -> None:
    queues = [0, 1, 1, 0]
    sent, _ = await kit.added(request("A", "B", "C", "D", queues=queues))
    if is_dispatched:
        kit.broker.dispatch()
    repeated = request("A", "B", "C", "D", queues=queues, retry=True)
    assert await kit.added(repeated) == (sent, 0)


@DISPATCHED
async def test_only_the_missing_messages_are_stored(kit: Kit, is_dispatched: bool) -> None:
    sent, _ = await kit.added(request("A", "B"))
    if is_dispatched:
        kit.broker.dispatch()
    found, size = await kit.added(request("A", "B", "C", "D", retry=True))
    assert found[:2] == sent
    assert [each["queue_offset"] for each in found] == [0, 1, 2, 3]
    assert (
        found[2]["physical_offset"]
        == found[3]["physical_offset"]
        == sent[0]["physical_offset"] + kit.broker.record(sent[0]["physical_offset"]).size
    )
    assert size == kit.broker.record(found[2]["physical_offset"]).size


@DISPATCHED
async def test_a_repeated_batch_is_found_by_its_id(kit: Kit, is_dispatched: bool) -> None:
    await kit.send(request("X"))
    first = (await kit.send(batch_request("", "A", own_id="MINE"))).as_dict()
    if is_dispatched:
        kit.broker.dispatch()
    before = kit.broker.appender.appended
    again = (await kit.send(batch_request("", "A", own_id="MINE", retry=True))).as_dict()
    assert again == first
    assert again["batch"]["message_count"] == 2
    assert kit.broker.appender.appended == before
    other = (await kit.send(batch_request("", "A", own_id="OTHER", retry=True))).as_dict()
    assert other["batch"]["queue_offset"] == 3
    assert kit.broker.appender.appended > before


async def test_a_first_attempt_that_waited_finds_its_repeat(kit: Kit) -> None:
    count = kit.sends.repeat_count
    for asked in (request("A", "B"), batch_request("", own_id="MINE")):
        repeated = (await kit.send(replace(asked, retry=True))).results()
        end = kit.broker.appender.appended
        late = await kit.sends.send("batches", asked, BORN, since=count)
        assert late.results() == repeated
        assert kit.broker.appender.appended == end
