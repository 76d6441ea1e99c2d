"""Bodies of operators' commands and of their answers, over HTTP. Used by ``control``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from tidemark.errors import BadRequest, SlowRequest, TidemarkError

BODY_SIZE_MAX: Final = 64 << 10
BODY_S: Final = 5.0
"""Limit of the time in which the body of a command arrives, so that idle clients occupy no
connection."""
TEXT_TYPE: Final = "application/json"


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: Mapping[str, Any]


async def read_arguments(request: web.Request, *, timeout_s: float = BODY_S) -> dict[str, str]:
    """Return the arguments of a command. Raises BadRequest, SlowRequest."""
    return _arguments(await _read_body(request, timeout_s=timeout_s))


def json_answer(answer: Answer) -> web.Response:
    """Return the answer as a response."""
    return web.Response(
        text=json.dumps(answer.body) + "\n", status=answer.status, content_type=TEXT_TYPE
    )


def error_answer(error: TidemarkError) -> web.Response:
    """Return an error as a response."""
    answer = json_answer(Answer(error.status, error_body(error)))
    if isinstance(error, SlowRequest):
        answer.force_close()  # the rest of the body may arrive; it is not a request
    return answer


def error_body(error: TidemarkError) -> dict[str, Any]:
    """Return the body that all errors of API calls have."""
    return {
        "code": error.code,
        "title": error.title,
        "detail": error.detail,
        "advice": error.advice,
        "retriable": error.retriable,
    }


async def _read_body(request: web.Request, *, timeout_s: float) -> bytes:
    """Return the body, bounded in size and time. Raises BadRequest, SlowRequest."""
    if request.content_length is not None and request.content_length > BODY_SIZE_MAX:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > BODY_SIZE_MAX:
                    raise _too_large()
    except TimeoutError:
        raise SlowRequest(
            f"{len(body)} bytes of the body arrived within {timeout_s:g} s, and not its end. "
            "Nothing was done.",
            "Send the whole body with the request.",
        ) from None
    return bytes(body)


def _too_large() -> BadRequest:
    return BadRequest(f"the body is larger than {BODY_SIZE_MAX} bytes. Nothing was done.")


def _arguments(body: bytes) -> dict[str, str]:
    """Return the arguments: a JSON object of texts, numbers and booleans. Raises BadRequest."""
    try:
        values: object = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}. Nothing was done.") from None
    if not isinstance(values, dict):
        raise BadRequest("the body is not a JSON object. Nothing was done.")
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, (str, int)):
            found[name] = str(value)
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            found[name] = ",".join(value)
        else:
            raise BadRequest(
                f"{name} must be a string, a number, true, false or a list of strings. "
                "Nothing was done."
            )
    return found
