"""Answers of a golden manifest changed where Tidemark differs from RocketMQ on purpose.

Every rule follows from the manifest alone, so that it holds for stores of other sizes and seeds,
and for a store that is open in another process. The table of the rules is in
``support.golden_store``; docs/formats.md, "Where Tidemark differs", gives the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support import golden
from tidemark.formats.queue_unit import Unit, is_pre_blank

Answer = dict[str, Any]


def messages(name: str) -> Iterator[Answer]:
    """Every record of the manifest that is readable, queued or not."""
    yield from golden.queued_messages(name)
    yield from golden.manifest(name)["unqueued"]


def first_message(name: str, queue: Answer) -> int | None:
    """Queue offset of the first message of a queue that does not start with one.

    Two kinds: one begins with pre-blank units, which the reference passes over only where the log's
    start is above 0; the first files of the other hold nothing but expired units, which the
    reference counts until it deletes those files. None for every other queue.
    """
    number = int(queue["minOffset"])
    if golden.manifest(name)["commitLog"]["minOffset"] > 0:
        cleaned = golden.manifest(name).get("afterCleaning") or {"queues": []}
        for other in cleaned["queues"]:
            if (other["topic"], other["queueId"]) == (queue["topic"], queue["queueId"]):
                first = int(other["minOffset"])
                return first if first > number else None
        return None
    for message in queue["messages"]:
        unit = Unit(message["physicalOffset"], message["size"], message["tagsCode"])
        if message["queueOffset"] != number or not is_pre_blank(unit):
            break
        number += 1
    return number if number > queue["minOffset"] else None


def expected_queue(name: str, queue: Answer) -> Answer:
    """Return the manifest's entry for a queue, changed to what we answer."""
    expected = dict(queue)
    end = golden.manifest(name)["commitLog"]["maxOffset"]
    if expected["lastOffset"] is None or expected["lastOffset"] > end:
        expected["lastOffset"] = expected["maxPhysicOffset"]
    first = first_message(name, queue)
    if first is not None:
        kept = [unit for unit in queue["messages"] if unit["queueOffset"] >= first]
        expected |= {
            "minOffset": first,
            "minLogicOffset": first * 20,
            "messageTotal": queue["maxOffset"] - first,
            "firstUnit": first if kept else None,
            "messages": kept,
            "earliestMessageTime": kept[0]["storeTimestamp"] if kept else -1,
        }
    return expected


def queue_of(name: str, asked: Answer) -> Answer | None:
    """The manifest's entry of the queue in a question; None for an unknown queue."""
    for queue in golden.manifest(name)["queues"]:
        if (queue["topic"], queue["queueId"]) == (asked["topic"], asked["queueId"]):
            found: Answer = queue
            return found
    return None


def expected_pull(name: str, asked: Answer) -> Answer:
    """Return the manifest's answer to a getMessage, changed to the one that we give."""
    queue = queue_of(name, asked)
    first = None if queue is None else first_message(name, queue)
    if first is None:
        return asked
    expected = asked | {"minOffset": first}
    if asked["offset"] < first:
        expected |= {
            "status": "OFFSET_TOO_SMALL",
            "nextBeginOffset": first,
            "messageCount": 0,
            "bufferTotalSize": 0,
            "queueOffsets": [],
            "physicalOffsets": [],
        }
    return expected


def expected_offset_by_time(name: str, asked: Answer) -> int:
    """Return our answer to an offsetByTime of the manifest."""
    queue = queue_of(name, asked)
    first = None if queue is None else first_message(name, queue)
    if queue is None or first is None:
        return int(asked["offset"])
    found = [unit for unit in queue["messages"] if unit["queueOffset"] >= first]
    if asked["boundary"] == "LOWER":
        later = [unit for unit in found if unit["storeTimestamp"] >= asked["timestamp"]]
        return int(later[0]["queueOffset"] if later else queue["maxOffset"])
    earlier = [unit for unit in found if unit["storeTimestamp"] <= asked["timestamp"]]
    return int(earlier[-1]["queueOffset"]) if earlier else first


def has_key(message: Mapping[str, Any], topic: str, key: str) -> bool:
    """Whether a message of the manifest really has a key, and not only its hash."""
    properties: dict[str, str] = message["properties"]
    keys = properties.get("KEYS", "").split(" ")
    return message["topic"] == topic and (key in keys or properties.get("UNIQ_KEY") == key)
