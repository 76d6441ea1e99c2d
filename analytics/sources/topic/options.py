"""Options of a read of a topic as Spark passes them, checked once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

import pyarrow as pa

from analytics.errors import BadOption
from analytics.schema import TOPIC_MESSAGES
from analytics.sources.option_values import by_lower_name, check_columns, names, number, only

Offsets = Mapping[int, int]
"""Queue → queue offset."""
NAMES: Final[Mapping[str, str]] = {"from": "first", "to": "end"}
"""Options whose field has another name."""
OFFSET_MAX: Final = (1 << 63) - 1
SPLIT_MESSAGES: Final = 200_000


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options of one read. The constructor raises BadOption for bad values."""

    urls: tuple[str, ...]
    """URLs of any nodes of the group; the client finds the master and follows it."""
    topic: str
    first: Offsets | Literal["first", "last"] = "first"
    """Option ``from``, the start: the oldest message, after the newest, or queue offsets; queues
    without an offset begin at their oldest. A new stream uses it once."""
    end: Offsets | Literal["last"] = "last"
    """Option ``to`` of a batch: queue offsets to end before. ``last``, and queues without an
    offset, end where they did when the read was planned."""
    queues: frozenset[int] | None = None
    """Queues to read; None: all, including those that the topic gets later."""
    max_messages: int = 1_000_000
    """Offsets in one micro-batch of a stream. Small: each batch costs some tenths of a second.
    Large: more is read again after a restart."""
    split_messages: int = SPLIT_MESSAGES
    """Maximum number of offsets in one partition."""
    retry_seconds: float = 15.0
    """How long a read is repeated if there is no master, or a queue ends earlier than planned. Then
    the task fails. Longer than a failover takes."""
    columns: tuple[str, ...] | None = None
    """Columns to decode; None: all. Without ``gap`` a gap ends the read with an error."""

    def __post_init__(self) -> None:
        """Check the values; the error names all bad ones."""
        if not self.urls or not self.topic:
            raise BadOption(
                "tidemark_topic needs the options url and topic.",
                "Give the addresses of one or more nodes, like http://10.0.0.1:8080,http://…",
            )
        check_columns(self.columns, TOPIC_MESSAGES, "a message")
        if self.max_messages < 1 or self.split_messages < 1 or self.retry_seconds < 0:
            raise BadOption(
                f"max_messages is {self.max_messages}, split_messages {self.split_messages}, "
                f"retry_seconds {self.retry_seconds}.",
                "Give at least 1, 1 and 0.",
            )

    @classmethod
    def of(cls, given: Mapping[str, str]) -> TopicOptions:
        """Parse options; names are case-insensitive. Raises BadOption, also for unknown names."""
        known = {each.name for each in fields(cls)} - {"urls", *NAMES.values()}
        texts = by_lower_name(given, "tidemark_topic", known | {"url", *NAMES})
        first, end = _start(texts.get("from", "first")), _start(texts.get("to", "last"))
        if end == "first":
            raise BadOption(
                "to is 'first': nothing lies before it.", "Give last, or queue offsets."
            )
        queues, columns = names(texts.get("queues")), names(texts.get("columns"))
        return cls(
            urls=names(texts.get("url")) or (),
            topic=texts.get("topic", ""),
            first=first,
            end=end,
            queues=None if queues is None else frozenset(number("queues", each) for each in queues),
            max_messages=number("max_messages", texts.get("max_messages", "1000000")),
            split_messages=number("split_messages", texts.get("split_messages", "200000")),
            retry_seconds=_seconds(texts.get("retry_seconds", "15")),
            columns=columns,
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the requested columns, in the table's order."""
        return only(TOPIC_MESSAGES, self.columns)


def offsets_of(wire: object) -> dict[int, int]:
    """Parse a JSON map from queues to offsets. Raises BadOption."""
    if isinstance(wire, dict):
        try:
            found = {int(queue): offset for queue, offset in wire.items()}
        except (TypeError, ValueError):
            found = {}
        if len(found) == len(wire) and all(
            queue >= 0 and type(offset) is int and 0 <= offset <= OFFSET_MAX
            for queue, offset in found.items()
        ):
            return found
    raise BadOption(f"{wire!r} are not queue offsets.", 'Give a map like {"0": 17, "1": 0}.')


def _start(text: str) -> Offsets | Literal["first", "last"]:
    match text:
        case "first":
            return "first"
        case "last":
            return "last"
    try:
        wire = json.loads(text)
    except ValueError:
        wire = text
    return offsets_of(wire)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadOption(f"retry_seconds is {text!r}, no number.", "Give seconds.") from None
