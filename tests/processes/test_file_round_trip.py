"""The lines of a real file go in through the command line and come out byte for byte, in order."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tests.support.command import tidemark
from tests.support.node import Node

SIZE = int(os.environ.get("TIDEMARK_FILE_MB", "4")) * 1_000_000


def _text_of_this_machine(size: int) -> bytes:
    """This many bytes of the text files below /usr, unchanged: empty and long lines, any bytes."""
    parts: list[bytes] = []
    total = 0
    for root in ("/usr/share", "/usr/include", "/usr/lib/python3"):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in {".txt", ".h", ".py", ".md", "", ".xml"} and path.is_file():
                try:
                    text = path.read_bytes()
                except OSError:
                    continue  # unreadable for this user: others follow
                if b"\0" not in text and text:
                    parts.append(text if text.endswith(b"\n") else text + b"\n")
                    total += len(text)
            if total >= size:
                return b"".join(parts)[:size]
    while total < size:  # a machine without much to read: again from the start
        parts += parts
        total *= 2
    return b"".join(parts)[:size]


def test_one_queue_gives_the_file_back(tmp_path: Path) -> None:
    text = _text_of_this_machine(SIZE)
    if not text.endswith(b"\n"):
        text += b"\n"
    source = tmp_path / "lines"
    source.write_bytes(text)
    with Node(tmp_path / "node", store={"commit_log_file_size": 16 << 20}) as node:
        node.start()
        node.wait_ready()
        url = ("--url", node.api_url)
        tidemark("topic", "create", "lines", "--queues", "4", *url)
        tidemark("produce", "lines", "--file", source, "--queue", "2", *url, timeout_s=1800)
        back = tidemark(
            "consume", "lines", "--queue", "2", "--from-beginning", *url, timeout_s=1800
        )
        assert hashlib.sha256(back).digest() == hashlib.sha256(text).digest()
        print(f"{len(text):,} bytes, {text.count(10):,} lines: the same")


def test_all_queues_together_give_the_same_lines(tmp_path: Path) -> None:
    text = _text_of_this_machine(min(SIZE, 2_000_000))
    source = tmp_path / "lines"
    source.write_bytes(text)
    with Node(tmp_path / "node", store={"commit_log_file_size": 16 << 20}) as node:
        node.start()
        node.wait_ready()
        url = ("--url", node.api_url)
        tidemark("topic", "create", "lines", "--queues", "4", *url)
        tidemark("produce", "lines", "--file", source, *url)
        back = tidemark("consume", "lines", "--from-beginning", *url)
        lines = text.removesuffix(b"\n").split(b"\n")
        assert sorted(back.removesuffix(b"\n").split(b"\n")) == sorted(lines)
