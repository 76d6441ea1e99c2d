"""Writes messages to standard output, as body lines or JSON objects, up to a maximum number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from tidemark.cli.output import message_facts, to_json
from tidemark.cli.produce import NO_NEWLINE
from tidemark.client.messages import Message


class Writer:
    """Writes messages until the maximum number is reached."""

    def __init__(
        self, out: BinaryIO, *, as_json: bool, count_max: int | None, tags: str | None
    ) -> None:
        self._out = out
        self._as_json = as_json
        self._left = count_max
        self.tags = tags
        self._newline_due = False
        """Whether the last body ended without a newline; one is written before a further body."""

    @property
    def full(self) -> bool:
        """Whether the maximum number of messages is written."""
        return self._left == 0

    @property
    def is_limited(self) -> bool:
        """Whether there is a maximum number of messages."""
        return self._left is not None

    def write_messages(self, messages: Sequence[Message]) -> None:
        """Write these messages, up to the maximum number."""
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        if not messages:
            return
        if self._newline_due:
            self._out.write(b"\n")
        if self._as_json:
            self._out.write(_json(messages))
        else:
            self._newline_due = NO_NEWLINE in messages[-1].properties
            self._out.write(b"\n".join([message.body for message in messages]))
            if not self._newline_due:
                self._out.write(b"\n")
        self._out.flush()


def _json(messages: Sequence[Message]) -> bytes:
    lines = [to_json(message_facts(message)) for message in messages]
    return ("\n".join(lines) + "\n").encode()
