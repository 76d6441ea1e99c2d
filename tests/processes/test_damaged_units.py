"""Flipped bits in old queue units: sends go on, and reads heal without an operator."""

from __future__ import annotations

from pathlib import Path

from tests.support.node import Node, wait_until
from tidemark.offsets import UNIT_SIZE

STATE_QUEUE, STATE_UNIT = "rmq_sys_tidemark_state/0", 3
STORE = {"consume_queue_file_size": 400, "commit_log_file_size": 64 << 10}
COUNT = 30
OFFSET_HIGH, OFFSET_LOW, SIZE_SIGN, SIZE_HIGH, SIZE_LOW = 2, 7, 8, 9, 11
"""Bytes of a unit."""


def flip(node: Node, number: int, byte: int, queue: str = "t/0", bits: int = 0x40) -> None:
    position = number * UNIT_SIZE + byte
    start = position - position % STORE["consume_queue_file_size"]
    with (node.store_dir / f"consumequeue/{queue}/{start:020}").open("r+b") as file:
        file.seek(position - start)
        value = file.read(1)[0]
        file.seek(position - start)
        file.write(bytes([value ^ bits]))


def send(node: Node, text: str) -> None:
    # A message of another queue between two of ours: a wrong size of a unit may stay undetected.
    for queue in (0, 1):
        message = {"body_text": text, "queue": queue}
        status, answer = node.request_json(
            "POST", "/v1/topics/t/messages", {"messages": [message], "ack": "disk"}
        )
        assert status == 200, answer


def read_all(node: Node, expected: list[str]) -> None:
    """Read message by message; a read may fail for a moment, but no message is skipped."""
    for number, text in enumerate(expected):
        found: list[str] = []

        def comes(at: int = number, found: list[str] = found) -> bool:
            path = f"/v1/topics/t/queues/0/messages?offset={at}&max=1"
            status, answer = node.request_json("GET", path)
            if status != 200:
                assert answer["code"] == "not-serving", answer
                send(node, "meanwhile")
                return False
            found.extend(one["body_text"] for one in answer["messages"])
            return bool(found)

        wait_until(comes, f"message {number}")
        assert found == [text]
        assert node.ready("broker")["ready"]


def last_unit(node: Node, queue: str) -> int:
    """Number of the queue's last unit; its files begin with the first."""
    paths = sorted((node.store_dir / f"consumequeue/{queue}").iterdir())
    data = b"".join(path.read_bytes() for path in paths).rstrip(b"\0")
    return (len(data) - 1) // UNIT_SIZE


def test_flipped_bits_in_old_units_heal_while_the_node_serves(tmp_path: Path) -> None:
    """The first read made the node unready, for good; a size that reached behind the log's end
    silently hid all messages from there on."""
    with Node(tmp_path, store=STORE) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 2})[0] == 200
        expected = [f"body {number}" for number in range(COUNT)]
        for text in expected:
            send(node, text)
        # Also a unit of the state that no other one contradicts.
        assert node.request_json("PUT", "/v1/groups/g", {})[0] == 200
        send(node, "behind")
        expected.append("behind")
        flips = [(3, SIZE_LOW), (9, OFFSET_LOW), (10, SIZE_LOW), (25, SIZE_HIGH), (28, OFFSET_HIGH)]
        for number, byte in flips:
            flip(node, number, byte)
        read_all(node, expected)
        assert "units-mended" in node.log_text("reput")

        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        flip(node, 5, SIZE_LOW)
        flip(node, STATE_UNIT, OFFSET_LOW, STATE_QUEUE)
        node.start()
        node.wait_ready()
        read_all(node, expected)

        # The state's last unit, which then ends its queue. Reput, which runs on, sees nothing.
        assert node.request_json("PUT", "/v1/groups/last", {})[0] == 200
        assert node.stop("broker") == {"broker": 0}
        flip(node, last_unit(node, STATE_QUEUE), SIZE_SIGN, STATE_QUEUE, bits=0x80)
        node.start("broker")
        node.wait_ready()
        for group in ("g", "last"):
            assert node.request_json("GET", f"/v1/groups/{group}")[0] == 200
