"""A fetch's answer: the map, then the records of its queues in the map's order."""

from __future__ import annotations

import struct

import msgpack

from services.broker.api.fetch_answers import answer_map, raw_answer
from services.broker.api.zero_copy import Stretches
from tests.unit.broker.groups.rig import Rig
from tidemark.formats import record


def whole(body: object) -> bytes:
    assert isinstance(body, Stretches)
    data = b"".join(body._stretches)
    assert len(data) == body.size
    return data


async def test_the_records_of_each_queue_follow_the_map_in_its_order(rig: Rig) -> None:
    for queue in range(3):
        rig.put(2, queue)
    await rig.join()
    fetched = await rig.fetch()
    answer = raw_answer(fetched)
    assert answer.headers["Content-Type"] == "application/vnd.tidemark.records"
    data = whole(answer.body)
    (size,) = struct.unpack_from(">I", data)
    head = msgpack.unpackb(data[4 : 4 + size])
    assert head["generation"] == fetched.generation
    at = 4 + size
    for each in head["queues"]:
        end = at + each["size"]
        offsets = []
        while at < end:
            found = record.decode(memoryview(data)[at:end])
            assert (found.topic, found.queue_id) == (each["topic"], each["queue"])
            offsets.append(found.queue_offset)
            at += found.size
        assert offsets == list(range(each["from_offset"], each["next_offset"]))
        assert (each["min_offset"], each["max_offset"], each["status"]) == (0, 2, "FOUND")
    assert at == len(data)
    assert len(head["queues"]) == 3


async def test_people_get_every_message_as_a_map(rig: Rig) -> None:
    rig.put(2, tags="new")
    await rig.join()
    answer = answer_map(await rig.fetch(), rig.puller.checks_at, json_body=True)
    queues = answer["queues"]
    assert isinstance(queues, list)
    (queue,) = queues
    messages = list(queue["messages"].values)
    assert [each["queue_offset"] for each in messages] == [0, 1]
    assert messages[0]["tags"] == "new"
    assert messages[0]["body_text"] == "x" * 10
    assert queue["next_offset"] == 2
