"""Routes: where a topic and its broker group are. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from services.broker.schema.calls import READING, Call
from services.broker.schema.values import Query, Text
from shared.cluster.routes import WAIT_MS_MAX, Route


class RouteQuery(Query, frozen=True):
    """The parameters of a route."""

    after: Annotated[Text, Meta(description="`version` of an earlier answer.")] = ""
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=WAIT_MS_MAX,
            description="Hold the call while the version is still that of `after`.",
        ),
    ] = 0


_SAME: Final = (
    "Any node answers, and so does the name service, there for all broker groups of the cluster."
)

CALLS: Final = (
    Call(
        "getRoute", "GET", "/v1/route/{topic}", "Where a topic is: its broker group, and the nodes",
        Route, "The broker group with the number of queues.", READING, query=RouteQuery,
        description=_SAME,
    ),
    Call(
        "getRoutes", "GET", "/v1/route", "The broker group of this node, and the name services",
        Route, "The broker group with the number of its topics.", (503,), query=RouteQuery,
        description=_SAME,
    ),
)  # fmt: skip
