"""The broker of a node of a group: its reactions to what ha publishes in the page.

Broker and reput are real processes, ha is a script (``tests.support.scripted_ha``), stopped or
killed between any two of its steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared.files.store_dir import LockByte
from shared.state import records
from shared.state.records import STATE_QUEUE, STATE_TOPIC, TopicConfig, TopicRecord
from tests.support.node import Node, wait_until
from tests.support.scripted_ha import ScriptedHa, scripted_node
from tests.support.small_broker import HOST
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.runs import Run
from tidemark.offsets import UNIT_SIZE

TOPIC = "/v1/topics/orders"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with scripted_node(tmp_path) as made:
        yield made


@pytest.fixture
def ha(node: Node) -> Iterator[ScriptedHa]:
    with ScriptedHa(node) as made:
        yield made


def send(node: Node, text: str, **more: object) -> tuple[int, dict[str, Any]]:
    body = {"messages": [{"body_text": text}], **more}
    return node.request_json("POST", f"{TOPIC}/messages", body)


def is_primary(node: Node) -> bool:
    return node.get_json(node.broker_admin_url + "/primary")[0] == 200


def is_replica(node: Node) -> bool:
    return node.get_json(node.broker_admin_url + "/replica")[0] == 200


def wait_master(node: Node) -> None:
    wait_until(lambda: is_primary(node), "the broker to be the master")


def wait_slave(node: Node) -> None:
    wait_until(lambda: is_replica(node), "the broker to be a slave")


def test_a_granted_epoch_is_served_and_given_back(node: Node, ha: ScriptedHa) -> None:
    ha.start()
    node.start("broker", "reput")
    wait_slave(node)
    ha.serve(1)
    wait_master(node)
    assert node.request_json("PUT", TOPIC, {"queues": 1})[0] == 200
    status, answer = send(node, "first")
    assert (status, answer["ack"]) == (200, {"level": "replicated", "copies": 2})
    ha.take_back()
    assert ha.get(Slot.SERVING_EPOCH) == 0
    status, answer = send(node, "second")
    assert (status, answer["code"]) == (421, "not-master")
    wait_slave(node)


def test_reasons_why_a_slave_does_not_serve_are_cleared_on_the_master(
    node: Node, ha: ScriptedHa
) -> None:
    ha.start()
    ha.publish(Slot.ROLE, NodeRole.VOID)
    node.start("broker", "reput")

    def reasons() -> list[str]:
        answer = node.get_json(node.broker_admin_url + "/ready")[1]
        return [reason["code"] for reason in answer.get("reasons", ())]

    wait_until(lambda: reasons() == ["no-role"], "the slave to have no role")
    # It never follows: the grant comes between two of its polls.
    ha.serve(1)
    wait_master(node)
    assert (node.get_json(node.broker_admin_url + "/ready")[0], reasons()) == (200, [])


def test_a_node_that_becomes_the_master_reports_what_it_waits_for(
    node: Node, ha: ScriptedHa
) -> None:
    ha.start()
    node.start("broker", "reput")
    wait_slave(node)

    def reasons() -> list[tuple[str, str]]:
        return [(reason["code"], reason["detail"]) for reason in node.ready().get("reasons", ())]

    ha.holds_confirm = True
    node.pause("reput")
    ha.serve(1)
    unconfirmed = "the group has not confirmed the record that opens the epoch"
    wait_until(lambda: reasons() == [("catching-up", unconfirmed)], "the group to be waited for")
    ha.holds_confirm = False
    wait_until(lambda: "reput has dispatched" in str(reasons()), "reput to be waited for")
    assert not is_primary(node)
    node.resume("reput")
    wait_master(node)
    assert reasons() == []


ANYWHERE = {"Tidemark-Read-From": "any"}


def pull(
    node: Node, offset: int = 0, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    return node.request_json("GET", f"{TOPIC}/queues/0/messages?offset={offset}", headers=headers)


def texts(answer: dict[str, Any]) -> list[str]:
    return [message["body_text"] for message in answer["messages"]]


def serve_orders(node: Node, ha: ScriptedHa, epoch: int = 1) -> None:
    """Everything runs, the broker is the master, the topic is there."""
    ha.start()
    node.start("broker", "reput")
    wait_slave(node)
    ha.serve(epoch)
    wait_master(node)
    assert node.request_json("PUT", TOPIC, {"queues": 1})[0] == 200


def test_a_slave_serves_confirmed_messages_to_readers_that_allow_it(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    assert send(node, "first")[0] == 200
    ha.take_back()
    wait_slave(node)
    status, answer = pull(node)
    assert (status, answer["code"], answer["master"]) == (421, "not-master", None)
    status, answer = pull(node, headers=ANYWHERE)
    assert (status, texts(answer)) == (200, ["first"])
    assert node.request_json("GET", "/v1/groups")[0] == 421


def test_sends_wait_for_the_group_and_the_outcome_of_those_it_does_not_confirm_is_unknown(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    ha.holds_confirm = True
    status, answer = send(node, "unconfirmed")
    assert (status, answer["code"]) == (504, "ack-timeout")
    assert answer["ack"] == {"level": "disk", "copies": 1}
    assert send(node, "disk", ack="disk")[1]["ack"] == {"level": "disk", "copies": 1}
    status, answer = pull(node)
    assert (status, texts(answer)) == (200, []), "unconfirmed messages are invisible"
    ha.holds_confirm = False
    wait_until(lambda: texts(pull(node)[1]) == ["unconfirmed", "disk"], "both to be shown")


def test_a_send_repeated_after_a_failover_is_stored_once(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    ha.holds_confirm = True
    message = {"body_text": "once", "unique_id": "ID-1"}
    body = {"messages": [message]}
    status, repeated = node.request_json("POST", f"{TOPIC}/messages", body)
    assert status == 504
    ha.holds_confirm = False
    ha.take_back()
    ha.serve(2)
    wait_master(node)
    again: dict[str, Any] = {
        "messages": [message, {"body_text": "new", "unique_id": "ID-2"}],
        "retry": True,
    }
    for _ in range(2):
        status, answer = node.request_json("POST", f"{TOPIC}/messages", again)
        assert (status, answer["ack"]) == (200, {"level": "replicated", "copies": 2})
        first, second = answer["results"]
        assert first["physical_offset"] == repeated["results"][0]["physical_offset"]
        assert (first["queue_offset"], second["queue_offset"]) == (0, 1)
    wait_until(lambda: texts(pull(node)[1]) == ["once", "new"], "both to be shown, once each")


def test_a_lease_past_its_deadline_answers_nothing_until_it_is_renewed(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    ha.extend(-1)
    assert send(node, "late")[1]["code"] == "fenced"
    assert pull(node)[1]["code"] == "fenced"
    assert not is_primary(node)
    ha.extend(60_000)
    assert send(node, "again")[0] == 200


def test_below_the_least_set_sends_are_refused_and_reads_go_on(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    assert send(node, "first")[0] == 200
    wait_until(lambda: texts(pull(node)[1]) == ["first"], "it to be shown")
    ha.publish(Slot.IN_SYNC_SIZE, 1)
    assert send(node, "alone")[1]["ack"] == {"level": "disk", "copies": 1}
    end = ha.get(Slot.WRITTEN)
    status, answer = send(node, "second", ack="replicated")
    assert (status, answer["code"]) == (503, "not-enough-replicas")
    ha.publish(Slot.MIN_IN_SYNC, 2)
    assert send(node, "third")[1]["code"] == "not-enough-replicas"
    assert ha.get(Slot.WRITTEN) == end, "nothing was appended"
    assert pull(node)[0] == 200


def test_a_planned_switch_holds_sends_and_lets_reads_go_on(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    ha.publish(Slot.SENDS_HELD, 1)
    status, answer = send(node, "held")
    assert (status, answer["code"], answer["retriable"]) == (503, "switching-over", True)
    assert pull(node)[0] == 200
    ha.publish(Slot.SENDS_HELD, 0)
    assert send(node, "again")[0] == 200


def test_the_append_lock_comes_back_once_the_grant_ends(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    assert send(node, "first")[0] == 200
    ha.fence()
    started = time.monotonic()
    ha.wait_append_lock()
    print(f"the append lock came back after {time.monotonic() - started:.3f} s")
    assert ha.get(Slot.SERVING_EPOCH) == 0


def test_many_epochs_one_after_another_go_on_with_queue_offsets(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    for epoch in range(1, 8):
        if epoch > 1:
            ha.take_back()
            ha.serve(epoch)
            wait_master(node)
        status, answer = send(node, f"of {epoch}")
        assert (status, answer["results"][0]["queue_offset"]) == (200, epoch - 1)
    wait_until(lambda: len(texts(pull(node)[1])) == 7, "all to be shown")


@pytest.mark.parametrize(
    "moment", ["granted", "took-lock", "serving", "recorded", "confirmed", "fenced"]
)
def test_a_broker_killed_at_any_step_leaves_a_log_that_the_next_start_goes_on_with(
    node: Node, ha: ScriptedHa, moment: str
) -> None:
    serve_orders(node, ha)
    assert send(node, "before")[0] == 200
    ha.take_back()
    wait_slave(node)
    nonce = ha.get(Slot.BROKER_NONCE)
    ha.grant(2)
    match moment:
        case "took-lock":
            generation = ha.get(Slot.GENERATION)
            wait_until(lambda: ha.get(Slot.GENERATION) > generation, "recovery")
        case "serving":
            wait_until(lambda: ha.get(Slot.SERVING_EPOCH) == 2, "serving")
        case "recorded" | "confirmed" | "fenced":
            wait_until(lambda: ha.get(Slot.EPOCH_RECORD_END) > 0, "the epoch record")
    if moment in ("confirmed", "fenced"):
        ha.follow_in_thread()
        wait_master(node)
    if moment == "fenced":
        ha.fence()
    node.kill("broker")
    ha.take_back()
    node.start("broker")
    ha.wait_nonce(other_than=nonce)
    ha.serve(3)
    wait_master(node)
    assert send(node, "after")[0] == 200
    wait_until(lambda: texts(pull(node)[1]) == ["before", "after"], "both to be shown")


def test_a_broker_goes_on_while_ha_is_gone_and_stops_answering_at_the_deadline(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    ha.extend(15_000)
    slots = ha.slots
    ha.holds_confirm = True
    assert send(node, "disk", ack="disk")[0] == 200
    ha.extend(1500)
    wait_until(lambda: send(node, "late", ack="disk")[1].get("code") == "fenced", "the deadline")
    assert slots.get(Slot.SERVING_EPOCH) == 1, "the append lock is given back when ha says so"


def test_a_grant_to_another_start_or_of_an_epoch_served_before_is_void(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    ha.take_back()
    wait_slave(node)
    for epoch, nonce in ((1, None), (2, ha.get(Slot.BROKER_NONCE) + 2)):
        ha.grant(epoch, nonce=nonce)
        ha.fence()
        ha.wait_append_lock()
        assert ha.get(Slot.SERVING_EPOCH) == 0
        ha.follow()
    wait_slave(node)


def test_a_node_that_is_to_be_emptied_ends_broker_and_reput(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    ha.take_back()
    wait_slave(node)
    ha.publish(Slot.ROLE, NodeRole.RESYNC)
    ha.ring()
    for role in ("broker", "reput"):
        assert node.wait_exit(role) == 1
        assert "restart-needed" in node.log_text(role)
    # ha holds both bytes now: the next start waits.
    held = [ha.directory.lock(LockByte.BROKER), ha.directory.lock(LockByte.REPUT)]
    node.start("broker", "reput")
    wait_until(
        lambda: [each["code"] for each in node.ready().get("reasons", [])] == ["waiting-for-store"],
        "the broker to wait",
    )
    status, answer = node.request_json("GET", "/v1/cluster")
    assert (status, answer["group"], answer["master"]) == (200, "g0", None)
    assert "is starting" in answer["reason"]
    for lock in held:
        lock.release()
    ha.publish(Slot.ROLE, NodeRole.FOLLOWER)
    wait_slave(node)


def test_a_group_goes_on_behind_a_failover_with_a_new_generation(
    node: Node, ha: ScriptedHa
) -> None:
    serve_orders(node, ha)
    assert node.request_json("PUT", "/v1/groups/billing", {"start": "first"})[0] == 200
    assert send(node, "first")[0] == 200
    assert send(node, "second")[0] == 200
    member = "/v1/groups/billing/members/m"
    subscribe = {"subscriptions": [{"topic": "orders"}]}
    status, joined = node.request_json("POST", member, subscribe)
    assert (status, joined["generation"] >> 32) == (200, 1)
    commit = {
        "member": "m",
        "generation": joined["generation"],
        "offsets": [{"topic": "orders", "queue": 0, "offset": 1}],
        "ack": "disk",
    }
    assert node.request_json("POST", "/v1/groups/billing/offsets", commit)[0] == 200
    ha.take_back()
    ha.serve(2)
    wait_master(node)
    status, _ = node.request_json("POST", "/v1/groups/billing/offsets", commit)
    assert status != 200, "a generation of before the failover never fits"
    status, joined = node.request_json("POST", member, subscribe)
    assert (status, joined["generation"] >> 32) == (200, 2)
    status, offsets = node.request_json("GET", "/v1/groups/billing/offsets")
    assert {"topic": "orders", "queue": 0, "offset": 1} in offsets["offsets"]


@pytest.mark.parametrize("moment", ["following", "granted", "recorded", "master", "fenced"])
def test_ha_killed_at_any_step_leaves_a_broker_that_its_next_start_goes_on_with(
    node: Node, ha: ScriptedHa, moment: str
) -> None:
    serve_orders(node, ha)
    assert send(node, "before")[0] == 200
    if moment != "master":
        ha.take_back()
        wait_slave(node)
    if moment in ("granted", "recorded", "fenced"):
        ha.grant(2)
    if moment in ("recorded", "fenced"):
        wait_until(lambda: ha.get(Slot.EPOCH_RECORD_END) > 0, "the epoch record")
    if moment == "fenced":
        ha.fence()
    ha.die()
    ha.start()
    assert ha.get(Slot.SERVING_EPOCH) == 0, "byte 0 was given back"
    wait_slave(node)
    ha.serve(3)
    wait_master(node)
    assert send(node, "after")[0] == 200
    wait_until(lambda: texts(pull(node)[1]) == ["before", "after"], "both to be shown")


def test_held_calls_are_answered_when_the_grant_ends(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    ha.holds_confirm = True
    path = f"{TOPIC}/queues/0/messages?offset=0&wait_ms=60000"
    # Neither ends by itself as long as a caller waits for it here: callers give up after 30 s.
    with ThreadPoolExecutor(2) as callers:
        pulled = callers.submit(node.request_json, "GET", path)
        sent = callers.submit(send, node, "held", timeout_ms=60_000)
        wait_until(lambda: ha.get(Slot.FLUSHED) > ha.get(Slot.CONFIRM), "the send's bytes")
        wait_until(
            lambda: node.metric("broker", "tidemark_broker_long_polls"), "the pull to be held"
        )
        started = time.monotonic()
        ha.fence()
        status, answer = sent.result(60)
        assert (status, answer["code"]) == (504, "ack-timeout")
        assert answer["ack"] == {"level": "disk", "copies": 1}
        status, answer = pulled.result(60)
        assert (status, answer["code"]) == (421, "not-master")
        print(f"both were answered after {time.monotonic() - started:.3f} s")


def entry(text: str) -> bytes:
    return batch.encode([WireMessage(text.encode())])


def state_run(body: bytes) -> Run:
    return Run(STATE_TOPIC, STATE_QUEUE, batch.encode([WireMessage(body)]), 1, HOST, HOST, 1)


def test_a_slave_follows_the_records_that_its_ha_copies(node: Node, ha: ScriptedHa) -> None:
    serve_orders(node, ha)
    ha.take_back()
    wait_slave(node)
    path = f"{TOPIC}/queues/0/messages?offset=0&wait_ms=20000"
    with ThreadPoolExecutor(1) as callers:
        held = callers.submit(node.request_json, "GET", path, headers=ANYWHERE)
        wait_until(
            lambda: node.metric("broker", "tidemark_broker_long_polls"), "the pull to be held"
        )
        # The state queue has, from the first term: its epoch, the topic, ...
        made = records.encode(TopicRecord(0, TopicConfig("copied", 1, 1)))
        status, listed = node.request_json("GET", "/v1/topics", headers=ANYWHERE)
        assert "copied" not in [each["topic"] for each in listed["topics"]]
        ha.copy((Run("orders", 0, entry("copied"), 1, HOST, HOST, 1), 0))
        status, answer = held.result(60)
        assert (status, texts(answer)) == (200, ["copied"])
    ha.copy((state_run(made), state_records(node)))

    def names() -> list[str]:
        _, listed = node.request_json("GET", "/v1/topics", headers=ANYWHERE)
        return [each["topic"] for each in listed["topics"]]

    wait_until(lambda: "copied" in names(), "the topic to be known")
    ha.serve(2)
    wait_master(node)
    assert node.request_json("GET", "/v1/topics/copied")[0] == 200
    status, answer = send(node, "next")
    assert (status, answer["results"][0]["queue_offset"]) == (200, 1)


def state_records(node: Node) -> int:
    """How many records the state's queue has: where the next one goes."""
    size = 0
    directory = node.store_dir / "consumequeue" / STATE_TOPIC / str(STATE_QUEUE)
    for path in directory.iterdir():
        data = path.read_bytes()
        size += sum(any(data[at : at + UNIT_SIZE]) for at in range(0, len(data), UNIT_SIZE))
    return size
