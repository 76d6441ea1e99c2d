"""OpenAPI schemas of retention. Pure; ``openapi`` merges them."""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK
from services.broker.api.openapi_schemas import Schema, integer, object_of, or_null, ref
from services.broker.fields import I64_MAX
from services.broker.retention.retention import Pressure, Stay, Why

_COUNT: Final = integer(0, I64_MAX)
_PERCENT: Final = integer(0, 100)
_SPACE: Final[dict[str, Schema]] = {
    "path": {"type": "string"},
    "used_bytes": or_null(integer(0, I64_MAX, "null if the disk could not be asked.")),
    "available_bytes": or_null(integer(0, I64_MAX, "What an ordinary user may still take.")),
    "used_percent": or_null(integer(0, 100, "Whole percent, rounded up; what rules go by.")),
}
_POLICY: Final[dict[str, Schema]] = {
    "age_ms": _COUNT,
    "delete_hours": {"type": "array", "items": integer(0, 23)},
    "size_max": _COUNT,
    "used_percent_max": _PERCENT,
    "forcible_percent": _PERCENT,
    "warning_percent": _PERCENT,
    "forcibly": {"type": "boolean"},
}
_OLDEST: Final[dict[str, Schema]] = {
    "start": _COUNT,
    "end": _COUNT,
    "modified_ms": integer(0, I64_MAX, "Its age counts from here."),
    "age_ms": _COUNT,
}
_NEXT: Final[dict[str, Schema]] = {
    "at_ms": or_null(integer(0, I64_MAX, "null: something keeps the file, see `kept_by`.")),
    "why": {"type": ["string", "null"], "enum": [*(str(why.value) for why in Why), None]},
    "kept_by": {
        "type": ["string", "null"],
        "enum": [*(stay.name.lower() for stay in Stay), None],
        "description": "What keeps the oldest file.",
    },
    "groups_with_unread_messages": integer(0, I64_MAX, "In that file, if it goes soon."),
}
_FORECAST: Final[dict[str, Schema]] = {
    "full_in_s": {
        "type": ["number", "null"],
        "minimum": 0,
        "description": "Until sends are refused at the present pace; null: see `reason`.",
    },
    "growth_bytes_per_s": {"type": ["number", "null"]},
    "reason": {
        "type": ["string", "null"],
        "enum": ["disk_not_measured", "too_few_samples", "not_growing", "too_far_ahead", None],
    },
}
_VIEW: Final[dict[str, Schema]] = {
    "pressure": {"type": "string", "enum": [pressure.name.lower() for pressure in Pressure]},
    "sends_refused": {"type": "boolean"},
    "log": ref("RetentionSpace"),
    "queues": ref("RetentionSpace"),
    "policy": object_of(_POLICY, list(_POLICY)),
    "log_files": _COUNT,
    "min_offset": integer(0, I64_MAX, "Physical offset at which the log begins."),
    "oldest_file": {"oneOf": [object_of(_OLDEST, list(_OLDEST)), {"type": "null"}]},
    "next_deletion": object_of(_NEXT, list(_NEXT)),
    "deleted_files": object_of({why.value: _COUNT for why in Why}, [why.value for why in Why]),
    "forecast": object_of(_FORECAST, list(_FORECAST)),
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "RetentionSpace": object_of(_SPACE, list(_SPACE)),
    "Retention": object_of(_VIEW, list(_VIEW)),
}

PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/retention": {
        "get": {
            "operationId": "getRetention",
            "summary": "How full the disk is, what goes next and when, and when sends will stop",
            "responses": {
                "200": {
                    "description": "What is not known is null, with a reason.",
                    "content": {
                        JSON: {"schema": ref("Retention")},
                        MSGPACK: {"schema": ref("Retention")},
                    },
                },
                **{
                    str(status): {
                        "description": text,
                        "content": {
                            JSON: {"schema": ref("Error")},
                            MSGPACK: {"schema": ref("Error")},
                        },
                    }
                    for status, text in (
                        (400, "A parameter that the call does not have."),
                        (503, "The node does not serve now; the same call may succeed later."),
                    )
                },
            },
        }
    }
}
