"""Answers to clients: made from the table when asked for, kept until they change. Pure.

An answer is kept with its bytes, because many clients ask for the same topic. The number of kept
answers is bounded; the oldest ones are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from services.names.core.completeness import Completeness
from services.names.core.table import BrokerGroup, Changes, Table
from shared.cluster.routes import (
    EXPIRE_S,
    TOPIC_SIZE_MAX,
    Role,
    Route,
    RouteGroup,
    RouteNode,
    group_of,
    unchanged,
    versioned,
)
from shared.runtime.media_types import Encoding, encoded
from tidemark.errors import RouteIncomplete, UnknownTopic

NAMED_MAX: Final = 20
"""Broker groups that one error names."""


class Answer:
    """One answer and its bytes."""

    __slots__ = ("_bytes", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self._bytes: dict[tuple[Encoding, bool], bytes] = {}

    def body(self, encoding: Encoding, *, is_changed: bool = True) -> bytes:
        """Return the encoded answer. is_changed: false at the end of a long poll without news."""
        key = encoding, is_changed
        if (body := self._bytes.get(key)) is None:
            route = self.route if is_changed else unchanged(self.route)
            body = self._bytes[key] = encoded(route, encoding)
        return body


class Answers:
    """Makes and keeps the answers of one table."""

    def __init__(
        self, table: Table, completeness: Completeness, names: Sequence[str], kept_max: int
    ) -> None:
        """names: URLs of the name services that answers list."""
        self._table = table
        self._completeness = completeness
        self._names = list(names)
        self._kept_max = kept_max
        self._kept: dict[str | None, Answer] = {}

    def kept(self, topic: str) -> Answer | None:
        """Return the answer for a topic if it is kept."""
        return self._kept.get(topic)

    def of(self, topic: str | None) -> Answer:
        """Return the answer for a topic; None: for all broker groups.

        Raises UnknownTopic, or RouteIncomplete while a broker group that may have the topic is not
        registered.
        """
        answer = self._kept.get(topic)
        if answer is None:
            answer = Answer(self._route(topic))
            if len(self._kept) >= self._kept_max:
                del self._kept[next(iter(self._kept))]
            self._kept[topic] = answer
        return answer

    def forget(self, changes: Changes) -> None:
        """Make the answers that may have changed anew when they are next asked for."""
        if changes.everything:
            self._kept.clear()
            return
        if changes.groups:
            self._kept.pop(None, None)
        for topic in changes.topics:
            self._kept.pop(topic, None)

    def _route(self, topic: str | None) -> Route:
        table, completeness = self._table, self._completeness
        if topic is None:
            groups = [self._group(each, None) for _, each in sorted(table.groups.items())]
        else:
            names = table.topics.get(topic)
            if names is None:
                raise self._unknown(topic)
            groups = [self._group(table.groups[name], topic) for name in names]
        return versioned(
            Route(
                table.cluster,
                "",
                True,
                completeness.complete,
                completeness.missing,
                self._names,
                groups,
                msgspec.UNSET if topic is None else topic,
            )
        )

    def _group(self, group: BrokerGroup, topic: str | None) -> RouteGroup:
        nodes = [
            RouteNode(node.name, _role(group, node.name, node.role), node.api, node.admin)
            for _, node in sorted(group.nodes.items())
        ]
        entry = None if topic is None else group.topics[topic]
        return group_of(
            group.name,
            group.epoch,
            group.master,
            nodes,
            topic=entry,
            topic_count=len(group.topics),
        )

    def _unknown(self, topic: str) -> UnknownTopic | RouteIncomplete:
        completeness, table = self._completeness, self._table
        topic = topic[:TOPIC_SIZE_MAX]  # a path may be longer than any topic's name
        if not completeness.complete:
            missing = _some(completeness.missing) or "all that run"
            return RouteIncomplete(
                f"no registered broker group has the topic {topic!r}, and this name service does "
                f"not know all of them: it has not heard of {missing}, since its start or for "
                f"{EXPIRE_S:.0f} s.",
                "Try again, or ask another name service.",
                topic=topic,
                missing=completeness.missing,
            )
        gone = f" Broker groups that no longer register: {_some(list(table.gone)[::-1])}."
        return UnknownTopic(
            f"no broker group of cluster {table.cluster!r} has a topic {topic!r}; "
            f"{len(table.groups)} are registered.{gone if table.gone else ''}",
            f"Create it: `tidemark topic create {topic}`. If a broker group has it, check in that "
            "broker's log that it registers here.",
            topic=topic,
            gone=list(table.gone)[::-1][:NAMED_MAX],
        )


def _role(group: BrokerGroup, node: str, role: Role) -> Role:
    """Return the role of a node; a former master that has not registered since is unknown."""
    return "unknown" if role == "master" and group.master != node else role


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
