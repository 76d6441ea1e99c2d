"""Registrations and directories for the tests of the name service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.names.core.bounds import TableBounds
from services.names.core.completeness import SETTLE_S
from services.names.core.directory import Directory
from shared.cluster.routes import Registration, Role, TopicRoute

BOUNDS = TableBounds(groups_max=100, nodes_max=4, topics_max=1000, entries_max=10_000)


def queues(count: int = 8) -> TopicRoute:
    return TopicRoute(count, readable=True, writable=True)


def said(
    *topics: str,
    epoch: int = 1,
    counter: int = 1,
    role: Role = "master",
    identity: str = "store of g0 n0",
    api: str = "http://n0:8080",
    cluster: str = "tidemark",
    base: int | None = None,
    changed: Mapping[str, TopicRoute] | None = None,
    removed: Iterable[str] = (),
) -> Registration:
    """A registration: of a master with all these topics, unless base or another role is given."""
    is_whole = role == "master" and base is None
    return Registration(
        cluster=cluster,
        epoch=epoch,
        counter=counter,
        role=role,
        api=api,
        identity=identity,
        topics={name: queues() for name in topics} if is_whole else None,
        base=base,
        changed=dict(changed or {}),
        removed=list(removed),
    )


def directory(
    bounds: TableBounds = BOUNDS, *, expected: Iterable[str] = (), asks: bool = False
) -> Directory:
    """A directory some time after its start, whose peers have named nothing.

    asks: it has just started and not asked them yet.
    """
    made = Directory(
        "tidemark",
        bounds,
        expected=expected,
        names=["http://names-1:9870"],
        kept_max=100,
        now_s=0.0 if asks else -SETTLE_S,
    )
    if not asks:
        made.note_peers(())
        made.expire(1.0)
    return made
