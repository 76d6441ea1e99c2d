"""One damaged record among valid ones: earlier ones are served, and the damage is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.node import Node, wait_until

BAD = 31


FIELDS = {"size": 3, "magic": 5, "body_crc": 9, "queue": 15, "queue_offset": 27, "physical": 30}
"""Position of one byte of each field in a record."""


def flip(node: Node, physical_offset: int, mask: int = 1) -> None:
    """Flip bits of one byte of the log."""
    size = 1 << 20
    path = node.store_dir / "commitlog" / f"{physical_offset - physical_offset % size:020}"
    with path.open("r+b") as file:
        file.seek(physical_offset % size)
        (value,) = file.read(1)
        file.seek(physical_offset % size)
        file.write(bytes([value ^ mask]))


def flip_body(node: Node, message: dict[str, Any]) -> None:
    """Flip a bit of the message's body in the log."""
    size = 1 << 20
    physical_offset = message["physical_offset"]
    path = node.store_dir / "commitlog" / f"{physical_offset - physical_offset % size:020}"
    body = message["body_text"].encode()
    data = bytearray(path.read_bytes())
    data[data.index(body, physical_offset % size)] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def test_a_bad_record_blocks_no_sound_one(tmp_path: Path) -> None:
    """A pull of 32 from 0 was 503, one of 31 fine; the record's id was reported as unknown."""
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] == 200
        sent = {"messages": [{"body_text": f"body {n:06}"} for n in range(64)]}
        assert node.request_json("POST", "/v1/topics/t/messages", sent)[0] == 200
        pull = "/v1/topics/t/queues/0/messages?offset={}&max=64&wait_ms=10000"
        messages: list[dict[str, Any]] = []
        while len(messages) < 64:
            answer = node.request_json("GET", pull.format(len(messages)))[1]
            messages += answer["messages"]
        flip_body(node, messages[BAD])

        for offset in (0, 10, BAD - 1):
            status, answer = node.request_json("GET", pull.format(offset))
            assert status == 200
            assert answer["next_offset"] == BAD
            assert answer["messages"] == messages[offset:BAD]
        status, answer = node.request_json("GET", pull.format(BAD))
        assert (status, answer["code"]) == (503, "corrupt-record")
        status, answer = node.request_json("GET", pull.format(BAD + 1))
        assert (status, answer["messages"]) == (200, messages[BAD + 1 :])

        damaged, sound = messages[BAD]["message_id"], messages[BAD + 1]["message_id"]
        status, answer = node.request_json("GET", f"/v1/messages/{damaged}")
        assert (status, answer["code"]) == (503, "corrupt-record")
        assert answer["at"] == messages[BAD]["physical_offset"]
        assert node.request_json("GET", f"/v1/messages/{sound}")[0] == 200

        member = "/v1/groups/g/members/m"
        joined = {"subscriptions": [{"topic": "t"}], "start": "first"}
        assert node.request_json("PUT", "/v1/groups/g", {"start": "first"})[0] == 200
        joined.pop("start")
        status, answer = node.request_json("POST", member, joined)
        assert status == 200, answer
        fetch = {"max": 64, "generation": answer["generation"]}
        status, answer = node.request_json("POST", f"{member}/fetch", fetch)
        assert status == 200, answer
        (queue,) = answer["queues"]
        assert queue["next_offset"] == BAD
        assert queue["messages"] == messages[:BAD]
        status, answer = node.request_json("POST", f"{member}/fetch", fetch)
        assert (status, answer["code"]) == (503, "corrupt-record")


def test_the_id_of_a_message_names_its_damage_whatever_field_it_is_in(tmp_path: Path) -> None:
    """With damage in a field that names the queue, the answer was unknown-message."""
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/topics", {"queues": 2})[0] == 200
        sent = {"messages": [{"body_text": f"body {n:06}", "keys": ["k"]} for n in range(32)]}
        results = node.request_json("POST", "/v1/topics/topics/messages", sent)[1]["results"]
        found = "/v1/topics/topics/messages?key=k&max=64"
        wait_until(
            lambda: len(node.request_json("GET", found)[1].get("messages", ())) == 32, "the index"
        )
        places = {
            name: result["physical_offset"] for name, result in zip(FIELDS, results, strict=False)
        }
        for name, physical_offset in places.items():
            flip(node, physical_offset + FIELDS[name])
        topic_at = results[10]["physical_offset"]
        data = b"".join(
            each.read_bytes() for each in sorted((node.store_dir / "commitlog").glob("0*"))
        )
        flip(node, data.index(b"topics", topic_at), 2)
        flip(node, results[11]["physical_offset"] + FIELDS["size"], 0xFF)
        for at in (*places.values(), topic_at, results[11]["physical_offset"]):
            id_ = next(each["message_id"] for each in results if each["physical_offset"] == at)
            status, answer = node.request_json("GET", f"/v1/messages/{id_}")
            assert (status, answer["code"], answer.get("at")) == (503, "corrupt-record", at), id_
            beside = f"{id_[:16]}{at + 1:016X}"
            status, answer = node.request_json("GET", f"/v1/messages/{beside}")
            assert (status, answer["code"]) == (404, "unknown-message")
        sound = results[-1]["message_id"]
        assert node.request_json("GET", f"/v1/messages/{sound}")[0] == 200


def test_a_search_by_key_finds_what_is_on_both_sides_of_a_bad_record(tmp_path: Path) -> None:
    """One damaged record hid all messages with the same key."""
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] == 200
        sent = {"messages": [{"body_text": f"body {n:06}", "keys": ["k"]} for n in range(40)]}
        assert node.request_json("POST", "/v1/topics/t/messages", sent)[0] == 200
        search = "/v1/topics/t/messages?key=k&max=64"

        def found() -> list[dict[str, Any]]:
            messages = node.request_json("GET", search)[1].get("messages", [])
            return messages if len(messages) == 40 else []

        wait_until(lambda: bool(found()), "the index to be whole")
        messages = found()
        flip_body(node, messages[BAD])
        status, answer = node.request_json("GET", search)
        assert (status, answer["messages"]) == (200, messages[BAD + 1 :])
        status, answer = node.request_json("GET", f"{search}&before={answer['next']}")
        assert (status, answer["code"]) == (503, "damaged-file")
        assert answer["physical_offset"] == messages[BAD]["physical_offset"]
        status, answer = node.request_json("GET", f"{search}&before={answer['next']}")
        assert (status, answer["messages"]) == (200, messages[:BAD])
        assert answer["next"] is None
