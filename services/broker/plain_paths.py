"""Paths of sends and pulls as nearly all are: without escapes, oddities or mistakes.

They are understood here in one look; anything else goes the long way, through the router. Before:
``connections`` has a request. After: ``http_api`` makes the call.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from aiohttp import hdrs, web

from services.broker import openapi
from services.broker.fields import check_name
from tidemark.errors import BadName

SEND_PATH: Final = ("/v1/topics/", "/messages")
"""What stands before and behind the topic in the path of a send."""
PULL_PATH: Final = re.compile(
    r"/v1/topics/([^/%?#]+)/queues/([0-9]{1,9})/messages\?([A-Za-z0-9_=&*.-]+)"
)
"""Path of a pull as nearly all are: what is escaped, and any mistake, goes the long way."""


def plain_send(request: web.BaseRequest) -> str | None:
    """The topic of a send whose path and head are as plain as nearly all are; else None."""
    path = request.raw_path
    if not (path.startswith(SEND_PATH[0]) and path.endswith(SEND_PATH[1])):
        return None
    if hdrs.EXPECT in request.headers:
        return None
    return _plain_name(path[len(SEND_PATH[0]) : -len(SEND_PATH[1])])


def plain_pull(path: str) -> tuple[str, int, dict[str, str]] | None:
    """Topic, queue and parameters of a pull without escapes or mistakes in its path; else None."""
    matched = PULL_PATH.fullmatch(path)
    if matched is None or (topic := _plain_name(matched[1])) is None:
        return None
    pairs = [pair.split("=") for pair in matched[3].split("&")]
    given = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if len(given) != len(pairs) or not given.keys() <= openapi.PULL_PARAMETERS:
        return None
    return topic, int(matched[2]), given


@functools.lru_cache(maxsize=1024)
def _plain_name(text: str) -> str | None:
    """The text if it is a topic's name as it stands, without escapes; else None."""
    try:
        return check_name(text) if "%" not in text else None
    except BadName:
        return None
