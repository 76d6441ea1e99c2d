"""Look-ups by key over real processes: bounded by bytes and by work, and continued by the
client."""

from __future__ import annotations

import itertools
import urllib.parse
from pathlib import Path
from typing import Any

import tidemark
from tests.support.node import Node, wait_until

MIB = 1 << 20


def test_a_look_up_by_key_is_bounded_and_the_client_finds_all(tmp_path: Path) -> None:
    """64 messages of 4 MiB were one answer: 256 MiB, and 5 GB of memory as JSON."""
    alike = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=9)]
    store = {"commit_log_file_size": 64 * MIB, "index_entries": 100_000}
    with Node(tmp_path, store=store) as node:
        node.start()
        node.wait_ready()
        with tidemark.connect_sync(node.api_url) as mq:
            mq.create_topic("t", queues=1)
            for number in range(12):
                mq.send("t", bytes([number]) * MIB, keys=["large"])
            keys = alike[1:]
            for number in range(60):
                mq.send("t", b"%d" % number, keys=keys)
            last = mq.send("t", b"last", keys=["last"])

            def query(key: str, **more: object) -> dict[str, Any]:
                asked = urllib.parse.urlencode({"key": key, **more})
                status, answer = node.request_json("GET", f"/v1/topics/t/messages?{asked}")
                assert status == 200, answer
                return answer

            wait_until(lambda: bool(query("last")["messages"]), "dispatch to be done")
            page = query("large", max=64)
            assert 1 <= len(page["messages"]) <= 5
            assert page["next"]
            assert sum(each["size"] for each in page["messages"]) <= 5 * MIB
            found = mq.messages_by_key("t", "large", max=64)
            assert [each.body[0] for each in found] == list(range(12))
            assert len(mq.messages_by_key("t", alike[9], max=64)) == 60
            assert mq.messages_by_key("t", alike[0]) == []
            assert mq.message_by_unique_id("t", last.unique_id or "").body == b"last"
            status, answer = node.request_json("GET", "/v1/topics/t/messages?key=k&before=x")
            assert (status, answer["code"], answer["field"]) == (400, "bad-request", "before")
            status, answer = node.request_json(
                "GET", "/v1/topics/t/queues/0/messages?offset=0&max=64"
            )
            assert sum(each["size"] for each in answer["messages"]) <= 5 * MIB
            assert answer["next_offset"] == len(answer["messages"])
