"""OpenAPI schemas of the group of nodes. Pure; ``openapi`` merges them."""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK
from services.broker.api.openapi_schemas import Schema, integer, object_of, or_null, ref
from services.broker.fields import I64_MAX

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final = or_null(integer(0, I64_MAX))
_NODE: Final[dict[str, Schema]] = {
    "node": _TEXT,
    "role": or_null(_TEXT),
    "state": or_null(_TEXT),
    "incarnation": or_null(_TEXT),
    "in_sync": {"type": ["boolean", "null"], "description": "Only these may become master."},
    "api": or_null({**_TEXT, "description": "Where clients reach it."}),
    "admin": or_null(_TEXT),
    "first_offset": or_null(integer(0, I64_MAX, "Where its log begins.")),
    "log_end": _COUNT,
    "durable_end": _COUNT,
    "confirm": _COUNT,
    "lag_bytes": _COUNT,
    "lag_ms": _COUNT,
    "reason": or_null({**_TEXT, "description": "Why something is not known, or not in order."}),
    "seen_ms_ago": _COUNT,
}
_GROUP: Final[dict[str, Schema]] = {
    "cluster": or_null(_TEXT),
    "group": or_null(_TEXT),
    "epoch": _COUNT,
    "master": or_null({**_TEXT, "description": "A node; null: there is none, or see `reason`."}),
    "min_in_sync": _COUNT,
    "paused": {"type": ["boolean", "null"]},
    "lease": {"type": ["object", "null"]},
    "nodes": {"type": "array", "items": ref("ClusterNode")},
    "history": {"type": "array", "items": ref("ClusterEpoch")},
    "reason": or_null(_TEXT),
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "ClusterEpoch": object_of(
        {
            "epoch": integer(0, I64_MAX),
            "start": integer(0, I64_MAX, "Physical offset of its first record."),
            "node": or_null({**_TEXT, "description": "Its master, or the address of one unknown."}),
            "at_ms": or_null(integer(0, I64_MAX, "When it began; null: the record has expired.")),
        },
        ["epoch", "start", "node", "at_ms"],
    ),
    "ClusterNode": object_of(_NODE, ["node"]),
    "Cluster": object_of(_GROUP, ["cluster", "group", "epoch", "master", "nodes"]),
}

PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/cluster": {
        "get": {
            "operationId": "getCluster",
            "summary": "Who is in this node's group, and who is its master",
            "responses": {
                "200": {
                    "description": "Any node answers. What is not known is null, with a reason; "
                    "a node alone has no group.",
                    "content": {
                        JSON: {"schema": ref("Cluster")},
                        MSGPACK: {"schema": ref("Cluster")},
                    },
                },
                "400": {
                    "description": "A parameter that the call does not have.",
                    "content": {
                        JSON: {"schema": ref("Error")},
                        MSGPACK: {"schema": ref("Error")},
                    },
                },
            },
        }
    }
}
