"""Every question of every manifest, asked over HTTP of a node that opened the store itself.

Two real processes take over a copy of RocketMQ's store; whatever they answer must be the manifest's
answer. Where Tidemark deviates on purpose, ``support.golden_rules`` says what is expected. Beyond
that the API has rules of its own, each with a test here:

| The manifest's question | over HTTP |
|---|---|
| asks for a topic or queue that is not there | 404 instead of ``NO_MESSAGE_IN_QUEUE`` or offset 0 |
| asks for no hits, or for more than 64 | 400 instead of none, or of the newest 64 |
| filters by tags | compares the tags too: messages of another tag with the same hash are left out |
| asks for a key | messages of another key with the same hash are left out |

Negative offsets are allowed, and answered as the manifest says.
"""

from __future__ import annotations

import hashlib
import http.client
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode

import msgpack
import pytest

from tests.support import golden, golden_rules
from tests.support.golden_rules import Answer, has_key
from tests.support.node import Node
from tidemark.formats import hosts, record

PULL_MAX = 1024
HITS_MAX = 64
MSGPACK = "application/msgpack"
RECORDS = "application/vnd.tidemark.records"


class Reply(NamedTuple):
    """One response of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> Answer:
        """The decoded body."""
        return cast(Answer, msgpack.unpackb(self.body, raw=False))


class Served:
    """A node that serves a copy of a golden store, and one connection to it."""

    def __init__(self, name: str, node: Node) -> None:
        self.name = name
        self.node = node
        self._connection = http.client.HTTPConnection("127.0.0.1", node.ports["api"], timeout=30)

    @property
    def manifest(self) -> Answer:
        """The answers of the reference."""
        return golden.manifest(self.name)

    def call(self, method: str, path: str, body: object = None, *, accept: str = MSGPACK) -> Reply:
        """One call; the connection stays open for the next."""
        data = None if body is None else msgpack.packb(body)
        headers = {"Accept": accept, **({} if data is None else {"Content-Type": MSGPACK})}
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        return Reply(answer.status, dict(answer.getheaders()), answer.read())

    def get(self, path: str, **parameters: object) -> Reply:
        """A GET; parameters that are None are left out."""
        return self.call("GET", path + query_string(parameters))

    def answer(self, path: str, **parameters: object) -> Answer:
        """The decoded answer of a GET that must succeed."""
        reply = self.get(path, **parameters)
        assert reply.status == 200, (path, parameters, reply)
        return reply.fields

    def knows(self, asked: Answer) -> bool:
        """Whether the node has the queue that a question is about."""
        return int(asked["queueId"]) < self.queue_counts.get(asked["topic"], 0)

    @property
    def queue_counts(self) -> dict[str, int]:
        """Topic -> queues that it must have: what topics.json says, and what the store holds."""
        counts: dict[str, int] = {}
        for name, topic in self.manifest.get("metadata", {}).get("topics", {}).items():
            counts[name] = max(topic["readQueueNums"], topic["writeQueueNums"])
        for queue in self.manifest["queues"]:
            counts[queue["topic"]] = max(counts.get(queue["topic"], 0), queue["queueId"] + 1)
        return counts

    def hang_up(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()


def query_string(parameters: Mapping[str, object]) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def topic_path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"


def queue_path(asked: Answer, what: str) -> str:
    return f"{topic_path(asked['topic'])}/queues/{asked['queueId']}/{what}"


def node_of(name: str, directory: Path) -> Node:
    """A node for a fresh copy of the store, configured as the store was written."""
    settings = golden.manifest(name)["config"]
    return Node(
        directory,
        store={
            "commit_log_file_size": settings["mappedFileSizeCommitLog"],
            "consume_queue_file_size": settings["mappedFileSizeConsumeQueue"],
            "index_slots": settings["maxHashSlotNum"],
            "index_entries": settings["maxIndexNum"],
            "delay_levels": settings["messageDelayLevel"],
            "record_crc": False,
        },
        broker=golden.BROKER_AS_IT_WAS,
        store_dir=golden.unpack(name, directory),
    )


@pytest.fixture(scope="module", params=golden.golden_names())
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with node_of(request.param, tmp_path_factory.mktemp(request.param)) as node:
        node.start()
        node.wait_ready()
        found = Served(request.param, node)
        yield found
        found.hang_up()


def test_the_node_recovers_to_the_end_that_the_reference_found(served: Served) -> None:
    log = served.manifest["commitLog"]
    lines = map(json.loads, served.node.log_text("broker").splitlines())
    recovered = next(line for line in lines if line.get("event") == "recovered")
    assert (recovered["min_offset"], recovered["end_offset"]) == (
        log["minOffset"],
        log["maxOffset"],
    )
    assert served.node.metric("broker", "tidemark_log_min_offset_bytes") == log["minOffset"]
    dispatched = served.node.metric("broker", "tidemark_log_dispatched_offset_bytes")
    assert dispatched is not None
    assert dispatched >= log["maxOffset"]


def test_all_topics_of_the_store_are_listed_with_their_queues(served: Served) -> None:
    listed = {topic["topic"]: topic["queues"] for topic in served.answer("/v1/topics")["topics"]}
    assert listed == served.queue_counts


def test_every_topic_shows_the_bounds_of_its_queues(served: Served) -> None:
    bounds: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for queue in served.manifest["queues"]:
        expected = golden_rules.expected_queue(served.name, queue)
        bounds[queue["topic"]][queue["queueId"]] = (expected["minOffset"], expected["maxOffset"])
    for topic, count in served.queue_counts.items():
        shown = served.answer(topic_path(topic))["queues"]
        assert [
            (queue["queue"], (queue["min_offset"], queue["max_offset"])) for queue in shown
        ] == [(number, bounds[topic].get(number, (0, 0))) for number in range(count)], topic


def test_every_message_of_every_queue_is_the_manifests(served: Served) -> None:
    for queue in served.manifest["queues"]:
        expected = golden_rules.expected_queue(served.name, queue)
        readable = [m for m in expected["messages"] if m.get("readable", True)]
        offset, got = expected["minOffset"], []
        while offset < expected["maxOffset"]:
            answer = served.answer(queue_path(queue, "messages"), offset=offset, max=PULL_MAX)
            assert answer["next_offset"] > offset, answer["status"]
            offset = answer["next_offset"]
            got += answer["messages"]
        assert [m["queue_offset"] for m in got] == [m["queueOffset"] for m in readable]
        for message, wanted in zip(got, readable, strict=True):
            assert_message(message, wanted | {"queueId": queue["queueId"]})


def assert_message(message: Answer, wanted: Answer) -> None:
    """A message of an answer, field by field against the manifest's."""
    properties = wanted["properties"]
    assert message == {
        "message_id": wanted["msgId"],
        "unique_id": properties.get("UNIQ_KEY"),
        "topic": wanted["topic"],
        "queue": wanted["queueId"],
        "queue_offset": wanted["queueOffset"],
        "physical_offset": wanted["physicalOffset"],
        "size": wanted["size"],
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "properties": properties,
        "body": message["body"],
        "born_timestamp_ms": wanted["bornTimestamp"],
        "store_timestamp_ms": wanted["storeTimestamp"],
        "born_host": hosts.parse(wanted["bornHost"]).text,
        "store_host": hosts.parse(wanted["storeHost"]).text,
        "reconsume_times": wanted["reconsumeTimes"],
        "flag": wanted["flag"],
        "sys_flag": wanted["sysFlag"],
        "body_crc": wanted["bodyCrc"],
        "tags_code": wanted["tagsCode"],
        "prepared_transaction_offset": wanted["preparedTransactionOffset"],
    }
    assert len(message["body"]) == wanted["bodySize"]
    assert hashlib.sha256(message["body"]).hexdigest() == wanted["bodySha256"]


def test_raw_pulls_hand_out_the_records_as_the_reference_wrote_them(served: Served) -> None:
    for queue in served.manifest["queues"]:
        expected = golden_rules.expected_queue(served.name, queue)
        readable = [m for m in expected["messages"] if m.get("readable", True)]
        offset, got = expected["minOffset"], []
        while offset < expected["maxOffset"]:
            asked = query_string({"offset": offset, "max": PULL_MAX})
            reply = served.call("GET", queue_path(queue, "messages") + asked, accept=RECORDS)
            assert reply.status == 200
            assert int(reply.headers["Tidemark-Next-Offset"]) > offset
            offset = int(reply.headers["Tidemark-Next-Offset"])
            view, at = memoryview(reply.body), 0
            while at < len(view):
                found = record.decode(view, at)
                outcome = record.validate(
                    view, at, at=found.physical_offset, checks=record.Checks()
                )
                assert outcome.kind is record.Kind.VALID
                got.append((found.queue_offset, found.physical_offset, found.size))
                at += found.size
        assert got == [(m["queueOffset"], m["physicalOffset"], m["size"]) for m in readable]


def test_every_pull_has_the_manifests_status_and_messages(served: Served) -> None:
    by_offset = {m["physicalOffset"]: m for m in golden_rules.messages(served.name)}
    for asked in served.manifest["getMessage"]:
        if not served.knows(asked):
            continue
        reply = served.get(
            queue_path(asked, "messages"),
            offset=asked["offset"],
            max=min(asked["maxMsgNums"], PULL_MAX),
            max_bytes=asked["maxTotalMsgSize"],
            tags=asked["subscription"],
        )
        assert reply.status == 200, (asked, reply.body)
        answer = reply.fields
        expected = golden_rules.expected_pull(served.name, asked)
        assert (answer["min_offset"], answer["max_offset"]) == (
            expected["minOffset"],
            expected["maxOffset"],
        ), asked
        places = [(m["queue_offset"], m["physical_offset"]) for m in answer["messages"]]
        wanted = list(zip(expected["queueOffsets"], expected["physicalOffsets"], strict=True))
        tags = subscribed(asked["subscription"])
        assert tags is None or all(m["tags"] in tags for m in answer["messages"])
        matching = [place for place in wanted if is_wanted(by_offset[place[1]], tags)]
        if matching == wanted:
            assert places == wanted, asked
            assert answer["status"] == expected["status"], asked
            assert answer["next_offset"] == expected["nextBeginOffset"], asked
        else:
            # Those with only the hash are left out, and make room for more behind.
            assert places[: len(matching)] == matching, asked
            assert answer["next_offset"] >= expected["nextBeginOffset"], asked
            assert (answer["status"] == "FOUND") is bool(places), asked


def subscribed(expression: str | None) -> frozenset[str] | None:
    if expression is None or expression == "*":
        return None
    return frozenset(tag.strip() for tag in expression.split("||"))


def is_wanted(message: Answer, tags: frozenset[str] | None) -> bool:
    return tags is None or message["properties"].get("TAGS") in tags


def test_an_unknown_topic_or_queue_is_an_error_and_not_an_empty_queue(
    served: Served,
) -> None:
    for asked in served.manifest["getMessage"]:
        if not served.knows(asked):
            assert asked["status"] == "NO_MESSAGE_IN_QUEUE"
            reply = served.get(queue_path(asked, "messages"), offset=asked["offset"])
            assert_unknown(served, asked, reply)
    for asked in served.manifest["offsetByTime"]:
        if not served.knows(asked):
            reply = served.get(queue_path(asked, "offset"), timestamp_ms=asked["timestamp"])
            assert_unknown(served, asked, reply)
    for asked in served.manifest["queryMessage"]:
        if asked["topic"] not in served.queue_counts:
            assert asked["physicalOffsets"] == []
            reply = served.get(topic_path(asked["topic"]) + "/messages", key=asked["key"])
            assert_unknown(served, asked, reply)


def assert_unknown(served: Served, asked: Answer, reply: Reply) -> None:
    is_topic_known = asked["topic"] in served.queue_counts
    assert reply.status == 404
    assert reply.fields["code"] == ("unknown-queue" if is_topic_known else "unknown-topic")


def test_every_time_look_up_gives_the_queue_offset_of_the_manifest(served: Served) -> None:
    for asked in served.manifest["offsetByTime"]:
        if not served.knows(asked):
            continue
        answer = served.answer(
            queue_path(asked, "offset"),
            timestamp_ms=asked["timestamp"],
            boundary=asked["boundary"].lower(),
        )
        assert answer["offset"] == golden_rules.expected_offset_by_time(served.name, asked), asked


def test_every_look_up_by_key_finds_each_message_that_has_the_key_once(served: Served) -> None:
    by_offset = {m["physicalOffset"]: m for m in golden_rules.messages(served.name)}
    for asked in served.manifest["queryMessage"]:
        path = topic_path(asked["topic"]) + "/messages"
        times: dict[str, int] = {"begin_ms": asked["begin"], "end_ms": asked["end"]}
        limit = min(asked["maxNum"], HITS_MAX)
        if asked["topic"] not in served.queue_counts:
            continue
        if limit != asked["maxNum"] or limit < 1:
            reply = served.get(path, key=asked["key"], max=asked["maxNum"], **times)
            assert (reply.status, reply.fields["code"]) == (400, "bad-request"), asked
        if limit < 1:
            continue
        found = served.answer(path, key=asked["key"], max=limit, **times)["messages"]
        offsets = [message["physical_offset"] for message in found]
        real = {
            offset
            for offset in asked["physicalOffsets"]
            if has_key(by_offset[offset], asked["topic"], asked["key"])
        }
        assert offsets == sorted(set(offsets))
        assert len(offsets) <= limit
        assert real <= set(offsets), asked
        assert all(has_key(by_offset[at], asked["topic"], asked["key"]) for at in offsets), asked
        if len(asked["physicalOffsets"]) < limit:
            assert set(offsets) == real, asked
        for message in found:
            assert (message["message_id"], message["queue_offset"]) == (
                by_offset[message["physical_offset"]]["msgId"],
                by_offset[message["physical_offset"]]["queueOffset"],
            )


def test_every_look_up_by_unique_id_finds_its_messages(served: Served) -> None:
    called: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in golden_rules.messages(served.name):
        if message["properties"].get("UNIQ_KEY"):
            called[message["topic"], message["properties"]["UNIQ_KEY"]].append(
                message["physicalOffset"]
            )
    for asked in served.manifest["queryMessage"]:
        wanted = called.get((asked["topic"], asked["key"]))
        if asked["begin"] or asked["end"] < 1 << 62 or wanted is None:
            continue
        path = topic_path(asked["topic"]) + "/messages"
        found = served.answer(path, unique_id=asked["key"], max=HITS_MAX)["messages"]
        # Those of the log that were indexed: the reference does not index a ROLLBACK either.
        assert [m["physical_offset"] for m in found] == sorted(
            set(wanted) & set(asked["physicalOffsets"])
        ), asked


def test_every_message_is_found_by_its_offset_id(served: Served) -> None:
    for queue in served.manifest["queues"]:
        expected = golden_rules.expected_queue(served.name, queue)
        for wanted in expected["messages"]:
            if wanted.get("readable", True):
                message = served.answer(f"/v1/messages/{wanted['msgId']}")
                assert_message(message, wanted | {"queueId": queue["queueId"]})


def test_a_record_that_is_in_no_queue_is_no_message(served: Served) -> None:
    for wanted in served.manifest["unqueued"]:
        reply = served.get(f"/v1/messages/{wanted['msgId']}")
        assert (reply.status, reply.fields["code"]) == (404, "unknown-message"), wanted["msgId"]


def test_every_series_of_a_running_node_is_on_the_metrics_page(served: Served) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    for url in (served.node.broker_admin_url, served.node.reput_admin_url):
        for name in series(url):
            assert f"`{name}`" in page, name


def series(url: str) -> Iterator[str]:
    """Names of our own metrics that a service shows."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    for line in text.splitlines():
        if line.startswith("# TYPE tidemark_"):
            name = line.split()[2]
            if not name.endswith("_created"):
                yield name


# The last two: their messages would be in the answers to all questions above.
def test_the_next_message_of_each_queue_gets_the_number_that_the_reference_would_give(
    served: Served,
) -> None:
    topics: dict[str, Any] = served.manifest.get("metadata", {}).get("topics", {})
    for queue in served.manifest["queues"]:
        reply = sent(served, queue)
        if queue["topic"].startswith("%RETRY%") or queue["topic"] == "SCHEDULE_TOPIC_XXXX":
            assert (reply.status, reply.fields["code"]) == (400, "bad-name")
        elif not topics.get(queue["topic"], {}).get("perm", 6) & 2:
            assert (reply.status, reply.fields["code"]) == (403, "not-permitted")
        else:
            assert_sent(served, queue, reply, queue["nextOffset"])


def test_a_store_that_was_taken_over_survives_kill_9_of_the_node(served: Served) -> None:
    writable = {}
    for queue in served.manifest["queues"]:
        reply = sent(served, queue)
        if reply.status == 200:
            number = reply.fields["results"][0]["queue_offset"]
            assert number >= queue["nextOffset"]
            writable[queue["topic"], queue["queueId"]] = (queue, number)
    served.node.kill()
    served.node.start()
    served.node.wait_ready()
    served.hang_up()
    for queue in served.manifest["queues"]:
        expected = golden_rules.expected_queue(served.name, queue)
        _, last = writable.get((queue["topic"], queue["queueId"]), (queue, queue["maxOffset"] - 1))
        answer = served.answer(queue_path(queue, "messages"), offset=last, max=1)
        assert (answer["min_offset"], answer["max_offset"]) == (expected["minOffset"], last + 1)
    for queue, last in writable.values():
        assert_sent(served, queue, sent(served, queue), last + 1)


def sent(served: Served, queue: Answer) -> Reply:
    """Send one message to a queue of the manifest."""
    path = topic_path(queue["topic"]) + "/messages"
    return served.call("POST", path, {"messages": [{"body": b"probe", "queue": queue["queueId"]}]})


def assert_sent(served: Served, queue: Answer, reply: Reply, number: int) -> None:
    """The message has that number, and a pull gets it."""
    assert reply.status == 200, (queue["topic"], reply.body)
    (result,) = reply.fields["results"]
    assert (result["queue"], result["queue_offset"]) == (queue["queueId"], number)
    assert result["physical_offset"] >= served.manifest["commitLog"]["maxOffset"]
    pulled = served.answer(queue_path(queue, "messages"), offset=number, wait_ms=10_000)
    assert pulled["next_offset"] == pulled["max_offset"] == number + 1
    (message,) = pulled["messages"]
    assert (message["body"], message["message_id"]) == (b"probe", result["message_id"])
