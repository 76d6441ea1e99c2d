"""Logs of real processes: their contents, what they never contain, how a message is followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import tidemark
from tests.support.cluster import PATIENT_MS, Cluster
from tests.support.node import GROUP_ROLES, wait_until
from tests.unit.test_log_events import PAGE

TOPIC: Final = "followed"
GROUP: Final = "billing"
TRACE: Final = "order-4711"
BODY: Final = "a-body-that-is-private"
PROPERTY: Final = "a-property-that-is-private"
KEY: Final = "a-key-that-is-private"
CODES: Final = {"disk-full", "read-only-disk", "halted-replica", "bad-stream", "file-not-ready"}


def lines(cluster: Cluster, node: str, role: str) -> list[dict[str, Any]]:
    text = cluster.nodes[node].log_text(role).splitlines()
    return [json.loads(line) for line in text if line.startswith("{")]


def traced(cluster: Cluster, trace: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Lines by node, service and event."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for node in cluster.names:
        for role in GROUP_ROLES:
            for line in lines(cluster, node, role):
                if line.get("trace") == trace:
                    found.setdefault((node, role, line["event"]), []).append(line)
    return found


def counts(cluster: Cluster) -> dict[tuple[str, str], int]:
    return {
        (node, role): len(lines(cluster, node, role))
        for node in cluster.names
        for role in GROUP_ROLES
    }


async def send_and_take(cluster: Cluster, master: str, trace: str) -> str:
    """Send one message, and let a group handle and commit it; return its id."""
    url = cluster.api_url(master)
    async with tidemark.connect(url, trace=trace) as mq:
        sent = await mq.send(
            TOPIC, BODY.encode(), keys=[KEY], properties={"note": PROPERTY}, ack="replicated"
        )
        async with mq.subscribe(TOPIC, group=GROUP, start="first") as messages:
            async for message in messages:
                if message.message_id == sent.message_id:
                    messages.stop()  # and commit, once this turn is over
    return sent.message_id


async def test_a_message_is_followed_over_three_services_and_others_are_not_written(
    tmp_path: Path,
) -> None:
    debug = {"log_level": "debug"}
    with Cluster(tmp_path, broker=debug, reput=debug, ha=debug) as cluster:
        cluster.start()
        master = cluster.wait_master()
        (slave,) = set(cluster.names) - {master}
        cluster.wait_in_sync()
        node = cluster.nodes[master]
        status, body = node.request_json("PUT", f"/v1/topics/{TOPIC}", {"queues": 1})
        assert status in (200, 201), body

        message_id = await send_and_take(cluster, master, TRACE)
        expected = {
            (master, "broker", "trace-appended"),
            (master, "broker", "trace-answered"),
            (master, "broker", "trace-delivered"),
            (master, "broker", "trace-committed"),
            (master, "reput", "trace-dispatched"),
            (master, "ha", "trace-confirmed"),
        }
        wait_until(lambda: expected <= traced(cluster, TRACE).keys(), "all steps to be written")
        found = traced(cluster, TRACE)
        assert found.keys() == expected
        (appended,) = found[master, "broker", "trace-appended"]
        (dispatched,) = found[master, "reput", "trace-dispatched"]
        (confirmed,) = found[master, "ha", "trace-confirmed"]
        (answered,) = found[master, "broker", "trace-answered"]
        delivered = found[master, "broker", "trace-delivered"][0]
        committed = found[master, "broker", "trace-committed"][-1]
        place = appended["start_offset"], appended["end_offset"]
        assert (dispatched["start_offset"], dispatched["end_offset"]) == place
        assert (confirmed["start_offset"], confirmed["end_offset"]) == place
        assert confirmed["confirm_offset"] >= place[1]
        assert confirmed["nodes"] == sorted([master, slave])
        assert (answered["ack_level"], answered["copies"]) == ("replicated", 2)
        for line in (appended, answered, delivered):
            (message,) = line["messages"]
            assert message["message_id"] == message_id
            assert (message["queue_offset"], message["physical_offset"]) == (0, place[0])
            assert (line["topic"], line["count"]) == (TOPIC, 1)
        assert (delivered["group"], delivered["queue"]) == (GROUP, 0)
        assert committed["queues"] == [{"topic": TOPIC, "queue": 0, "queue_offset": 1}]

        _check_other_calls(cluster, master, message_id)
        await _check_quiet(cluster, master)
        cluster.stop()
        _check_all_lines(cluster)


def _check_other_calls(cluster: Cluster, master: str, message_id: str) -> None:
    """Pull, nack, an error and headers that are no trace ids, over plain HTTP."""
    node, path = cluster.nodes[master], f"/v1/topics/{TOPIC}"

    def call(method: str, path: str, body: object, trace: str) -> int:
        return node.request_json(method, path, body, headers={"Tidemark-Trace": trace})[0]

    assert call("GET", path + "/queues/0/messages?offset=0", None, "by-pull") == 200
    (pulled,) = traced(cluster, "by-pull")[master, "broker", "trace-delivered"]
    assert [each["message_id"] for each in pulled["messages"]] == [message_id]
    assert pulled["group"] == ""
    assert call("GET", path + "/queues/0/messages?offset=1", None, "by-empty-pull") == 200
    assert traced(cluster, "by-empty-pull") == {}

    assert call("POST", f"/v1/groups/{GROUP}/nack", {"message_id": message_id}, "by-nack") == 200
    (sent_back,) = traced(cluster, "by-nack")[master, "broker", "trace-sent-back"]
    assert (sent_back["group"], sent_back["which"]) == (GROUP, message_id)
    assert sent_back["answer"]["message_id"] != message_id

    send = {"messages": [{"body_text": BODY}], "timeout_ms": PATIENT_MS}
    assert call("POST", "/v1/topics/missing/messages", send, "by-mistake") == 404
    (refused,) = traced(cluster, "by-mistake")[master, "broker", "trace-refused"]
    assert (refused["code"], refused["count"]) == ("unknown-topic", 0)

    for odd in ("two words", "x" * 65, "<script>"):
        assert call("POST", path + "/messages", send, odd) == 200  # served, and not traced
        assert traced(cluster, odd) == {}
    ignored = [ln for ln in lines(cluster, master, "broker") if ln["event"] == "trace-ignored"]
    assert [line["held_back"] for line in ignored] == [0]  # one line for all three


async def _check_quiet(cluster: Cluster, master: str) -> None:
    """Check that nothing is written for requests that are not traced, nor while nothing happens."""
    before = counts(cluster)
    async with tidemark.connect(cluster.api_url(master)) as mq:
        for number in range(300):
            await mq.send(TOPIC, f"{BODY} {number}".encode())
        offset = 0
        for _ in range(20):
            offset = (await mq.pull(TOPIC, 0, offset)).next_offset
    after = counts(cluster)
    assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == {}


def _check_all_lines(cluster: Cluster) -> None:
    """Every line is JSON with a known event, and contains no private data."""
    secret = cluster.secret_path.read_text(encoding="ascii")
    for name in cluster.names:
        for role in GROUP_ROLES:
            text = cluster.nodes[name].log_text(role)
            for private in (secret, secret.upper(), BODY, PROPERTY, KEY):
                assert private not in text, f"{name} {role}"
            for raw in text.splitlines():
                line = json.loads(raw)
                assert line["service"] == role
                assert line["message"]
                known = {(role, line["event"]), ("all", line["event"])} & PAGE.keys()
                assert known or line["event"] in CODES, raw
    assert secret
