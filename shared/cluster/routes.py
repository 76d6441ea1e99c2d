"""Routes and registrations: what brokers, the name service and clients exchange. Pure.

A *route* says which broker groups have a topic, and where their nodes are. Brokers answer it for
their own broker group, the name service for the whole cluster. A *registration* is what a node of a
broker group reports to the name service. Members that a later version adds to a registration are
ignored, so that brokers can be upgraded before the name service.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

WAIT_MS_MAX: Final = 60_000
"""``wait_ms`` of a long poll: below the idle time-outs of common proxies."""
RENEW_S: Final = 30.0
"""Interval at which a node registers with every name service."""
EXPIRE_S: Final = 120.0
"""A registration that is not renewed for this long is dropped: four renewals were lost."""
COUNTER_MAX: Final = (1 << 63) - 1
NAME_SIZE_MAX: Final = 127
"""Bytes of the name of a cluster, broker group or node."""
NAME_PATTERN: Final = f"^[A-Za-z0-9_.-]{{1,{NAME_SIZE_MAX}}}\\Z"
"""Matches the name of a cluster, broker group or node."""
URL_PATTERN: Final = r"^https?://[^\s/]+/?\Z"
TOPIC_SIZE_MAX: Final = 255
QUEUES_MAX: Final = 1 << 20
"""Largest number of queues that a registration may claim for a topic."""
_VERSION_SIZE: Final = 12

Role = Literal["master", "slave", "unknown"]
Count = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]


class TopicRoute(Struct, frozen=True, gc=False):
    """One topic of one broker group."""

    queues: Annotated[int, Meta(ge=0, le=QUEUES_MAX)]
    """Queues that take new messages."""
    readable: bool
    writable: bool


class RouteNode(Struct, frozen=True):
    """One node of a broker group."""

    node: str
    role: Role
    api: Annotated[str, Meta(description="Where clients reach it.")]
    admin: Annotated[
        str | None, Meta(description="Where the cluster commands reach it; null: unknown.")
    ]


class RouteGroup(Struct, frozen=True):
    """One broker group: with a topic in the path its queues, without one its number of topics."""

    group: str
    epoch: Annotated[Count, Meta(description="Term of its master; 0: unknown.")]
    master: Annotated[str | None, Meta(description="A node; null: there is none, or unknown.")]
    nodes: list[RouteNode]
    queues: Annotated[Count | UnsetType, Meta(description="Queues that take new messages.")] = UNSET
    readable: bool | UnsetType = UNSET
    writable: bool | UnsetType = UNSET
    topics: Annotated[Count | UnsetType, Meta(description="Number of its topics.")] = UNSET


class Route(Struct, frozen=True):
    """The broker groups of a cluster, or those that have one topic."""

    cluster: str
    version: Annotated[
        str, Meta(description="Changes with anything in the answer; `after` of a long poll.")
    ]
    changed: Annotated[
        bool, Meta(description="false: the version is still that of `after`, and the wait is over.")
    ]
    complete: Annotated[
        bool,
        Meta(
            description="false: the name service has not heard of every broker group, or a broker "
            "with name services answers, which knows its own alone."
        ),
    ]
    missing: Annotated[list[str], Meta(description="Broker groups that it waits for.")]
    names: Annotated[list[str], Meta(description="URLs of the name services; [] if there is none.")]
    groups: Annotated[list[RouteGroup], Meta(description="By name.")]
    topic: Annotated[str | UnsetType, Meta(description="As in the path.")] = UNSET


TopicName = Annotated[str, Meta(min_length=1, max_length=TOPIC_SIZE_MAX)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Url = Annotated[str, Meta(pattern=URL_PATTERN, max_length=512)]


class Registration(Struct, frozen=True):
    """What a node reports: all topics, the difference to an earlier registration, or no topics (a
    slave)."""

    cluster: Name
    epoch: Count
    counter: Count
    role: Role
    api: Url
    identity: Annotated[str, Meta(min_length=1, max_length=128)]
    """Id of the node's store."""
    admin: Url | None = None
    topics: dict[TopicName, TopicRoute] | None = None
    """All topics of the broker group."""
    base: Count | None = None
    """Counter of the registration to which ``changed`` and ``removed`` are the difference."""
    changed: dict[TopicName, TopicRoute] = {}
    removed: list[TopicName] = []


@functools.lru_cache(maxsize=4096)
def shared(topic: TopicRoute) -> TopicRoute:
    """Return an equal entry that others use as well: 400,000 entries have few different values."""
    return topic


def group_of(
    group: str,
    epoch: int,
    master: str | None,
    nodes: list[RouteNode],
    *,
    topic: TopicRoute | None = None,
    topic_count: int = 0,
) -> RouteGroup:
    """Return a broker group as a route shows it. topic: its entry; None: no topic was asked for."""
    if topic is None:
        return RouteGroup(group, epoch, master, nodes, topics=topic_count)
    return RouteGroup(group, epoch, master, nodes, topic.queues, topic.readable, topic.writable)


def versioned(route: Route) -> Route:
    """Return the route with its version, which depends on nothing but the rest of the answer.

    Two name services that know the same therefore answer the same version.
    """
    plain = msgspec.structs.replace(route, version="", changed=True)
    digest = hashlib.blake2b(msgspec.json.encode(plain), digest_size=_VERSION_SIZE)
    return msgspec.structs.replace(route, version=digest.hexdigest())


def unchanged(route: Route) -> Route:
    """Return the answer of a long poll in whose time nothing has changed."""
    return msgspec.structs.replace(route, changed=False)


def registration_path(group: str, node: str) -> str:
    """Return the path of the registration of a node; names need no escapes."""
    return f"/v1/groups/{group}/nodes/{node}"
