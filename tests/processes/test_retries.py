"""A message that always fails, on real processes: retries, dead letters, redrive, SIGKILL."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import offline
from tests.support.node import Node, wait_until
from tests.support.raw_member import RawMember
from tests.support.small_disk import MIB, mounted
from tidemark.formats import delay, nack, properties
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.record import Record

LEVELS: Final = "1s 0s 1s" + " 0s" * 15
"""Eighteen, as by default, and mostly over at once; the first retry waits a second."""
DELAYS_MS: Final = [1000, 0, 1000, *[0] * 15]
RETRIES: Final = 16
DEAD: Final = "%DLQ%billing"
RETRY: Final = "%RETRY%billing"


@contextmanager
def started(directory: Path) -> Iterator[Node]:
    store = {"delay_levels": LEVELS, "commit_log_file_size": 4 << 20}
    with Node(directory, store=store) as node:
        node.start()
        node.wait_ready()
        yield node


def call(node: Node, method: str, path: str, body: object = None) -> dict[str, Any]:
    status, answer = node.request_json(method, path, body)
    assert status in (200, 204), (method, path, status, answer)
    return answer


def send(node: Node, messages: list[dict[str, Any]], topic: str = "orders") -> list[dict[str, Any]]:
    call(node, "PUT", f"/v1/topics/{topic}", {"queues": 2})
    body = {"messages": messages}
    sent = call(node, "POST", f"/v1/topics/{topic}/messages", body)
    results: list[dict[str, Any]] = sent["results"]

    def are_dispatched() -> bool:
        queues = call(node, "GET", f"/v1/topics/{topic}")["queues"]
        return bool(sum(queue["max_offset"] for queue in queues) == len(messages))

    wait_until(are_dispatched, "the messages to be dispatched")
    return results


def dead_letters(node: Node, group: str = "billing") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    at, done = 0, False
    while not done:
        page = call(node, "GET", f"/v1/groups/{group}/dead?from_offset={at}&max=1000")
        found += page["messages"]
        at, done = page["next_offset"], page["done"]
    return found


def redrive_all(node: Node, group: str = "billing", **wanted: object) -> Counter[str]:
    """Call until done; return what the calls did together."""
    total: Counter[str] = Counter()
    at, done = 0, False
    while not done:
        body = {**wanted, "from_offset": at}
        answer = call(node, "POST", f"/v1/groups/{group}/redrive", body)
        total.update({name: answer[name] for name in ("matched", "redriven", "skipped", "refused")})
        at, done = answer["next_offset"], answer["done"]
    return total


def by_id(store: Path) -> dict[str, list[Record]]:
    """The records of every message, in the log's order, by unique id."""
    found: dict[str, list[Record]] = defaultdict(list)
    for each in offline.records(store):
        if each.unique_id is not None:
            found[each.unique_id].append(each)
    return found


def test_a_message_that_always_fails_ends_as_a_dead_letter_and_redrive_brings_it_back(
    tmp_path: Path,
) -> None:
    messages = [
        {
            "body_text": f"order {number}",
            "tags": "new",
            "keys": [f"order-{number}", "all"],
            "properties": {"colour": "red"},
            "flag": number,
            "unique_id": f"ID-{number}",
        }
        for number in range(6)
    ]
    with started(tmp_path) as node:
        sent = {each["unique_id"]: each for each in send(node, messages)}
        member = RawMember(node, "billing")
        member.join()
        assert (RETRY, 0) in member.assignment, "it did not ask for it"
        received: dict[str, list[tuple[str, int]]] = defaultdict(list)
        answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _ in range(1000):
            for source, message in member.fetch():
                received[message["unique_id"]].append((source[0], message["reconsume_times"]))
                answers[message["unique_id"]].append(member.nack(source))
                member.commit(source)
            if len(dead_letters(node)) == len(messages):
                break
        for unique_id, first in sent.items():
            walked = [("orders", 0), *((RETRY, times) for times in range(1, RETRIES + 1))]
            assert received[unique_id] == walked
            assert [each["status"] for each in answers[unique_id]] == ["RETRY"] * 16 + ["DEAD"]
            assert [each["delay_level"] for each in answers[unique_id]] == [*range(3, 19), 0]
            (letter,) = (each for each in dead_letters(node) if each["unique_id"] == unique_id)
            assert letter["original_topic"] == "orders"
            assert letter["original_message_id"] == first["message_id"]
            assert letter["reconsume_times"] == RETRIES + 1
            assert (letter["tags"], letter["keys"][1:]) == ("new", ["all"])
            assert letter["redriven"] is False

        check_trace_of_a_dead_letter(node, sent["ID-3"]["message_id"])
        back = check_redrive(node, member, sent)
        member.call("DELETE", member.path)
        node.stop()
        check_log(node.store_dir, sent, back)


def check_trace_of_a_dead_letter(node: Node, message_id: str) -> None:
    """One message's whole trace, from either end."""
    trace: dict[str, Any] = {}

    def commits_are_dispatched() -> bool:
        trace.update(call(node, "GET", f"/v1/messages/{message_id}/trace"))
        unknown = {event["what"] for event in trace["events"] if event["at_ms"] is None}
        return unknown == {"flushed", "dispatched"}

    wait_until(commits_are_dispatched, "all events but two to have a time")
    assert trace["complete"] is True
    letters = [each for each in dead_letters(node) if each["unique_id"] == trace["unique_id"]]
    (letter,) = letters
    assert call(node, "GET", f"/v1/messages/{letter['message_id']}/trace") == trace
    assert call(node, "GET", f"/v1/messages/{trace['unique_id']}/trace?topic=orders") == trace
    counted = Counter(event["what"] for event in trace["events"])
    assert counted == {
        "produced": 1,
        "flushed": 1,
        "dispatched": 1,
        "delivered": RETRIES + 1,
        "retried": RETRIES,
        "released": RETRIES,
        "committed": RETRIES + 1,
        "dead": 1,
    }
    members = {event["member"] for event in trace["events"] if event["what"] == "delivered"}
    assert members == {"m1"}
    known = [event["at_ms"] for event in trace["events"] if event["at_ms"] is not None]
    assert known == sorted(known)
    levels = [event["delay_level"] for event in trace["events"] if event["what"] == "retried"]
    assert levels == list(range(3, 19))


def check_redrive(
    node: Node, member: RawMember, sent: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Redrive half of the letters to their topic, the others to the group; return what the member
    then got."""
    dry = call(node, "POST", "/v1/groups/billing/redrive", {"dry_run": True, "key": "order-1"})
    assert (dry["matched"], dry["redriven"]) == (1, 1)
    some = [f"order-{number}" for number in range(3)]
    for key in some:
        answer = call(node, "POST", "/v1/groups/billing/redrive", {"key": key})
        assert (answer["matched"], answer["redriven"], answer["skipped"]) == (1, 1, 0)
    assert redrive_all(node, to="group") == {
        "matched": 6,
        "redriven": 3,
        "skipped": 3,
        "refused": 0,
    }
    assert redrive_all(node) == {"matched": 6, "redriven": 0, "skipped": 6, "refused": 0}
    assert all(each["redriven"] for each in dead_letters(node))
    back: dict[str, dict[str, Any]] = {}
    for _ in range(100):
        for source, message in member.fetch():
            assert message["unique_id"] not in back
            back[message["unique_id"]] = message
            member.commit(source)
        if len(back) == len(sent):
            break
    for number in range(6):
        message = back[f"ID-{number}"]
        to_topic = f"order-{number}" in some
        assert message["topic"] == ("orders" if to_topic else RETRY)
        assert (message["body_text"], message["flag"]) == (f"order {number}", number)
        assert (message["tags"], message["keys"]) == ("new", [f"order-{number}", "all"])
        assert message["reconsume_times"] == 0
        found = message["properties"]
        assert found["colour"] == "red"
        assert ("RETRY_TOPIC" in found) is not to_topic
        assert "DELAY" not in found
    return back


def check_log(
    store: Path, sent: dict[str, dict[str, Any]], back: dict[str, dict[str, Any]]
) -> None:
    """The answers are consistent with the log."""
    records = by_id(store)
    for unique_id, first in sent.items():
        own = records[unique_id]
        assert [each.topic for each in own] == [
            "orders",
            *[SCHEDULE_TOPIC, RETRY] * RETRIES,
            DEAD,
            back[unique_id]["topic"],
        ]
        assert own[0].message_id == first["message_id"]
        waited = own[1 : 1 + 2 * RETRIES]
        for number, (waiting, retried) in enumerate(zip(waited[::2], waited[1::2], strict=True)):
            assert waiting.queue_id == number + 2, "level 3 is queue 2"
            assert retried.reconsume_times == number + 1
            origin = delay.origin_of(retried.properties)
            assert origin == (number + 3, waiting.queue_offset)
            due_ms = waiting.store_timestamp_ms + DELAYS_MS[waiting.queue_id]
            assert retried.store_timestamp_ms >= due_ms, "never early"
        letter, copy = own[-2:]
        assert (letter.reconsume_times, copy.reconsume_times) == (RETRIES + 1, 0)
        died = properties.parse(letter.properties)
        assert (died["RETRY_TOPIC"], died["DELAY"]) == ("orders", "0")
        assert died["ORIGIN_MESSAGE_ID"] == first["message_id"]
        assert nack.redrive_origin(copy.properties) == ("billing", letter.queue_offset)
        assert {bytes(each.body) for each in own} == {bytes(own[0].body)}
        assert {each.born_timestamp_ms for each in own} == {own[0].born_timestamp_ms}


# An answered nack is on disk: a commit of the message after it loses nothing.
def test_a_nacked_message_survives_a_sigkill(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        send(node, [{"body_text": str(number), "unique_id": f"ID-{number}"} for number in range(9)])
        member = RawMember(node, "billing")
        member.join()
        handled: Counter[str] = Counter()
        done: set[str] = set()
        kills = 0
        for _ in range(1000):
            for source, message in member.fetch():
                handled[message["unique_id"]] += 1
                if message["reconsume_times"] == 2:
                    done.add(message["unique_id"])
                else:
                    member.nack(source)
                    if kills < 3 and len(handled) > 3 * kills:
                        kills += 1
                        node.kill("broker")
                        node.start("broker")
                        node.wait_ready("broker")
                        member.join()  # nothing of this batch is committed
                        break
                member.commit(source)
            if len(done) == 9:
                break
        assert len(done) == 9
        assert kills == 3
        node.stop()
        for own in by_id(node.store_dir).values():
            # Sent back and killed before the commit: delivered and sent back once more.
            assert len([each for each in own if each.topic == "orders"]) == 1
            origins = [
                origin
                for each in own
                if each.topic == RETRY and (origin := delay.origin_of(each.properties)) is not None
            ]
            assert len(origins) == len(set(origins)), "each retry was delivered once"


def test_letters_are_redriven_once_although_the_broker_is_killed_meanwhile(tmp_path: Path) -> None:
    seed, count = 20_251_121, 150
    rng = random.Random(seed)
    print(f"seed {seed}")
    with started(tmp_path) as node:
        send(node, [{"body_text": str(n), "unique_id": f"ID-{n}"} for n in range(count)])
        for queue, offset in itertools.product(range(2), range(count)):
            body = {"topic": "orders", "queue": queue, "queue_offset": offset, "delay_level": -1}
            status, answer = node.request_json("POST", "/v1/groups/billing/nack", body)
            if status == 404:
                break  # the queue's end
            assert answer["status"] == "DEAD"
        wait_until(lambda: len(dead_letters(node)) == count, "all dead letters to be dispatched")

        calls: list[int] = []
        stop = threading.Event()

        def keep_redriving() -> None:
            at = 0
            while not stop.is_set():
                body = {"from_offset": at, "max": 5, "to": rng.choice(["topic", "group"])}
                status, answer = node.request_json("POST", "/v1/groups/billing/redrive", body)
                if status == 200:
                    calls.append(answer["redriven"])
                    at = 0 if answer["done"] else answer["next_offset"]

        redriving = threading.Thread(target=keep_redriving)
        redriving.start()
        try:
            for number in range(4):
                _wait_for_calls(calls, 6 * number)
                node.kill("broker")
                node.start("broker")
                node.wait_ready("broker")
        finally:
            stop.set()
            redriving.join()
        assert redrive_all(node)["refused"] == 0
        assert redrive_all(node) == {
            "matched": count,
            "redriven": 0,
            "skipped": count,
            "refused": 0,
        }
        node.stop()
    copies: Counter[str] = Counter()
    for unique_id, own in by_id(node.store_dir).items():
        for each in own:
            copies[unique_id] += nack.redrive_origin(each.properties) is not None
    assert copies == {f"ID-{number}": 1 for number in range(count)}


# Members must get on while senders cannot: their nacks are accepted, and delivered when there is
# space. The copies of a redrive are new messages, refused like those of senders.
def test_on_a_full_disk_messages_are_still_sent_back(tmp_path: Path) -> None:
    with (
        mounted("tmpfs", tmp_path, 48 * MIB) as disk,
        Node(
            tmp_path / "node",
            store_dir=disk / "store",
            store={"delay_levels": LEVELS, "commit_log_file_size": 4 << 20},
            broker={"clean_file_forcibly": False},
        ) as node,
    ):
        node.start()
        node.wait_ready()
        send(node, [{"body_text": "a", "queue": 0}, {"body_text": "b", "queue": 0}])
        member = RawMember(node, "billing")
        member.join()
        assert member.nack(("orders", 0, 0), delay_level=-1)["status"] == "DEAD"
        free = shutil.disk_usage(disk).free
        (disk / "ballast").write_bytes(bytes(free - 2 * MIB))
        one = {"messages": [{"body_text": "c"}]}

        def refused() -> bool:
            status, answer = node.request_json("POST", "/v1/topics/orders/messages", one)
            return (status, answer.get("code")) == (507, "disk-full")

        wait_until(refused, "sends to be refused")
        assert member.nack(("orders", 0, 1), delay_level=2)["status"] == "RETRY"
        member.commit(("orders", 0, 1))
        status, answer = node.request_json("POST", "/v1/groups/billing/redrive", {})
        assert (status, answer["code"]) == (507, "disk-full")
        (disk / "ballast").unlink()
        wait_until(lambda: not refused(), "sends to be taken again")
        assert redrive_all(node)["redriven"] == 1
        got: set[str] = set()

        def got_both() -> bool:
            got.update(message["body_text"] for _, message in member.fetch())
            return got >= {"a", "b"}

        wait_until(got_both, "the retry and the copy of the dead letter")


def _wait_for_calls(calls: list[int], least: int) -> None:
    wait_until(lambda: len(calls) >= least, f"{least} calls")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started(tmp_path_factory.mktemp("refused")) as running:
        send(running, [{"body_text": "a", "unique_id": "ID"}])
        call(running, "PUT", "/v1/groups/billing")
        call(running, "PUT", "/v1/groups/everybody", {"broadcast": True})
        yield running


ANY: Final = {"topic": "orders", "queue": 0, "queue_offset": 0}


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("billing/nack", {**ANY, "delay_level": 19}, "delay-out-of-range"),
        ("billing/nack", {**ANY, "delay_level": -2}, "delay-out-of-range"),
        ("billing/nack", {**ANY, "queue_offset": 7}, "unknown-message"),
        ("billing/nack", {"message_id": "0" * 32}, "unknown-message"),
        ("billing/nack", {**ANY, "queue": 7}, "unknown-queue"),
        ("billing/nack", {**ANY, "topic": "nowhere"}, "unknown-topic"),
        ("billing/nack", {**ANY, "topic": "no where"}, "bad-name"),
        ("everybody/nack", ANY, "broadcast-group"),
        ("billing/nack", {**ANY, "member": "missing"}, "member-required"),
        ("billing/nack", {**ANY, "member": "missing", "generation": 1}, "stale-generation"),
        ("billing/nack", {**ANY, "generation": 1}, "bad-request"),
        ("billing/nack", {**ANY, "member": "m", "without_member": True}, "bad-request"),
        ("billing/nack", {**ANY, "without_member": "yes"}, "bad-request"),
        ("billing/nack", {}, "bad-request"),
        ("billing/nack", {"topic": "orders", "queue": 0}, "bad-request"),
        ("billing/nack", {**ANY, "message_id": "0" * 32}, "bad-request"),
        ("billing/nack", {"message_id": "zero"}, "bad-request"),
        ("billing/nack", {**ANY, "delay_level": "soon"}, "bad-request"),
        ("billing/nack", {**ANY, "level": 3}, "bad-request"),
        ("bill ing/nack".replace(" ", "%20"), ANY, "bad-name"),
        ("missing/redrive", {}, "unknown-group"),
        ("billing/redrive", {"to": "nowhere"}, "bad-request"),
        ("billing/redrive", {"max": 0}, "bad-request"),
        ("billing/redrive", {"dry_run": "yes"}, "bad-request"),
        ("billing/redrive", {"topics": "orders"}, "bad-request"),
        ("billing/redrive", {"topic": "no where"}, "bad-name"),
    ],
)
def test_each_mistake_has_its_code(node: Node, path: str, body: object, code: str) -> None:
    status, answer = node.request_json("POST", f"/v1/groups/{path}", body)
    assert (answer.get("code"), status >= 400) == (code, True), answer
    assert answer["detail"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("groups/missing/dead", "unknown-group"),
        ("groups/billing/dead?max=1001", "bad-request"),
        ("groups/billing/dead?from_offset=-1", "bad-request"),
        ("groups/billing/dead?begin=1", "bad-request"),
        (f"messages/{'0' * 32}/trace", "unknown-message"),
        ("messages/missing/trace?topic=orders", "unknown-message"),
        ("messages/missing/trace?topic=nowhere", "unknown-topic"),
        ("messages/missing/trace", "bad-request"),
        (f"messages/{'x' * 256}/trace?topic=orders", "bad-request"),
    ],
)
def test_each_mistake_of_a_question_has_its_code(node: Node, path: str, code: str) -> None:
    status, answer = node.request_json("GET", f"/v1/{path}")
    assert (answer.get("code"), status >= 400) == (code, True), answer
