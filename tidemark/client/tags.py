"""Tag expressions in the client: ``*``, or tags separated by ``||``. Pure.

The broker filters by tag hashes and lets collisions pass (docs/formats.md, section 11.4), so the
client compares the strings of received messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.message import Message

Wanted = frozenset[str] | None
"""Tags that pass; None: all messages, including those without a tag."""


def wanted_tags(expression: str | None) -> Wanted:
    """Parse an expression. The broker rejects malformed ones (``bad-tags``)."""
    if expression is None or expression.strip() in ("", "*"):
        return None
    return frozenset(tag.strip() for tag in expression.split("||"))


def passing(messages: Iterable[Message], wanted: Wanted) -> list[Message]:
    """The messages whose tag is wanted, in order."""
    if wanted is None:
        return list(messages)
    return [message for message in messages if message.tags in wanted]
