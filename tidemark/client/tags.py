"""Tag expressions on the client: ``*``, or tags with ``||`` between them. Pure.

The broker filters by hashes of tags and hands on what collides (docs/formats.md, section 11.4), so
the strings are compared once more where messages arrive.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.message import Message

Wanted = frozenset[str] | None
"""Tags that pass; None: all, and messages without one."""


def wanted_tags(expression: str | None) -> Wanted:
    """Read an expression. What is malformed in it is the broker's to refuse (``bad-tags``)."""
    if expression is None or expression.strip() in ("", "*"):
        return None
    return frozenset(tag.strip() for tag in expression.split("||"))


def passing(messages: Iterable[Message], wanted: Wanted) -> list[Message]:
    """The messages whose tag is wanted, in order."""
    if wanted is None:
        return list(messages)
    return [message for message in messages if message.tags in wanted]
